"""Lets a trial's script start processes by `spawn` or `forkserver`, which run the script's file again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing import spawn
from typing import Any


def running_in_spawned(run: Callable[[], None]) -> Callable[[str], dict[str, Any]]:
    """Return a `multiprocessing.spawn.get_preparation_data`, with which spawned processes call a function first.

    The function, which must be picklable, takes the place of the file of `__main__`. It has to set
    `sys.modules["__mp_main__"]`, in which pickle looks up what the file defines.
    """
    return partial(_data, spawn.get_preparation_data, run)


def _data(original: Callable[[str], dict[str, Any]], run: Callable[[], None], name: str) -> dict[str, Any]:
    data = {key: value for key, value in original(name).items() if not key.startswith("init_main_")}
    return {**data, "run": _CalledWhenUnpickled(run, data["sys_path"], os.getcwd())}


class _CalledWhenUnpickled:
    """Calls a function when it is unpickled, in a folder and with a path for imports."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return _call_in, self.arguments


def _call_in(run: Callable[[], None], path: list[str], folder: str) -> None:
    sys.path[:] = path
    os.chdir(folder)
    run()
