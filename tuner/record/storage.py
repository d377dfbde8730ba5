"""Results in an object store: `--results s3://bucket/folder`, or any other URI that pyarrow opens.

A store has no appending and no renaming, so a search works in a folder of this machine, its working copy, and a thread
keeps the store equal to it: the journal within about a second, checkpoints as they come and go. A killed search leaves
its last second here alone: a resume on this machine uploads it, and one on another machine goes on from what the store
has.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import threading
import time
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Protocol

from tuner.errors import RequestError
from tuner.record.files import write_atomically

logger = logging.getLogger(__name__)
LEAST_PAUSE_S = 1.0  # between two looks for what has changed
LAST_TRIES_S = 30.0  # a store that fails is tried again for this long when a search ends
JOURNAL = "journal.jsonl"
OF_THIS_MACHINE = (".lock", ".driver")  # who runs it here


def is_uri(results: str) -> bool:
    """Whether results lie in an object store rather than in a folder."""
    return re.match(r"[a-z][a-z0-9]*://", results) is not None


def local_root(results: str) -> Path:
    """The folder that experiments are written to on this machine: `results` itself, or the working copy of a URI."""
    if not is_uri(results):
        return Path(results)
    cache = Path(os.environ.get("TUNER_CACHE") or "~/.cache/tuner").expanduser()
    return cache / "results" / hashlib.sha256(results.rstrip("/").encode()).hexdigest()[:16]


class Store:
    """An object store's folder of experiments.

    Raises:
        RequestError: there is no such kind of store, or it does not answer, or refuses.
    """

    def __init__(self, uri: str) -> None:
        from pyarrow.fs import FileSystem

        self.uri = uri
        try:
            self.filesystem, self.root = FileSystem.from_uri(uri)
        except (OSError, ValueError) as error:
            raise RequestError(f"--results {uri}: {_first_line(error)}; give a folder, s3://… or gs://…") from None

    def path(self, *parts: str) -> str:
        """As the store's file system names it."""
        return str(PurePosixPath(self.root, *parts))

    def check(self) -> None:
        """RequestError where nothing can be written."""
        probe = self.path(f".tuner-{os.getpid()}")
        try:
            self._write(probe, b"")
            self.filesystem.delete_file(probe)
        except OSError as error:
            what = f"cannot be written to ({_first_line(error)}); check the address, the bucket and the credentials"
            raise RequestError(f"--results {self.uri}: {what}") from None

    def names(self) -> list[str]:
        """The experiments there, the one whose journal was written to last at the end."""
        found = [entry for entry in self._entries(self.root, recursive=False) if entry.type.name == "Directory"]
        journals = self.filesystem.get_file_info([self.path(entry.base_name, JOURNAL) for entry in found])
        there = [journal for journal in journals if journal.type.name == "File"]
        return [PurePosixPath(journal.path).parent.name for journal in sorted(there, key=lambda info: info.mtime_ns)]

    def bring(self, name: str, folder: Path) -> None:
        """Makes `folder` the newest copy of the experiment; where it is ahead of the store, it stays.

        Raises:
            RequestError: both have events that the other has not, or the store fails.
        """
        try:
            remote, local = self.read(name, JOURNAL), _content(folder / JOURNAL)
            if local.startswith(remote):
                return
            if not remote.startswith(local):
                raise RequestError(
                    f"--resume {name}: {self.uri} and the working copy {folder} went different ways: a search was "
                    f"resumed elsewhere before the last one here was uploaded; remove {folder} to go on from the store"
                )
            self._download(name, folder)
        except OSError as error:
            raise RequestError(f"--results {self.uri}: cannot be read ({_first_line(error)})") from None

    def _download(self, name: str, folder: Path) -> None:
        for entry in self._entries(self.path(name), recursive=True):
            relative = PurePosixPath(entry.path).relative_to(self.path(name))
            if entry.type.name == "File":
                target = folder / relative
                target.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(target, self.read(name, str(relative)))

    def read(self, name: str, relative: str) -> bytes:
        """A file of the experiment; empty where there is none."""
        try:
            with self.filesystem.open_input_stream(self.path(name, relative)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return b""

    def upload(self, name: str, relative: str, content: bytes) -> None:
        """Writes a file of the experiment whole: a reader of the store meets the old content or the new."""
        self._write(self.path(name, relative), content)

    def remove(self, name: str, relative: str) -> None:
        """Removes a file of the experiment, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_file(self.path(name, relative))

    def _write(self, path: str, content: bytes) -> None:
        try:
            stream = self.filesystem.open_output_stream(path)
        except FileNotFoundError:  # a store with real folders, as HDFS
            self.filesystem.create_dir(str(PurePosixPath(path).parent), recursive=True)
            stream = self.filesystem.open_output_stream(path)
        with stream:
            stream.write(content)

    def _entries(self, path: str, *, recursive: bool) -> list[Any]:
        from pyarrow.fs import FileSelector

        return list(self.filesystem.get_file_info(FileSelector(path, allow_not_found=True, recursive=recursive)))


class Uploads(Protocol):
    """Where a mirror puts files."""

    uri: str

    def upload(self, name: str, relative: str, content: bytes) -> None: ...

    def remove(self, name: str, relative: str) -> None: ...


class Mirror:
    """Keeps the store equal to an experiment's folder, from a thread of its own, until it is left.

    A look costs a `stat` a file. A file is uploaded whole, so the pause grows with the time an upload takes: a journal
    of 10,000 trials, some 10 MB, goes up less often than one of ten. A store that fails is tried again: the search
    goes on with its working copy.
    """

    def __init__(self, store: Uploads, name: str, folder: Path) -> None:
        self._store, self._name, self._folder = store, name, folder
        self._uploaded: dict[str, tuple[int, int]] = {}
        self._failing = ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tuner-mirror", daemon=True)

    def __enter__(self) -> Mirror:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        last = time.monotonic() + LAST_TRIES_S
        while not self.pushed() and time.monotonic() < last:
            time.sleep(LEAST_PAUSE_S)
        if self._failing:
            logger.warning(
                "not all of %s is in %s (%s); it is whole in %s, and --resume %s uploads it",
                self._name,
                self._store.uri,
                self._failing,
                self._folder,
                self._name,
            )

    def _run(self) -> None:
        pause = LEAST_PAUSE_S
        while not self._done.wait(pause):
            started = time.monotonic()
            self.pushed()
            pause = max(LEAST_PAUSE_S, 10 * (time.monotonic() - started))

    def pushed(self) -> bool:
        """Uploads what has changed since the last time, removes what is gone; whether all of it could be."""
        try:
            there = files_of(self._folder)
            for relative, mark in there.items():
                if self._uploaded.get(relative) == mark:
                    continue
                try:
                    content = (self._folder / relative).read_bytes()
                except FileNotFoundError:
                    continue  # a checkpoint that Ray has just removed
                self._store.upload(self._name, relative, content)
                self._uploaded[relative] = mark
            for relative in self._uploaded.keys() - there.keys():
                self._store.remove(self._name, relative)
                del self._uploaded[relative]
        except OSError as error:
            if not self._failing:
                logger.warning("%s does not take %s: %s; trying on", self._store.uri, self._name, _first_line(error))
            self._failing = _first_line(error)
            return False
        self._failing = ""
        return True


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below the folder, with its size and time; the journal last, so that what it names is there before."""
    found: dict[str, tuple[int, int]] = {}
    for path in sorted(folder.rglob("*"), key=lambda each: (each.name == JOURNAL, each)):
        relative = path.relative_to(folder).as_posix()
        with contextlib.suppress(FileNotFoundError):
            stat = path.stat()
            if path.is_file() and relative not in OF_THIS_MACHINE:
                found[relative] = stat.st_size, stat.st_mtime_ns
    return found


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
