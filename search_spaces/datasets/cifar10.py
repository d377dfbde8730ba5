"""Loads CIFAR-10 into memory: from a folder, this node's cache or a download, or else the sample that tuner ships."""

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
    partial = cache.with_name("cifar10.partial")
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{cache}.lock"):
            if splits := load_cached(cache):
                return splits
            # Removes the rest of a killed process. No other process uses it, because this one has the lock.
            shutil.rmtree(partial, ignore_errors=True)
            download(partial)
            load_complete(partial)
            shutil.rmtree(cache, ignore_errors=True)
            partial.rename(cache)
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
