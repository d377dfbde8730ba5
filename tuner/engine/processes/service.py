"""The service that forks the trials of one search on one node; `tuner.engine.processes.client` starts it.

A generation of the service is a process with one thread, which has imported what trials need and never trains. To
import more, it forks a candidate. If this has neither other threads, children, open files nor CUDA afterwards, nor exit
handlers of the space, it takes the service over; trials start meanwhile. Ray's own processes have threads, so they
cannot be forked.

The service whose standard input is a pipe is the root: it ends with the pipe, and forks one service a search, which
ends with its client. Any other service ends `IDLE_TIMEOUT_S` after its last client has left.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import importlib
import inspect
import os
import pickle
import selectors
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from tuner.engine.processes import keeper
from tuner.engine.processes.threads import libraries
from tuner.engine.processes.variables import Changed, changes_of
from tuner.errors.users_code import is_importing, place_of_frame
from tuner.training.devices import accelerator

IDLE_TIMEOUT_S = 10.0  # seconds; a node may have no worker of the search between two trials
REQUEST_TIMEOUT_S = 5.0  # seconds that a client's request may take to arrive
CLIENT, HOLD, SERVE, TRIAL = b"c", b"h", b"s", b"t"  # the first byte of a connection: what the client wants
NAME_BYTES = 38  # of the name of a service, which follows SERVE
LATER = "later"  # the answer while a candidate imports
ENDED = "importing it ends Python"  # the answer if the candidate ended without a word
RAISES = "it raises "  # begins the answer if the value cannot be unpickled


class Hold(NamedTuple):
    """Asks the service to unpickle a value once for all later trials, or to import modules.

    Args:
        key: of the value, or of the modules.
        packed: the fields of a `Packed`.
        modules: names; a module that cannot be imported is left out.
        path: `sys.path` of the trials.
        folder: the folder in which the search was started.
        changes: the variables that changed while the trial imported the modules. If the import here changes others, the
            trial's own code set some, which the modules may have read; the import is then refused.
    """

    key: str
    packed: tuple[Any, ...] = ()
    modules: Sequence[str] = ()
    path: Sequence[str] = ()
    folder: str = "/"
    changes: Mapping[str, str | None] | None = None


held: dict[str, Any] = {}  # the unpickled values by key
ExitHandlers = list[tuple[str, Callable[[], Any]]]
changed: Changed = {}  # variables that imports have changed


class Service:
    """One generation of a service on the abstract socket `name`; it ends when the other side of `owner` closes."""

    def __init__(self, name: str, owner: int | socket.socket | None) -> None:
        self.listener, self.owner = socket.socket(socket.AF_UNIX), owner
        self.listener.bind(f"\0{name}")  # raises OSError if the node has this service
        self.listener.listen(128)
        self.listener.setblocking(False)  # two generations may wait for the same client
        self.clients = set[socket.socket]()
        self.refused: dict[str, str] = {}  # by key, why each trial must load the value itself
        self.spare: socket.socket | None = None  # to a keeper whose child waits for a trial

    def run(self) -> None:
        """Serve until the owner or all clients have left, or until a candidate has taken over."""
        while self.serve():
            pass  # this process was a candidate, and is the service now

    def serve(self) -> bool:
        self.candidate: tuple[socket.socket, str] | None = None
        left_at = time.monotonic()
        libraries.cache_clear()
        libraries()
        gc.collect()
        gc.freeze()  # a garbage collection in a trial then copies no page of what it shares with the others
        with selectors.DefaultSelector() as self.selector:
            listened: list[Any] = [self.listener, *self.clients, *([] if self.owner is None else [self.owner])]
            for each in listened:
                self.selector.register(each, selectors.EVENT_READ)
            while self.owner is not None or self.clients or time.monotonic() - left_at < IDLE_TIMEOUT_S:
                for key, _ in self.selector.select(1.0):
                    is_candidate = self.candidate is not None and key.fileobj is self.candidate[0]
                    if is_candidate and self.settle_candidate():
                        os._exit(0)
                    if key.fileobj is self.owner:
                        return False
                    if key.fileobj is self.listener:
                        with contextlib.suppress(OSError, EOFError):
                            if self.accept():
                                return True
                    elif key.fileobj in self.clients:
                        self.selector.unregister(key.fileobj)
                        self.clients.discard(key.fileobj)
                        key.fileobj.close()
                        left_at = time.monotonic()
        return False

    def accept(self) -> bool:
        """Do what a new client wants; returns whether this process is a candidate that takes the service over."""
        client, _ = self.listener.accept()
        client.settimeout(REQUEST_TIMEOUT_S)
        wants = client.recv(1) if is_ours(client) else b""
        if wants == CLIENT:
            self.clients.add(client)
            self.selector.register(client, selectors.EVENT_READ)
            return False
        if wants == SERVE and not os.fork():
            name = client.recv(NAME_BYTES, socket.MSG_WAITALL).decode()
            self.selector.close()
            self.listener.close()
            try:
                service = Service(name, client)
            except OSError:  # another process serves under this name
                os._exit(0)
            service.run()
            atexit._run_exitfuncs()  # a library that was imported may have temporary files
            os._exit(0)
        with client:
            if wants == TRIAL:
                self.hand_over(client)
            if wants == HOLD and (request := self.wanted(client)):
                ours, theirs = socket.socketpair()
                if not os.fork():
                    ours.close()
                    self.drop_spare()  # it lacks what this candidate imports
                    try:
                        become(request, client, theirs)
                    except BaseException:
                        os._exit(1)
                    return True
                theirs.close()
                self.candidate = ours, request.key
                self.selector.register(ours, selectors.EVENT_READ)
        if wants == TRIAL:  # a fork takes 15 ms or more, so the next trial's is made now, which must not have `client`
            self.spare = self.forked()
        return False

    def hand_over(self, client: socket.socket) -> None:
        """Give a client to the keeper that waits for one, or to a new one if that was killed."""
        with self.spare or self.forked() as spare:
            try:
                socket.send_fds(spare, [b"f"], [client.fileno()])
            except OSError:
                with self.forked() as other, contextlib.suppress(OSError):
                    socket.send_fds(other, [b"f"], [client.fileno()])

    def forked(self) -> socket.socket:
        """Fork a keeper, which forks the process of a trial; returns the socket by which it gets its client."""
        ours, theirs = socket.socketpair()
        if not os.fork():
            ours.close()
            self.selector.close()
            # Clients must be refused once the service is killed. `owner` stays open: it waits for keepers, too.
            for each in (self.listener, *self.clients, *(self.candidate or ())[:1]):
                each.close()
            keeper.run(theirs, held, changed)
        theirs.close()
        return ours

    def drop_spare(self) -> None:
        if self.spare:
            self.spare.close()
            self.spare = None

    def wanted(self, client: socket.socket) -> Hold | None:
        """Return the request for which a candidate has to be made; answer all others."""
        client.settimeout(None)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(REQUEST_TIMEOUT_S), 0))
        connection = Connection(os.dup(client.fileno()))
        request = Hold(*pickle.loads(connection.recv_bytes()))
        if request.key in held or request.key in self.refused:
            connection.send(self.refused.get(request.key, ""))
        elif self.candidate:
            connection.send(LATER)
        else:
            return request
        return None

    def settle_candidate(self) -> bool:
        """Hear what the candidate says; return whether it has taken over, else note why not."""
        assert self.candidate
        (candidate, key), self.candidate = self.candidate, None
        self.selector.unregister(candidate)
        with candidate:
            said = candidate.recv(1000)
        if said != b"\0":
            self.refused[key] = said.decode(errors="replace") or ENDED
        return said == b"\0"


def is_ours(client: socket.socket) -> bool:
    """Whether the other side is a process of the same user: any process of the node may name an abstract socket."""
    _, user, _ = struct.unpack("iII", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII")))
    return bool(user == os.geteuid())


def become(request: Hold, client: socket.socket, parent: socket.socket) -> None:
    """In a candidate: import what is asked and tell client and parent; ends the process if it must not be forked."""
    keeper.prctl(keeper.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else a child of the import has no exit code
    connection = Connection(os.dup(client.fileno()))
    why = loaded(request)
    if why:
        keeper.end_rest()
    keeper.prctl(keeper.PR_SET_PDEATHSIG, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    parent.sendall(why.encode()[:1000] or b"\0")
    parent.close()
    with contextlib.suppress(OSError), connection:  # the client may have ended meanwhile
        connection.send(why)
    if why:
        os._exit(0)


def loaded(request: Hold) -> str:
    """Import modules and unpickle a value; returns why trials must do it themselves, or an empty text."""
    from tuner.engine.processes.packed import Packed

    files, environment = open_files(), dict(os.environ)
    sys.path[:] = request.path or sys.path
    os.chdir(request.folder)
    for name in request.modules:
        with contextlib.suppress(Exception):  # a trial that needs the module raises the error
            importlib.import_module(name)
    try:
        with exit_handlers() as registered:
            held[request.key] = Packed(*request.packed).unpacked() if request.packed else None
    except BaseException as error:
        end_import(registered)
        return f"{RAISES}{type(error).__name__}: {error}"
    if registered:  # the first trial that ends would remove what all of them use, such as a temporary folder
        end_import(registered)
        return f"its import registers an exit handler{registered[0][0]}"
    changes = changes_of(environment, os.environ)
    if request.changes is not None and request.changes != changes:
        return "the trial changes its environment"
    for name, value in changes.items():
        changed[name] = changed.get(name, (environment.get(name),))[0], value
    return why_unforkable(open_files() - files)


def end_import(registered: ExitHandlers) -> None:
    """Run a space's exit handlers in a candidate that ends: its import may have made files."""
    for _, handler in reversed(registered):
        with contextlib.suppress(BaseException):
            handler()


@contextlib.contextmanager
def exit_handlers() -> Iterator[ExitHandlers]:
    """Return a list of the user's calls of `atexit.register` in a `with` block: their places and the handlers."""
    found: ExitHandlers = []

    def register(function: Any, *arguments: Any, **options: Any) -> Any:
        frame = inspect.currentframe()
        frame = frame and frame.f_back
        if not is_importing(frame):
            found.extend(
                (place, partial(function, *arguments, **options)) for place in [place_of_frame(frame)] if place
            )
        return original(function, *arguments, **options)

    original, atexit.register = atexit.register, register  # type: ignore[assignment]
    try:
        yield found
    finally:
        atexit.register = original


def open_files() -> set[str]:
    """Return the targets of this process's descriptors, without those that processes may share."""
    targets = set[str]()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            targets.add(os.readlink(f"/proc/self/fd/{name}"))
    return {each for each in targets if not each.startswith(keeper.SHAREABLE)}


def why_unforkable(files: Collection[str]) -> str:
    """Say what keeps this process from being forked: threads, children, CUDA, or the `files` that its import opened."""
    threads, children = len(os.listdir("/proc/self/task")) - 1, keeper.children()
    if threads:
        return f"its import leaves {threads} thread{'s' * (threads > 1)}"
    if children:
        return f"its import leaves {len(children)} process{'es' * (len(children) > 1)}"
    if accelerator.here.in_use() or any(each.startswith("/dev/nvidia") for each in files):
        return "its import uses a GPU"
    if files:  # trials would share the position in it
        return f"its import leaves {min(files)} open"
    return ""


def main(name: str, *modules: str) -> None:
    """Serve on the abstract socket `name`; first import `modules`, while clients wait."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps keepers and candidates
    for number in (signal.SIGINT, signal.SIGHUP):  # the driver decides
        signal.signal(number, signal.SIG_IGN)
    try:
        service = Service(name, 0 if stat.S_ISFIFO(os.fstat(0).st_mode) else None)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:  # else another worker of the node has started one meanwhile
            raise
        return
    for each in modules:
        importlib.import_module(each)
    service.run()
