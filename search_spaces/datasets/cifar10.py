"""Loads CIFAR-10 into memory: from a folder, this node's cache or a download, or else the sample that tuner ships."""

from __future__ import annotations

import hashlib
import os
import pickle
import queue
import socket
import stat
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

from tuner.record.storage.made import MadeFolder, stale_folders, temporary_folder
from tuner.training.data import Arrays, DataError, Splits

NUM_CLASSES = 10
RECORD_BYTES = 1 + 3 * 32 * 32
MOST_BYTES = 32 << 20  # the most bytes to read of a file; the largest file of the data set has 31,035,999

PARTIAL = "cifar10-partial-"  # begins the name of a download's temporary folder
PICKLED = "cifar-10-batches-py"
BINARY = "cifar-10-batches-bin"

# The sha256 of each binary file, the test images last. A file contains only labels and pixels, so a match proves all of
# them. The sums were computed from files with the SHA-1 sums that MXNet publishes for its CIFAR10.
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
# A copy of torchvision's `CIFAR10.url`, so that a machine without a network need not import torchvision.
DOWNLOAD_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
# CONNECT_SECONDS is the timeout per address. REACH_SECONDS limits the whole attempt, also if the look-up of the name
# hangs or the name has several addresses. So a search without a network starts within 10 s.
CONNECT_SECONDS = 5.0
REACH_SECONDS = 8.0
# A download fails if it receives no data for this time.
STALL_SECONDS = 10.0


class Unavailable(Exception):
    """The complete data set cannot be downloaded; the text says why."""


def cifar10(data_dir: Path | None) -> Splits:
    """CIFAR-10: uint8 images of shape (N, 3, 32, 32), RGB, and int64 classes of shape (N,), 0 to 9.

    Args:
        data_dir: a folder with the complete data set, in torchvision's layout or in the data set's own binary layout.
            None uses `$TUNER_CACHE/cifar10` (`~/.cache/tuner/cifar10`), and downloads the data set into it once per
            node. If that fails, the result is a sample of 5,000 training and 1,000 test images, and `notice` says so.

    Raises:
        DataError: `data_dir` has no CIFAR-10, or one of its files is truncated or changed.
    """
    if data_dir is not None:
        return load_complete(data_dir)
    cache = Path(os.environ.get("TUNER_CACHE") or "~/.cache/tuner").expanduser() / "cifar10"
    try:
        return load_cached(cache) or download_once(cache)
    except Unavailable as reason:
        return load_sample(str(reason))


def load_cached(cache: Path) -> Splits | None:
    """The data set in `cache`; None if it is missing or damaged, so that a download replaces it."""
    try:
        return load_complete(cache)
    except DataError:
        return None


def download_once(cache: Path) -> Splits:
    """Downloads the data set into `cache`; only one process of a node downloads, and the others wait for it.

    Raises:
        Unavailable: the host does not answer, the download fails or stalls, or `cache` cannot be written.
    """
    host = urlsplit(DOWNLOAD_URL).hostname
    # Checked before the lock, so that without a network all processes of a node time out at the same time.
    if reason := why_unreachable(DOWNLOAD_URL):
        raise Unavailable(f"could not reach {host}: {reason}")
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{cache}.lock"):
            if splits := load_cached(cache):
                return splits
            for stale in stale_folders(cache.parent, PARTIAL):
                stale.remove()
            try:
                damaged = MadeFolder(cache.parent, cache.name) if os.path.lexists(cache) else None
            except OSError:
                why = "has no complete CIFAR-10, and tuner has not made it"
                raise Unavailable(f"{cache} {why}; rename it, or give --data-dir") from None
            with temporary_folder(PARTIAL, cache.parent) as made:
                download(made.path)
                load_complete(made.path)
                if damaged:
                    damaged.remove()
                made.take_place(cache.name)
                os.chmod(made.fd, 0o755)  # other users may read it
                made.keep()
            return load_complete(cache)
    # torchvision raises RuntimeError for an archive with a wrong md5.
    except (OSError, RuntimeError, HTTPException, DataError) as error:
        raise Unavailable(f"the download from {host} to {cache} failed: {error}") from error


def download(folder: Path) -> None:
    """Downloads torchvision's archive (170 MB), checks its md5, and unpacks it into `folder`."""
    from torchvision.datasets import CIFAR10  # type: ignore[import-untyped]
    from torchvision.datasets.utils import download_and_extract_archive  # type: ignore[import-untyped]

    # torchvision sets no timeout on its connections, so only the default timeout can end a stalled one.
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(STALL_SECONDS)
    try:
        download_and_extract_archive(
            DOWNLOAD_URL, folder, filename=CIFAR10.filename, md5=CIFAR10.tgz_md5, remove_finished=True
        )
    finally:
        socket.setdefaulttimeout(before)


def why_unreachable(url: str) -> str:
    """Why `url` does not answer, or "" if it does; returns within REACH_SECONDS. Uses `https_proxy`."""
    # A whole request, because a bare connection to a proxy also succeeds if the proxy cannot reach the host.
    request = urllib.request.Request(url, method="HEAD", headers={"User-Agent": "tuner"})
    answers: queue.SimpleQueue[str] = queue.SimpleQueue()
    start = time.monotonic()

    def ask() -> None:
        try:
            urllib.request.urlopen(request, timeout=CONNECT_SECONDS).close()
            answers.put("")
        # A malformed proxy setting raises ValueError.
        except (OSError, HTTPException, ValueError) as error:
            cause = getattr(error, "reason", error)
            reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
            waited = round(time.monotonic() - start)
            answers.put(f"{reason} after {waited} s" if waited else reason)

    # The look-up of the host's name has no timeout, so it runs in a thread that may stay behind.
    threading.Thread(target=ask, name="cifar10-reach", daemon=True).start()
    try:
        return answers.get(timeout=REACH_SECONDS)
    except queue.Empty:
        return f"no answer after {REACH_SECONDS:.0f} s"


def load_complete(place: Path) -> Splits:
    """Reads and checks the complete data set, from `place` or from its layout's subfolder; takes 0.5 s.

    Raises a DataError if `place` has neither layout, or a file is missing, truncated or changed.
    """
    for layout, first in ((PICKLED, "data_batch_1"), (BINARY, "data_batch_1.bin")):
        for folder in (place / layout, place):
            # os.path, because Path raises an error for a folder without permission.
            if os.path.isfile(folder / first):
                train, test = read_layout(folder, layout)
                return Splits(train, test=test, source=f"CIFAR-10, complete, from {folder}")
    raise DataError(
        f"no CIFAR-10 in {place}{'' if os.path.isdir(place) else ' (no such folder)'}: there is no {PICKLED} or "
        f"{BINARY} with all its files; unpack cifar-10-python.tar.gz there, or leave out --data-dir to download it"
    )


def read_layout(folder: Path, layout: str) -> tuple[Arrays, Arrays]:
    """Reads the training and test images from a folder with the layout PICKLED or BINARY."""
    read: Callable[[Path, str], tuple[np.ndarray, np.ndarray]]
    if layout == PICKLED:
        # Imported here, because torchvision takes a second to import; the binary layout and the sample do not need it.
        from torchvision.datasets import CIFAR10  # type: ignore[import-untyped]

        files, read = (*CIFAR10.train_list, *CIFAR10.test_list), read_pickled
    else:
        files, read = BINARY_FILES, read_binary
    # Threads help, because reading and hashing release the interpreter lock.
    with ThreadPoolExecutor(max_workers=4) as pool:
        parts = list(pool.map(lambda file: read(folder / file[0], file[1]), files))
    return join(parts[:-1]), join(parts[-1:])


def read_binary(path: Path, sha256: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 3072) and labels (N,), uint8, from records of a label and the R, G and B planes."""
    records = np.frombuffer(checked_bytes(path, "sha256", sha256), np.uint8).reshape(-1, RECORD_BYTES)
    return records[:, 1:], records[:, 0]


def read_pickled(path: Path, md5: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 3072) and labels (N,), uint8, from a file of torchvision's layout."""
    # A file of another digest is not unpickled, because a pickle can run any code.
    entry = pickle.loads(checked_bytes(path, "md5", md5), encoding="latin1")
    return entry["data"], np.asarray(entry["labels"], np.uint8)


def read_bytes(path: Path) -> bytes:
    """The content of a regular file; DataError if it cannot be read, or is larger than any file of the data set."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # reading a pipe could block
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DataError(f"{path}: not a regular file; unpack the archive again")
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > MOST_BYTES:
        raise DataError(f"{path}: above {MOST_BYTES:,} bytes, so not a file of CIFAR-10; unpack the archive again")
    return content


def checked_bytes(path: Path, algorithm: str, expected: str) -> bytes:
    """The content of a file; DataError if it cannot be read, or its digest is another than expected."""
    content = read_bytes(path)
    actual = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if actual != expected:
        raise DataError(
            f"{path}: truncated or altered: {len(content):,} bytes with {algorithm} {actual}, not CIFAR-10's "
            f"{expected}; unpack the archive again"
        )
    return content


def join(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> Arrays:
    images = np.concatenate([images for images, _ in parts]).reshape(-1, 3, 32, 32)
    return Arrays(images, np.concatenate([labels for _, labels in parts]).astype(np.int64))


def load_sample(reason: str) -> Splits:
    """Reads the sample that tuner ships; `reason`, in its notice, says why the complete data set is not used.

    Raises a DataError if a file of the sample is missing or changed.
    """
    train, test = read_sheets(SAMPLE, "train"), read_sheets(SAMPLE, "test")
    if (actual := digest(train, test)) != SAMPLE_SHA256:
        raise DataError(f"{SAMPLE}: altered: sha256 {actual}, not {SAMPLE_SHA256}; reinstall tuner")
    return Splits(
        train,
        test=test,
        source="CIFAR-10, the first 500 training and 100 test images of each class, shipped in "
        "search_spaces/datasets/cifar10_sample",
        notice=f"CIFAR-10 sample: {len(train):,} training and {len(test):,} test images that ship with "
        f"tuner, not the whole 60,000 ({reason}); give the whole data set with --data-dir",
    )


def read_sheets(folder: Path, split: str) -> Arrays:
    """Reads the images of a split from its sheets, row by row, and their classes from its file of labels.

    Raises a DataError if a file is missing or is not an image, or the number of labels does not fit the sheets.
    """
    path = folder / f"{split}_labels.txt"
    labels = np.frombuffer(read_bytes(path).strip(), np.uint8) - ord("0")
    num_sheets, rest = divmod(len(labels), SHEET_ROWS * SHEET_COLUMNS)
    if rest or not num_sheets:
        raise DataError(f"{path}: {len(labels):,} labels do not fill whole sheets; reinstall tuner")
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
    """The sha256 of both parts, one byte per value: the images (N, 3, 32, 32) of a part, then its classes."""
    state = hashlib.sha256()
    for part in (train, test):
        state.update(part.inputs.tobytes())
        state.update(part.targets.astype(np.uint8).tobytes())
    return state.hexdigest()
