"""The folder of --spaces: the own search spaces of the user who runs the service, named in requests by file names."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path, PurePath

from tuner.errors import RequestError
from tuner.serve.access.ownership import WRITE, refuse_others

FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.py")  # of a name; files of other names are left out
OTHERWISE = "use one that only you can change"


class OwnSpaces:
    """The `.py` files in the folder of --spaces; without a folder there are none.

    Searches run these files with all rights of the service's user, so no other user may be able to change them. The
    folder is checked at the start, and like the file again for each request.
    """

    def __init__(self, folder: str = "", results: Path = Path()) -> None:
        """Raises a RequestError if others can change the folder, or if it lies in `results`, or `results` in it."""
        self.folder: Path | None = None
        if not folder:
            return
        place, whole = Path(folder).absolute(), results.resolve()
        if not os.path.isdir(place):
            raise RequestError(f"--spaces {folder}: {place} is no folder; give the folder of your .py files")
        if place.is_symlink():
            raise RequestError(f"--spaces {folder}: is a symbolic link; give the folder {place.resolve()}")
        self.folder = place.resolve()
        if self.folder.is_relative_to(whole) or whole.is_relative_to(self.folder):
            raise RequestError(
                f"--spaces {folder}: must be neither the results folder {whole}, nor in it, nor above it, because "
                f"results are only data; give another folder"
            )
        try:
            self._check()
        except RequestError as error:
            raise RequestError(f"--spaces {folder}: {error}") from None

    def find(self, name: str) -> Path | None:
        """Returns the file that a request names; None if there is none. Raises RequestError if others can change it."""
        if self.folder is None or not FORM.fullmatch(name) or not os.path.isfile(self.folder / name):
            return None
        try:
            self._check()
            refuse_others(self.folder / name, WRITE, OTHERWISE)
        except OSError:  # it is gone now
            return None
        return self.folder / name

    def at(self, path: str) -> Path | None:
        """Returns what `find` does for the file at an absolute path, or for the name of a relative one."""
        recorded = PurePath(path)
        is_here = recorded.parent == self.folder or not recorded.is_absolute()
        return self.find(recorded.name) if is_here else None

    def files(self) -> dict[str, Path]:
        """Returns name -> path of each file that a request may name, sorted by name."""
        return self.scan()[0]

    def scan(self) -> tuple[dict[str, Path], list[str]]:
        """Returns what `files` does, and for each file that others can change, why no request may name it."""
        files, problems, names = {}, [], []
        with suppress(OSError):
            names = sorted(os.listdir(self.folder)) if self.folder else []
        for name in names:
            try:
                if file := self.find(name):
                    files[name] = file
            except RequestError as error:
                problems.append(str(error))
        return files, problems

    def _check(self) -> None:
        assert self.folder
        refuse_others(self.folder, WRITE, OTHERWISE)
        for above in self.folder.parents:
            refuse_others(above, WRITE, OTHERWISE, is_above=True)


NO_SPACES = OwnSpaces()
