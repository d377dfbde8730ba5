"""Starts the service of a node, and runs a trial in a process of its own on behalf of Ray's worker."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray import cloudpickle, tune
from ray._private import worker
from ray.exceptions import RayActorError
from ray.train._internal.session import get_session
from ray.tune.registry import _ParameterRegistry

from tuner.engine.controller.failures import KILLED
from tuner.engine.processes import child, keeper, service
from tuner.engine.processes.launch import connected, runs, service_name
from tuner.engine.processes.packed import Packed, pack
from tuner.engine.workers import own_folder
from tuner.engine.workers.reports import begin_saves
from tuner.errors import say
from tuner.errors.sent import error_of

DRIVERS_S = 60.0  # maximum seconds that a worker waits for the service that the driver starts, before it starts one
IMPORTS_TIMEOUT_S = 60.0  # maximum seconds that a trial waits for the service's imports
END_TIMEOUT_S = 1.5  # seconds that a worker waits for a stopped trial; Ray waits 2 s before it gives the worker another


def resolved(function: Any) -> Any:
    """Put the values of `tune.with_parameters` into the function itself: trials are not connected to Ray."""
    for cell in getattr(function, "__closure__", None) or ():
        registry = cell.cell_contents
        if isinstance(registry, _ParameterRegistry):
            registry.to_flush |= {name: ray.get(each) for name, each in registry.references.items()}
    return function


def hold(name: str, request: service.Hold) -> str:
    """Let the service unpickle a value for all trials; returns why each trial must do it itself, or an empty text."""
    while True:
        with connected(name, service.HOLD) as client, Connection(os.dup(client.fileno())) as connection:
            try:
                connection.send_bytes(pickle.dumps(tuple(request)))
                answer = str(connection.recv())
            except (EOFError, OSError):
                return service.ENDED
        if answer != service.LATER:
            return answer
        time.sleep(0.05)


def hold_packed(name: str, packed: Packed) -> str:
    return hold(name, service.Hold(packed.key, tuple(packed), (), list(sys.path), os.getcwd()))


@dataclass(frozen=True)
class Shared:
    """What all trials of a search share, for workers.

    Args:
        name: of the search's services.
        packed: the value, if all trials run on the driver's node.
        key: on a cluster instead, its key in the services.
        reference: on a cluster, its place in Ray's memory, in a tuple.
    """

    name: str
    packed: Packed | None = None
    key: str = ""
    reference: Any = None

    def here(self) -> Packed:
        """Return the value in the memory of this node."""
        return self.packed or pack(ray.get(self.reference[0]))._replace(key=self.key)


def share(value: Any) -> Shared:
    """Pack a value for trials on this node, whose service, if it runs, unpickles it meanwhile."""
    packed = pack(value)
    shared = Shared(service_name(), packed)
    weakref.finalize(shared, os.close, packed.fd)
    if runs():
        threading.Thread(target=_hold_quietly, args=(shared,), daemon=True).start()
    return shared


def share_in_cluster(value: Any) -> Shared:
    return Shared(service_name(), key=os.urandom(8).hex(), reference=(ray.put(value),))


def _hold_quietly(shared: Shared) -> None:
    with contextlib.suppress(OSError):  # the search has ended
        why = hold_packed(shared.name, shared.here())
        if why and not why.startswith(service.RAISES) and runs():
            say(f"NOTE: each trial imports the space itself, which may take seconds: {why}", to=sys.stderr)


def _hold_modules(name: str, modules: list[str], changes: dict[str, str | None]) -> None:
    key = hashlib.sha256(" ".join(modules).encode()).hexdigest()
    with contextlib.suppress(OSError):
        hold(name, service.Hold(key, (), modules, changes=changes))


def apart(shared: Shared, function: Callable[..., Any]) -> Any:
    """Return `function({}, value)`, from a separate process if this one runs the service; it must not be None.

    Raises the error of the function, EndedError if the process ended otherwise, or OSError if the service is gone.
    """
    if not runs():
        return function({}, shared.here().unpacked())
    with contextlib.closing(Caller(shared)) as caller:
        call = caller.call_of(function, {}, dict(os.environ))
        result = caller.call(call._replace(num_threads=len(os.sched_getaffinity(0))), (1, 2))
        caller.await_end(None)  # so that all its output comes before the next line of this process
        if result is None:
            raise EndedError(ended_by(0))
        return result


def run_trial(
    config: dict[str, Any], *, shared: Shared, function: Any, folder: Path, variables: dict[str, str]
) -> None:
    """Run a trial in a process of its own; Ray runs this function in a worker.

    Args:
        function: called in that process as `function(config, value)` with the shared value.
        folder: has the trials' folders.
        variables: of the trial's environment, besides the worker's.
    """
    caller = caller_of(shared)
    caller.await_end(2 * keeper.TERM_GRACE_S + 1)  # a stopped trial may still hold a GPU's memory
    session, node = get_session(), worker._global_node
    begin_saves()
    call = caller.call_of(function, config, environment(variables))._replace(
        session_folder=node.get_session_dir_path() if node else "",
        trial=session.trial_info,
        storage=session.storage,
        checkpoint=session.loaded_checkpoint,
    )
    own = folder / session.trial_id
    try:
        caller.call(call, (str(own / "stdout"), str(own / "stderr")))
    except EndedError as error:
        with contextlib.suppress(OSError):  # the next attempt, or the next search, saves them
            own_folder.save_stale(own.resolve())
        raise error.cause from None


@cache
def caller_of(shared: Shared) -> Caller:
    return Caller(shared)


class Outcome(NamedTuple):
    """What a process said when its call had ended."""

    result: Any
    error: BaseException | None


class EndedError(Exception):
    """A process has ended without a result; `cause` is the error for Ray."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Caller:
    """Makes calls in processes of their own, one after the other, for a worker or the driver."""

    is_refused = False  # by the service, so that each process unpickles the value from this one's memory

    def __init__(self, shared: Shared) -> None:
        self.name, self.shared = shared.name, shared
        self.join(starts_after=DRIVERS_S if shared.packed else 0.0)
        self.control: Connection | None = None  # to the keeper of a process that has not ended
        self.imports: threading.Thread | None = None  # waits while the service imports what the last trial has imported

    def join(self, starts_after: float) -> None:
        """Keep the service alive, and let it unpickle the value; start one if none is there after `starts_after` s."""
        self.client = connected(self.name, service.CLIENT, starts_after=starts_after)
        if not self.is_refused:
            self.packed = self.shared.here()
        self.is_refused = bool(hold_packed(self.name, self.packed))
        if not (self.is_refused or self.shared.packed):
            os.close(self.packed.fd)  # the service has mapped it; else each worker of the node would keep a copy

    def call_of(self, function: Any, config: dict[str, Any], variables: dict[str, str]) -> child.Call:
        """Return the call of a function, in the folder of this process, with these environment variables."""
        pickled = cloudpickle.dumps(function)
        return child.Call(tuple(self.packed), pickled, config, variables, os.getcwd())

    def begin(self, call: child.Call, outputs: tuple[str | int, str | int]) -> Connection:
        """Start the process of a call; returns the connection to it."""
        if self.imports and not wait([self.client], 0):  # else this trial would import the same, beside the service
            self.imports.join(IMPORTS_TIMEOUT_S)
        self.imports = None
        if wait([self.client], 0):  # the service has ended, or one took it over that does not know this client
            self.client.close()
            self.join(starts_after=0.0)
        ours, theirs = socket.socketpair()
        try:
            with connected(self.name, service.TRIAL) as client, theirs:
                self.control = Connection(os.dup(client.fileno()))
                self.control.send((outputs, os.getpid(), pickle.dumps((sys.path, cloudpickle.dumps(tuple(call))))))
                socket.send_fds(client, [b"f"], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise EndedError(lost(f"the trial's process did not start ({error})")) from error
        own_folder.left.clear()
        return Connection(ours.detach())

    def call(self, call: child.Call, outputs: tuple[str | int, str | int]) -> Any:
        """Make a call and pass on its reports; returns its result, None if its process ended by `os._exit(0)`.

        Raises the error of the call, or EndedError if the process ended otherwise.
        """
        with self.begin(call, outputs) as channel:
            ended = self.passed_on(channel)
        if ended is not None and ended.error is None:
            own_folder.left.set()
            return ended.result  # the process frees its memory meanwhile; the next call waits for its end
        status = self.await_end(None)
        if ended is not None:
            raise ended.error  # type: ignore[misc]
        if status != 0:
            raise EndedError(ended_by(status))
        return None

    def close(self) -> None:
        """End the call, if one has not ended."""
        self.client.close()
        if self.control:
            self.control.close()

    def passed_on(self, channel: Connection) -> Outcome | None:
        """Pass on reports to Ray until the call ends; None if its process says nothing, SystemExit if Ray stops it."""
        assert self.control
        while channel in wait([channel, self.control]):
            try:
                kind, *values = pickle.loads(channel.recv_bytes())
            except (EOFError, OSError):
                break
            if kind == child.MODULES:
                self.imports = threading.Thread(target=_hold_modules, args=(self.name, *values), daemon=True)
                self.imports.start()
            elif kind == child.END:
                result, sent, printed = values
                return Outcome(result and pickle.loads(result), None if sent is None else error_of(sent, printed))
            else:
                self.answer(channel, *values)
        return None

    def answer(self, channel: Connection, metrics: dict[str, Any], checkpoint: Any) -> None:
        """Give Ray a report, which returns once Ray lets the trial go on, and tell the trial."""
        try:
            tune.report(metrics, checkpoint=checkpoint)
            answer: tuple[str, Any] = child.GO, tune.get_checkpoint() if checkpoint else None
        except Exception as error:
            answer = child.RAISED, error
        except SystemExit:
            with contextlib.suppress(OSError):
                channel.send_bytes(pickle.dumps((child.STOPPED, None)))
                self.control.send(keeper.STOP)  # type: ignore[union-attr]
            self.await_end(END_TIMEOUT_S)
            raise
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            channel.send_bytes(cloudpickle.dumps(answer))

    def await_end(self, seconds: float | None) -> int | None:
        """Wait for the end of the last trial's process; returns how it ended, None if it has not or nobody knows."""
        status: int | None = None
        if self.control is not None and (seconds is None or self.control.poll(seconds)):
            with contextlib.suppress(EOFError, OSError):
                _, status = self.control.recv()
            self.control.close()
            self.control = None
        if self.control is None:
            own_folder.left.set()
        return status


def environment(variables: dict[str, str]) -> dict[str, str]:
    """A trial's environment: its worker's and the search's own variables; `ray.init` there joins the search's Ray.

    Without PYTHONBREAKPOINT of Ray, whose debugger waits for a connection; Python's own ends at once, without input.
    """
    own = {**os.environ, **variables, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    return {name: value for name, value in own.items() if not (name == "PYTHONBREAKPOINT" and "ray." in value)}


def lost(why: str) -> Exception:
    error: Exception = RayActorError(error_msg=why)
    return error


def ended_by(status: int | None) -> Exception:
    """The error for a process that ended without a word: by an exit code, or by a signal, which is negative."""
    if status is None:
        return lost("the trial's keeper process was killed")
    if status >= 0:
        return RuntimeError(f"the trial's process ended with exit code {status} (os._exit)")
    if -status == signal.SIGKILL:
        return lost(KILLED)
    names = {each.value: each.name for each in signal.Signals}
    name = names.get(-status, f"signal {-status}")  # those of real time have no names
    return RuntimeError(f"the process was ended by {name}; see its stderr")
