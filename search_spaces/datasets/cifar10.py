"""CIFAR-10 in memory: from a folder, this node's cache, a download or, failing these, the shipped sample."""

from __future__ import annotations

import os
import queue
import shutil
import socket
import threading
import time
import urllib.request
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock

from search_spaces.datasets.cifar10_files import load_complete, load_sample
from tuner.training.data import DataError, Splits

# torchvision's `CIFAR10.url`, said again so that a machine without a network need not import torchvision to learn it.
DOWNLOAD_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
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
    from torchvision.datasets import CIFAR10  # type: ignore[import-untyped]
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
