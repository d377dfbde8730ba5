"""CIFAR-10 in memory: from a folder, this node's cache, a download or, failing these, the shipped sample."""

from __future__ import annotations

import hashlib
import os
import pickle
import queue
import shutil
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from filelock import FileLock
from PIL import Image

from tuner.training.data import Arrays, DataError, Splits

# torchvision takes a second to import, which a trial that reads the binary layout or the sample need not wait
# for: it is imported where it is used.

# torchvision's `CIFAR10.url`, said again so that a machine without a network need not import torchvision to learn it.
DOWNLOAD_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
NUM_CLASSES = 10
IMAGES_PER_FILE = 10_000
RECORD_BYTES = 1 + 3 * 32 * 32

PICKLED = "cifar-10-batches-py"
BINARY = "cifar-10-batches-bin"

# Each binary file's sha256, the test images last. A file is nothing but labels and pixels, so that a match
# vouches for every one of them. The files measured have the SHA-1s that MXNet publishes for its CIFAR10.
BINARY_FILES = (
    ("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
    ("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
    ("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
    ("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
    ("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
    ("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
)

SAMPLE = Path(__file__).parent / "cifar10_sample"
SAMPLE_SHA256 = "18f2ab60d0eed6a364e51ea541fe55dd9b0919178269bbf79fb1b92d88499e36"
SHEET_ROWS, SHEET_COLUMNS = 20, 25

# An address that does not answer is given up after the first; the second ends a look-up of the name that
# hangs and a row of such addresses, so that a search without a network starts within 10 s.
CONNECT_SECONDS = 5.0
REACH_SECONDS = 8.0
# A download from which nothing has come for so long is taken for dead.
STALL_SECONDS = 10.0


class Unavailable(Exception):
    """The complete data set cannot be downloaded; the text says why."""


def cifar10(data_dir: Path | None) -> Splits:
    """CIFAR-10: uint8 images of shape (N, 3, 32, 32), RGB, and int64 classes of shape (N,), 0 to 9.

    Args:
        data_dir: a folder with the complete data set, in torchvision's layout or the data set's own binary
            one. None takes it from `$TUNER_CACHE/cifar10` (`~/.cache/tuner/cifar10`), downloading it there
            once a node; where that is impossible, the sample of 5,000 and 1,000 images, and `notice` says so.

    Raises:
        DataError: `data_dir` holds no CIFAR-10, or a file of it is truncated or altered.
    """
    if data_dir is not None:
        return load_complete(data_dir)
    cache = Path(os.environ.get("TUNER_CACHE") or "~/.cache/tuner").expanduser() / "cifar10"
    try:
        return load_cached(cache) or download_once(cache)
    except Unavailable as reason:
        return load_sample(str(reason))


def load_complete(place: Path) -> Splits:
    """The complete data set, each file checked, from `place` or the layout's folder in it, in 0.5 s.

    Raises:
        DataError: neither layout is there, or a file is missing, truncated or altered.
    """
    for layout, first in ((PICKLED, "data_batch_1"), (BINARY, "data_batch_1.bin")):
        for folder in (place / layout, place):
            # os.path, because Path raises where a folder may not be searched.
            if os.path.isfile(folder / first):
                train, test = read_layout(folder, layout)
                return Splits(train, test=test, source=f"CIFAR-10, complete, from {folder}")
    raise DataError(
        f"no CIFAR-10 in {place}{'' if os.path.isdir(place) else ' (no such folder)'}: looked there and in "
        f"its subfolders for {PICKLED} (data_batch_1 to 5, test_batch) and {BINARY} (data_batch_1.bin to 5, "
        "test_batch.bin); unpack cifar-10-python.tar.gz or cifar-10-binary.tar.gz there, or give no data "
        "folder to have it downloaded"
    )


def read_layout(folder: Path, layout: str) -> tuple[Arrays, Arrays]:
    """The training and the test images from a folder of the layout PICKLED or BINARY."""
    read: Callable[[Path, str], tuple[np.ndarray, np.ndarray]]
    if layout == PICKLED:
        from torchvision.datasets import CIFAR10  # type: ignore[import-untyped]

        files, read = (*CIFAR10.train_list, *CIFAR10.test_list), read_pickled
    else:
        files, read = BINARY_FILES, read_binary
    # Reading and hashing release the interpreter lock.
    with ThreadPoolExecutor(max_workers=4) as pool:
        parts = list(pool.map(lambda file: read(folder / file[0], file[1]), files))
    return join(parts[:-1]), join(parts[-1:])


def read_binary(path: Path, sha256: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (10000, 3072) and labels (10000,), uint8, from records of a label and the R, G and B planes.

    Raises:
        DataError: the file cannot be read, is truncated, has a label above 9 or is not the one of `sha256`.
    """
    content = read_bytes(path)
    count, rest = divmod(len(content), RECORD_BYTES)
    if rest:
        raise DataError(
            f"{path}: {len(content):,} bytes are no whole number of {RECORD_BYTES:,}-byte records: truncated?"
        )
    if count != IMAGES_PER_FILE:
        raise DataError(f"{path}: {count:,} records instead of {IMAGES_PER_FILE:,}: truncated?")
    records = np.frombuffer(content, np.uint8).reshape(count, RECORD_BYTES)
    labels = records[:, 0]
    if labels.max() >= NUM_CLASSES:
        worst = int(labels.argmax())
        raise DataError(f"{path}: record {worst:,} has the label {labels[worst]}, above 9: altered?")
    check_digest(path, content, "sha256", sha256)
    return records[:, 1:], labels


def read_pickled(path: Path, md5: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (10000, 3072) and labels (10000,), uint8, from a file of torchvision's layout.

    Raises:
        DataError: the file cannot be read, or is not the one of `md5`; it is not unpickled then, because
            unpickling runs whatever the file says.
    """
    content = read_bytes(path)
    check_digest(path, content, "md5", md5)
    entry = pickle.loads(content, encoding="latin1")
    return entry["data"], np.asarray(entry["labels"], np.uint8)


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def check_digest(path: Path, content: bytes, algorithm: str, expected: str) -> None:
    found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise DataError(
            f"{path}: truncated or altered: {len(content):,} bytes with {algorithm} {found}, not CIFAR-10's "
            f"{expected}; unpack the archive anew"
        )


def join(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> Arrays:
    images = np.concatenate([images for images, _ in parts]).reshape(-1, 3, 32, 32)
    return Arrays(images, np.concatenate([labels for _, labels in parts]).astype(np.int64))


def load_cached(cache: Path) -> Splits | None:
    """The data set in `cache`; None where there is none or a damaged one, which a download then replaces."""
    try:
        return load_complete(cache)
    except DataError:
        return None


def download_once(cache: Path) -> Splits:
    """The data set, downloaded into `cache` by the first process of a node that asks; the others wait for it.

    Raises:
        Unavailable: its host does not answer, the download fails or stalls, or `cache` cannot be written.
    """
    host = urlsplit(DOWNLOAD_URL).hostname
    # Before the lock: where there is no network, the processes of a node find that out side by side.
    if reason := why_unreachable(DOWNLOAD_URL):
        raise Unavailable(f"could not reach {host}: {reason}")
    partial = cache.with_name("cifar10.partial")
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{cache}.lock"):
            if splits := load_cached(cache):
                return splits
            # What a killed process left: whoever holds the lock is alone here.
            shutil.rmtree(partial, ignore_errors=True)
            download(partial)
            load_complete(partial)
            shutil.rmtree(cache, ignore_errors=True)
            partial.rename(cache)
            return load_complete(cache)
    # RuntimeError is torchvision's word for an archive of another md5.
    except (OSError, RuntimeError, HTTPException, DataError) as error:
        raise Unavailable(f"the download from {host} to {cache} failed: {error}") from error


def download(folder: Path) -> None:
    """Downloads and unpacks torchvision's archive, 170 MB, its md5 checked, into `folder`."""
    from torchvision.datasets import CIFAR10
    from torchvision.datasets.utils import download_and_extract_archive  # type: ignore[import-untyped]

    # torchvision opens its connections without a timeout, so that only the default can end a stalled one.
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(STALL_SECONDS)
    try:
        download_and_extract_archive(
            DOWNLOAD_URL, folder, filename=CIFAR10.filename, md5=CIFAR10.tgz_md5, remove_finished=True
        )
    finally:
        socket.setdefaulttimeout(before)


def why_unreachable(url: str) -> str:
    """Why `url` gives no answer, or "" if it does; decided within REACH_SECONDS. Honours `https_proxy`."""
    # A whole request instead of a bare connection: it finds a proxy that answers for a host it cannot reach.
    request = urllib.request.Request(url, method="HEAD", headers={"User-Agent": "tuner"})
    answers: queue.SimpleQueue[str] = queue.SimpleQueue()
    start = time.monotonic()

    def ask() -> None:
        try:
            urllib.request.urlopen(request, timeout=CONNECT_SECONDS).close()
            answers.put("")
        # ValueError is what a malformed proxy setting raises.
        except (OSError, HTTPException, ValueError) as error:
            cause = getattr(error, "reason", error)
            reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
            answers.put(f"{reason} after {time.monotonic() - start:.0f} s")

    # A look-up of the host's name takes no timeout: it is left behind in its thread.
    threading.Thread(target=ask, name="cifar10-reach", daemon=True).start()
    try:
        return answers.get(timeout=REACH_SECONDS)
    except queue.Empty:
        return f"no answer after {REACH_SECONDS:.0f} s"


def load_sample(reason: str) -> Splits:
    """The sample that ships with this file; `reason` says why it stands in for the complete data set.

    Raises:
        DataError: a file of the sample is missing or altered.
    """
    train, test = read_sheets(SAMPLE, "train"), read_sheets(SAMPLE, "test")
    if (found := digest(train, test)) != SAMPLE_SHA256:
        raise DataError(f"{SAMPLE}: altered: sha256 {found}, not {SAMPLE_SHA256}; reinstall tuner")
    return Splits(
        train,
        test=test,
        source="CIFAR-10, the first 500 training and 100 test images of each class, shipped in "
        "search_spaces/datasets/cifar10_sample",
        notice=f"CIFAR-10 sample: {len(train):,} training and {len(test):,} test images that ship with "
        f"tuner, not the whole 60,000 ({reason}); --data-dir takes the whole set",
    )


def read_sheets(folder: Path, split: str) -> Arrays:
    """The images of `split`'s sheets, each read row by row, and the classes of its file of labels.

    Raises:
        DataError: a file is missing, is no image or has not a class for each image.
    """
    path = folder / f"{split}_labels.txt"
    labels = np.frombuffer(read_bytes(path).strip(), np.uint8) - ord("0")
    num_sheets, rest = divmod(len(labels), SHEET_ROWS * SHEET_COLUMNS)
    if rest or not num_sheets:
        raise DataError(f"{path}: {len(labels):,} classes fill no whole number of sheets; reinstall tuner")
    sheets = []
    for number in range(num_sheets):
        path = folder / f"{split}_{number}.webp"
        try:
            with Image.open(path) as image:
                sheet = np.asarray(image)
            sheets.append(sheet.reshape(SHEET_ROWS, 32, SHEET_COLUMNS, 32, 3))
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read: {error}; reinstall tuner") from error
    images = np.stack(sheets).transpose(0, 1, 3, 5, 2, 4).reshape(-1, 3, 32, 32)
    return Arrays(images, labels.astype(np.int64))


def digest(train: Arrays, test: Arrays) -> str:
    """The sha256 of both parts, of each the images (N, 3, 32, 32) and then the classes, a byte a value."""
    state = hashlib.sha256()
    for part in (train, test):
        state.update(part.inputs.tobytes())
        state.update(part.targets.astype(np.uint8).tobytes())
    return state.hexdigest()
