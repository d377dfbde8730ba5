"""What runs in a trial's own process: connects it with its worker, calls the trial's function, ends the process."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import io
import os
import pickle
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import ray
from pyarrow.fs import LocalFileSystem
from ray import cloudpickle
from ray._private import ray_constants, worker
from ray.train._internal import session as ray_session
from ray.train._internal import storage as ray_storage
from ray.train._internal.session import TrialInfo, _TrainSession

from tuner.engine.processes.packed import Packed
from tuner.engine.processes.threads import limit_threads
from tuner.engine.processes.variables import ONE_THREAD, Changed, changes_of
from tuner.engine.workers import own_folder
from tuner.engine.workers.reports import errors_sent
from tuner.errors.sent import sent

THREADS_S = 5.0  # seconds until a trial's stderr says which threads keep it running
REPORT, MODULES, END = "report", "modules", "end"  # what a call sends
# What Ray Train's sessions have, and trials do not.
OF_TRAIN = "world_rank", "local_rank", "node_rank", "local_world_size", "world_size", "dataset_shard", "metadata"
GO, STOPPED, RAISED = "go", "stopped", "raised"  # the answers to REPORT


to_caller: Connection  # of the process that has made this process's call


class Call(NamedTuple):
    """A call `function(config, value)`: `function` is pickled, `shared` has the fields of the value's `Packed`.

    Of a call that is no trial, `trial`, `storage` and `checkpoint` are None.
    """

    shared: tuple[Any, ...]
    function: bytes
    config: dict[str, Any]
    environment: dict[str, str]
    folder: str  # in which the search was started
    session_folder: str = ""  # Ray's, on this node
    num_threads: int = 1  # a trial and a rank set their own
    trial: TrialInfo | None = None
    storage: Any = None
    checkpoint: Any = None


class Reports:
    """Takes the place of a session's `report` in the trial's own process: sends a report to the worker, and waits."""

    def __init__(self, session: _TrainSession, channel: Connection, modules: set[str]) -> None:
        self.session, self.channel, self.turn, self.stopped = session, channel, threading.Lock(), False
        self.before: tuple[set[str], dict[str, str]] | None = (modules, environment())

    def __call__(self, metrics: dict[str, Any], checkpoint: Any = None) -> None:
        """Send a report and wait for the worker's answer; SystemExit if Ray stops the trial."""
        with self.turn:
            if not self.stopped:
                if self.before:
                    self.tell_modules(*self.before)
                    self.before = None
                if checkpoint and isinstance(checkpoint.filesystem, LocalFileSystem):
                    checkpoint.path = os.path.abspath(checkpoint.path)  # the worker is in another folder
                self.channel.send_bytes(cloudpickle.dumps((REPORT, metrics, checkpoint)))
                answer, value = pickle.loads(self.channel.recv_bytes())
                if answer == RAISED:
                    raise value
                if answer == GO:
                    if value:
                        vars(self.session).update(loaded_checkpoint=value)
                    return
                self.stopped = True
        raise SystemExit(0)

    def tell_modules(self, modules: set[str], before: dict[str, str]) -> None:
        """Tell which installed packages the trial has imported: with the service's copy, later trials start faster."""
        installed, changes = new_modules(modules, before)
        if installed:
            self.channel.send_bytes(pickle.dumps((MODULES, installed, changes)))


def new_modules(modules: set[str], before: dict[str, str]) -> tuple[list[str], dict[str, str | None]]:
    """Return the installed modules that are not in `modules`, and the variables that have changed since `before`."""
    new = [(name, sys.modules[name]) for name in list(sys.modules) if name not in modules]
    installed = [name for name, module in new if "-packages" in str(attributes_of(module).get("__file__"))]
    return installed, changes_of(before, environment())


def attributes_of(module: Any) -> dict[str, Any]:
    """Return the attributes of a module; `getattr` would execute one that is imported when it is first used."""
    is_module = isinstance(module, ModuleType)  # `sys.modules` may have anything
    return object.__getattribute__(module, "__dict__") if is_module else {}


def environment() -> dict[str, str]:
    return {**os.environ, **dict.fromkeys(own_folder.SET, "")}


def session_of(call: Call) -> _TrainSession:
    """Return what Ray's functions for trials ask, such as `tune.get_context`, in the trial's own process."""
    session = _TrainSession.__new__(_TrainSession)
    vars(session).update(dict.fromkeys(OF_TRAIN), trial_info=call.trial, storage=call.storage)
    vars(session).update(loaded_checkpoint=call.checkpoint)
    return session


def prepare() -> set[str]:
    """Do what a process for any call needs, before it gets one; returns the modules that it has."""
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False  # it removes what the service still needs
    open_streams()
    faulthandler.enable()
    return set(sys.modules)


def run(
    pickled_call: bytes, channel: Connection, modules: set[str], held: dict[str, Any], changed: Changed
) -> NoReturn:
    """Make a call in this process, which ends with it; tell the other side the result or the error."""
    global to_caller
    to_caller, call, reports = channel, None, None
    result, error, printed = b"", None, ""
    try:
        with errors_sent():
            path, pickled = pickle.loads(pickled_call)
            sys.path += [each for each in path if each not in sys.path]  # the config may have objects from there
            call = Call(*pickle.loads(pickled))
            reports = begin(call, channel, modules, changed)
            packed = Packed(*call.shared)
            if packed.key not in held:  # the service could not unpickle it for all trials
                sys.path[:] = path
                held[packed.key] = packed.unpacked()
            result = cloudpickle.dumps(pickle.loads(call.function)(call.config, held[packed.key]))
    except BaseException as raised:
        if not (reports and reports.stopped):
            error, printed = sent(raised, cloudpickle.dumps)
            if call is None or call.trial:
                print(printed, file=sys.stderr, flush=True)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(OSError):  # of a rank, nobody waits for the end
        channel.send_bytes(pickle.dumps((END, result, error, printed)))
    os._exit(error is not None)


def begin(call: Call, channel: Connection, modules: set[str], changed: Changed) -> Reports:
    """Set what this process must have before its call: environment, folder, Ray's session, threads."""
    os.environ.clear()
    os.environ.update(call.environment)
    for name, (before, value) in changed.items():
        if call.environment.get(name) != before and name not in ONE_THREAD:
            continue  # Ray has set it for this trial, as CUDA_VISIBLE_DEVICES
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    os.chdir(call.folder)
    own_folder.session_folder = call.session_folder
    session = session_of(call)
    session.report = reports = Reports(session, channel, modules)
    ray_session._session = session if call.trial else None
    # Else `ray.init` replaces 127.0.0.1, where the search's own Ray listens, by the machine's network address.
    ray_constants.ENABLE_RAY_CLUSTER = not call.environment.get("RAY_ADDRESS", "").startswith("127.0.0.1:")
    ray_storage._get_ray_train_session_dir = lambda: f"{call.session_folder}/artifacts"
    if call.num_threads > 1:
        limit_threads(call.num_threads)
    return reports


def open_streams(unbuffered: bool = False) -> None:
    """Open Python's standard streams anew: they were made for the service's, and remember what those could do.

    `unbuffered` is as with `python -u`: neither lines nor bytes wait.
    """
    streams = ((0, "stdin", "r", "strict"), (1, "stdout", "w", "strict"), (2, "stderr", "w", "backslashreplace"))
    for number, name, mode, errors in streams:
        stream: Any = open(number, mode, encoding="utf-8", errors=errors, buffering=1, closefd=False)
        if unbuffered and mode == "w":
            raw = open(number, "wb", buffering=0, closefd=False)
            stream = io.TextIOWrapper(raw, encoding="utf-8", errors=errors, write_through=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def tell_threads() -> None:
    """Wait THREADS_S for threads that keep a program running, and name those that go on."""
    until = time.monotonic() + THREADS_S
    own = [each for each in threading.enumerate() if each is not threading.current_thread() and not each.daemon]
    for each in own:
        each.join(max(0.0, until - time.monotonic()))
    if left := [each.name for each in own if each.is_alive()]:
        print(f"the program has returned; waiting for its threads {', '.join(left)}", file=sys.stderr, flush=True)


def flush_files() -> None:
    """Flush open files, as Python does when it frees them; the service's own are not among the objects found."""
    kinds = io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom
    for each in gc.get_objects():
        if type(each) in kinds:  # `isinstance` would ask a lazy object for its class
            with contextlib.suppress(Exception):
                each.flush()


@contextlib.contextmanager
def program() -> Iterator[None]:
    """Do at the end of a `with` block what Python does at its own: wait for threads, run exit handlers, close files.

    It clears `__main__` for that. Python's own end takes 0.4 s, since it frees all that is imported.
    """
    try:
        yield
    finally:
        if not ray.is_initialized():
            atexit.unregister(worker.shutdown)  # it takes 45 ms
        main = vars(sys.modules["__main__"])
        at_end = threading._shutdown, atexit._run_exitfuncs, main.clear, flush_files, sys.stdout.flush, sys.stderr.flush  # type: ignore[attr-defined]
        for step in (tell_threads, *at_end):  # an interrupt ends one step, and no other
            with contextlib.suppress(BaseException):
                step()
