"""Keeps results in an object store: `--results s3://bucket/folder`, or any other URI that pyarrow opens.

A store cannot append to files or rename them. So a search works in a folder on this machine, its working copy, and a
thread uploads the changes. After a search is killed, the store may lack the latest changes.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import secrets
import shutil
import threading
import time
from pathlib import Path, PurePosixPath
from stat import S_ISREG
from types import TracebackType
from typing import Any, BinaryIO

from tuner.errors import RequestError
from tuner.record.format import JOURNAL
from tuner.record.storage.files import asides_of, is_inside, replacing
from tuner.record.storage.made import below
from tuner.record.storage.trial_files import DATA

logger = logging.getLogger(__name__)
LEAST_PAUSE_S = 1.0  # minimum seconds between two checks for changed files
LAST_TRIES_S = 30.0  # how many seconds failed uploads are retried when a search ends
# Not uploaded: files that lock the experiment on this machine, what trials have downloaded, copies beside `best/`.
OF_THIS_MACHINE = (".lock", ".driver", DATA, *(aside.name for aside in asides_of(Path("best"))))
PART_BYTES = 10 << 20  # bytes per read and write; pyarrow sends files to S3 in parts of this size
MAX_BUFFERED_PARTS = 8  # by pyarrow; without a limit, the upload of a 500 MB file takes 900 MB of memory


class ObjectStore:
    """A folder of experiments in an object store; raises RequestError if pyarrow cannot open the URI."""

    def __init__(self, uri: str) -> None:
        from pyarrow.fs import FileSystem

        self.uri = uri
        try:
            self.filesystem, self.root = FileSystem.from_uri(uri)
        except (OSError, ValueError) as error:
            raise RequestError(f"--results {uri}: {_first_line(error)}; give a folder, s3://… or gs://…") from None

    def path(self, *parts: str) -> str:
        """Joins names to a path below the store's root."""
        return str(PurePosixPath(self.root, *parts))

    def check(self, name: str) -> None:
        """Raises RequestError if the store has a key at or below `name`, or else if it cannot be written to."""
        probe = f".tuner-{secrets.token_hex(8)}"
        try:
            taken = self.filesystem.get_file_info(self.path(name)).type.name != "NotFound"
            if not taken:
                self.upload("", probe, io.BytesIO())
                self.remove("", probe)
        except OSError as error:
            what = f"cannot be written to ({_first_line(error)}); check the address, the bucket and the credentials"
            raise RequestError(f"--results {self.uri}: {what}") from None
        if taken:
            instead = f"continue it with --resume {name}, or " * (name in self.names())
            raise RequestError(f"--name {name}: {self.path(name)} already exists; {instead}give another name")

    def names(self) -> list[str]:
        """Returns the names of the experiments, sorted by the last write to their journals, the newest last."""
        entries = self._entries(self.root, recursive=False)
        folders = [entry for entry in entries if entry.type.name == "Directory" and is_inside(entry.base_name)]
        journals = self.filesystem.get_file_info([self.path(entry.base_name, JOURNAL) for entry in folders])
        there = [journal for journal in journals if journal.type.name == "File"]
        return [PurePosixPath(journal.path).parent.name for journal in sorted(there, key=lambda info: info.mtime_ns)]

    def bring(self, name: str, folder: Path) -> None:
        """Downloads an experiment unless `folder` has all of the store's journal; RequestError if the two diverged."""
        try:
            remote, journal = self.read(name, JOURNAL), folder / JOURNAL
            local = journal.read_bytes() if journal.exists() else b""
            if local and local.startswith(remote):
                return
            if not remote.startswith(local):
                raise RequestError(
                    f"--resume {name}: {self.uri} and the working copy {folder} went different ways: the search was "
                    f"resumed elsewhere before this copy was uploaded; to continue from the store, remove {folder}"
                )
            self._download(name, folder)
        except OSError as error:
            raise RequestError(f"--results {self.uri}: cannot be read ({_first_line(error)})") from None

    def _download(self, name: str, folder: Path) -> None:
        """Downloads all files, the journal last, so that the next `bring` repeats an interrupted download."""
        entries = [each for each in self._entries(self.path(name), recursive=True) if each.type.name == "File"]
        names = [str(PurePosixPath(each.path).relative_to(self.path(name))) for each in entries]
        for relative in sorted(names, key=lambda relative: (relative == JOURNAL, relative)):
            if not is_inside(relative):
                raise RequestError(f"--results {self.uri}: {name} has a file {relative!r} outside its folder")
            with self.filesystem.open_input_stream(self.path(name, relative)) as stream:
                self._save(stream, folder, PurePosixPath(relative))

    def _save(self, stream: Any, folder: Path, relative: PurePosixPath) -> None:
        """Writes a stream to a file below `folder`; RequestError if a link or a file is where it needs a folder."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            with below(folder.parent, folder.name, *relative.parts[:-1], make=True) as fd:
                with replacing(Path(relative.name), fd) as file:
                    shutil.copyfileobj(stream, file, PART_BYTES)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR):
                raise
            what = (
                "it or a folder above it is a link, or of another kind than in the store; move it away, and try again"
            )
            raise RequestError(f"{folder / relative}: {what}") from None

    def read(self, name: str, relative: str) -> bytes:
        """Returns the content of an experiment's file in the store; empty if the file does not exist."""
        try:
            with self.filesystem.open_input_stream(self.path(name, relative)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return b""

    def upload(self, name: str, relative: str, content: BinaryIO) -> None:
        """Writes a file to the store. In an object store, readers see its old content until the new one is whole."""
        path = self.path(name, relative)
        try:
            stream = self.filesystem.open_output_stream(path)
        except FileNotFoundError:  # the file's folder is missing, in a store with real folders, such as HDFS
            self.filesystem.create_dir(str(PurePosixPath(path).parent), recursive=True)
            stream = self.filesystem.open_output_stream(path)
        with stream:
            for number, part in enumerate(iter(lambda: content.read(PART_BYTES), b""), 1):
                stream.write(part)
                if number % MAX_BUFFERED_PARTS == 0:
                    stream.flush()  # frees memory: waits until the store has all parts so far

    def remove(self, name: str, relative: str) -> None:
        """Removes a file of the experiment from the store if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_file(self.path(name, relative))

    def _entries(self, path: str, *, recursive: bool) -> list[Any]:
        from pyarrow.fs import FileSelector

        return list(self.filesystem.get_file_info(FileSelector(path, allow_not_found=True, recursive=recursive)))


class Uploader:
    """Uploads an experiment's changed files from a thread while the `with` block runs, and once more when it ends.

    Each upload sends whole files, so the thread then pauses ten times as long as the uploads took; it retries failures.
    """

    def __init__(self, store: ObjectStore, name: str, folder: Path) -> None:
        self._store, self._name, self._folder = store, name, folder
        self._uploaded: dict[str, tuple[int, int]] = {}
        self._failing = ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tuner-mirror", daemon=True)

    def __enter__(self) -> Uploader:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        last = time.monotonic() + LAST_TRIES_S
        while not self.pushed() and time.monotonic() < last:
            time.sleep(LEAST_PAUSE_S)
        if self._failing:
            what = f"not all of {self._name} is in {self._store.uri} ({self._failing})"
            logger.warning("%s; it is whole in %s, and --resume %s uploads it", what, self._folder, self._name)

    def _run(self) -> None:
        pause = LEAST_PAUSE_S
        while not self._done.wait(pause):
            started = time.monotonic()
            self.pushed()
            pause = max(LEAST_PAUSE_S, 10 * (time.monotonic() - started))

    def pushed(self) -> bool:
        """Uploads changed files and removes deleted files from the store; returns whether all of this succeeded."""
        try:
            there = files_of(self._folder)
            for relative, mark in there.items():
                if self._uploaded.get(relative) == mark:
                    continue
                try:
                    content = open(self._folder / relative, "rb")
                except FileNotFoundError:
                    continue  # Ray or a trial has just removed this file
                with content:
                    # The journal grows meanwhile; new lines may name checkpoints not yet uploaded, and are left out.
                    part = io.BytesIO(content.read(mark[0])) if relative == JOURNAL else content
                    self._store.upload(self._name, relative, part)
                self._uploaded[relative] = mark
            for relative in self._uploaded.keys() - there.keys():
                self._store.remove(self._name, relative)
                del self._uploaded[relative]
        except OSError as error:
            if not self._failing:
                logger.warning("%s: cannot upload %s: %s; retrying", self._store.uri, self._name, _first_line(error))
            self._failing = _first_line(error)
            return False
        self._failing = ""
        return True


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Returns the files below the folder that are to be uploaded, with size in bytes and modification time in ns."""
    journal = _mark(folder / JOURNAL)  # measured first, listed last, so the checkpoints it names are uploaded first
    # `os.walk` skips folders that a trial renames or deletes meanwhile.
    names = [Path(place, name).relative_to(folder).as_posix() for place, _, files in os.walk(folder) for name in files]
    left_out = {*OF_THIS_MACHINE, JOURNAL}
    marks = {name: _mark(folder / name) for name in sorted(names) if name.partition("/")[0] not in left_out}
    return {name: mark for name, mark in {**marks, JOURNAL: journal}.items() if mark}


def _mark(path: Path) -> tuple[int, int] | None:
    """Returns a file's size and modification time; None if the path is missing, a link, or no regular file."""
    try:
        stat = path.lstat()
    except FileNotFoundError:
        return None
    return (stat.st_size, stat.st_mtime_ns) if S_ISREG(stat.st_mode) else None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
