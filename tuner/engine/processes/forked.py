"""Runs a command's Python program as a fork of a trial's process, which has imported what earlier trials imported.

A new Python would first import torch. As in a new one, the program has its own `__main__`, arguments, folder,
environment and streams. What the trial's process has imported stays imported, except
modules of the search's folder, and those with the name of a module in the program's own.
"""

from __future__ import annotations

import atexit
import builtins
import importlib
import json
import os
import pickle
import random
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import ray
from ray.train._internal import session as ray_session
from wrapt import when_imported

from tuner.engine.processes import child
from tuner.engine.processes.keeper import close_others, received
from tuner.spec.command_process import VARIABLE, is_own_python, search_path
from tuner.spec.script import CONNECTED

MODULES = "modules.json"  # in the trial's folder: what the program has imported, for the service
PACKAGE = str(Path(__file__).parents[2])
RAY = os.path.dirname(ray.__file__)  # has packages of Ray's own, which precede those of the environment
ABOVE = PACKAGE, "<frozen runpy>", runpy.__file__  # of the calls that lead to the program; no traceback shows them


def starter(program: str) -> Callable[..., Any]:
    """Return what starts a command, as `subprocess.Popen` does; call it before the trial has a reporter and a folder.

    It is `Popen` itself unless `program` is the Python of this environment.
    """
    is_own = is_own_python(program, search_path())
    return Spare().start if is_own and threading.active_count() == 1 else subprocess.Popen


class Spare:
    """A fork of this process, which waits for its program."""

    def __init__(self) -> None:
        self.channel, theirs = socket.socketpair()
        if not (pid := os.fork()):
            try:
                self.channel.close()
                run(theirs)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(70)  # `run` does not return
        theirs.close()
        self.pid = pid

    def start(
        self, words: Sequence[str], *, env: Mapping[str, str], **options: Any
    ) -> subprocess.Popen[bytes] | Forked:
        """Run `words` in the fork and return a `Forked`; if Python gets other options, return a Popen."""
        arguments = [*words[1:]]
        while arguments[:1] == ["-u"]:  # as the fork's streams are
            del arguments[0]
        is_file = bool(arguments) and arguments[0].endswith(".py") and os.path.isfile(arguments[0])
        with self.channel:
            if not is_file and not (len(arguments) > 1 and arguments[0] == "-m"):
                self.channel.close()
                os.waitpid(self.pid, 0)
                return subprocess.Popen(words, env=env, **options)
            (out, to_out), (err, to_err) = pipes = os.pipe(), os.pipe()
            with Connection(os.dup(self.channel.fileno())) as connection:
                connection.send((arguments, dict(env), os.getcwd()))
            for _, end in pipes:
                socket.send_fds(self.channel, [b"f"], [end])
                os.close(end)
        return Forked(self.pid, out, err)


class Forked:
    """A running program: what commands use of `subprocess.Popen`."""

    def __init__(self, pid: int, out: int, err: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout, self.stderr = (open(fd, "rb", buffering=0) for fd in (out, err))

    def poll(self) -> int | None:
        return self._reaped(os.WNOHANG)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int | None:
        return self._reaped(0)

    def _reaped(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def tell_service(folder: Path) -> None:
    """In the trial's process: tell the service what the program of a trial's `folder` has imported by its first report.

    Programs that start later find it imported.
    """
    try:
        told = json.loads((folder / MODULES).read_text())
    except (OSError, ValueError):  # the program is no fork, or has not reported
        return
    child.to_caller.send_bytes(pickle.dumps((child.MODULES, *told)))


def run(channel: socket.socket) -> NoReturn:
    """In the fork: wait for a program, run it as Python would, and end this process."""
    try:
        with Connection(os.dup(channel.fileno())) as connection:
            arguments, environment, folder = connection.recv()
        for number in (1, 2):
            os.dup2(received(channel), number)
    except (EOFError, OSError, ValueError):  # the trial needs no program
        os._exit(0)
    os.setsid()
    close_others()
    forget(os.getcwd(), environment["PYTHONPATH"].split(os.pathsep))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:0] = map(os.path.abspath, environment["PYTHONPATH"].split(os.pathsep))
    ray_session._session = None
    child.open_streams(unbuffered=True)
    random.seed()
    when_imported("numpy")(lambda numpy: numpy.random.seed())
    when_imported("torch")(lambda torch: torch.default_generator.seed())  # else each trial has the same first weights
    tell_modules()
    importlib.import_module(CONNECTED).install()
    with child.program():
        code = exit_code(run_module if arguments[0] == "-m" else run_file, arguments)
    os._exit(code)


def forget(folder: str, paths: Sequence[str]) -> None:
    """Take the search's folder, its modules and `paths` away: the program imports from the trial's copy of them."""
    others = {"", folder, *map(os.path.abspath, paths)}
    sys.path[:] = [each for each in sys.path if each not in others and not each.startswith(RAY)]
    for name, module in list(sys.modules.items()):
        file = str(child.attributes_of(module).get("__file__"))
        is_theirs = name.partition(".")[0] not in sys.stdlib_module_names and "-packages/" not in file
        if is_theirs and file.startswith(f"{folder}/") and not file.startswith(f"{PACKAGE}/"):
            del sys.modules[name]


def tell_modules() -> None:
    """Let the program write down at its first report, or at its end, what it has imported."""
    modules, before, path = set(sys.modules), child.environment(), Path(os.environ[VARIABLE], MODULES)
    reporting: Any = importlib.import_module("tuner_trial")
    report = reporting.report

    def tell() -> None:
        if not path.exists():
            path.write_text(json.dumps(child.new_modules(modules, before)))

    def telling(*arguments: Any, **options: Any) -> None:
        tell()
        report(*arguments, **options)

    reporting.report = telling
    atexit.register(tell)


def run_file(arguments: list[str]) -> None:
    path = os.path.abspath(arguments[0])
    sys.argv = arguments
    begin_in(os.path.dirname(os.path.realpath(path)))
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main).update(__file__=path, __loader__=SourceFileLoader("__main__", path), __builtins__=builtins)
    exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), vars(main))


def run_module(arguments: list[str]) -> None:
    _, name, *rest = arguments
    sys.argv = ["-m", *rest]
    begin_in(os.getcwd())
    sys.modules["__main__"] = ModuleType("__main__")
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # `run_module` would take `__main__` back at its end


def begin_in(folder: str) -> None:
    """Put a folder first in `sys.path`; its modules replace others of their names that are imported already."""
    sys.path.insert(0, folder)
    own = {entry.name.removesuffix(".py") for entry in os.scandir(folder) if is_module(entry)} - sys.stdlib_module_names
    for name in [each for each in sys.modules if each.partition(".")[0] in own]:
        del sys.modules[name]


def is_module(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(".py") or os.path.isfile(os.path.join(entry.path, "__init__.py"))


def exit_code(run: Callable[[list[str]], None], arguments: list[str]) -> int:
    """Run the program; return the exit code that Python would have, and print what it would print."""
    try:
        run(arguments)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        frames = error.__traceback__
        while frames and frames.tb_frame.f_code.co_filename.startswith(ABOVE):
            frames = frames.tb_next
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        return 1
    return 0
