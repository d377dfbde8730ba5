"""The dashboard: `python -m tuner.serve --results DIR` shows a folder's searches; starts, stops and resumes them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tuner.errors import Parser, RequestError, failed, leave
from tuner.record.storage.files import secret_file
from tuner.serve.access.guard import is_loopback
from tuner.serve.access.own_spaces import NO_SPACES, OwnSpaces
from tuner.serve.access.state import LEAST_CHARS, TOKEN, state_folder, token_from_environment
from tuner.serve.app import create_app
from tuner.serve.jobs.local_jobs import LocalJobs
from tuner.serve.jobs.ray_jobs import RayJobs, missing
from tuner.serve.jobs.searches import NO_DATA_DIR, QUEUE, Searches
from tuner.spec.experiment import CHOICES

MOST_CLIENTS = 400  # with more open connections, a new one closes an idle one; MOST_STREAMS of tuner.serve.app is lower
READER_S = 30  # seconds; a client that reads nothing of its response for this time is disconnected
SHUTDOWN_TIMEOUT_S = 3  # seconds for responses that are being sent when the service shuts down
HEAD_BYTES = 64 << 10  # maximum bytes of a request's first line and headers together
# MAX_BODY_PARTS limits a request body's chunks. uvicorn parses all 256 kB of a read before it serves another client.
# Each chunk takes 40 us or more: 100,000 chunks of a byte took 5 s. A normal body of 16 kB has one or two chunks.
MAX_BODY_PARTS = 500
REQUEST_S = 10  # seconds a client has to send a request's headers, from the connection's start or its last response


def main(argv: list[str]) -> int:
    """Serves until interrupted; returns the exit code: 0, or 2 if the service cannot start."""
    try:
        serve(parse(argv), token_from_environment())
        return 0
    except RequestError as error:
        return failed(error)
    except KeyboardInterrupt:
        return 0  # the signal arrived before uvicorn handles signals; later, `Server.shutdown` ends the process


def parse(argv: list[str]) -> argparse.Namespace:
    """Parses the options; raises RequestError with a one-line message for a wrong one."""
    parser = Parser(prog="python -m tuner.serve", description=__doc__)
    parser.add_argument("--results", default="results", help="the folder that searches write to; created if missing "
                        "(default: results)")  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1", help="listening address; beyond loopback it needs a token")
    parser.add_argument("--port", type=int, default=8800, help="0 = any free port (default: 8800)")
    group = parser.add_argument_group("searches that the service starts")
    group.add_argument("--address", default="", help="a Ray cluster's dashboard, http://HOST:8265; the cluster's head "
                       "must have this program and results folder; empty = this machine")  # fmt: skip
    group.add_argument("--data-dir", default="", help="the folder of the data sets; empty = each space's default")
    group.add_argument("--spaces", default="", metavar="DIR", help="a folder whose .py files are spaces, too; only you "
                       "may be able to change it; with --address, the cluster needs it at the same path")  # fmt: skip
    group.add_argument("--wandb", default="auto", choices=CHOICES["wandb"], help="copy trials to W&B (default: auto)")
    return parser.parse_args(argv)


def serve(args: argparse.Namespace, environment_token: str) -> None:
    """Serves until a signal arrives; raises RequestError if folder or address cannot be used, or a token is missing."""
    # Records contain no reference cycles, but a full garbage collection visits every record. With Python's default
    # thresholds, collections take a third of the time for reading 10,000 trials.
    gc.set_threshold(50_000, 20, 100)
    results = Path(args.results)
    if not (environment_token or is_loopback(args.host)):
        raise RequestError(
            f"--host {args.host} is open to other machines and there is no token: set {TOKEN} to a secret of "
            f"{LEAST_CHARS} characters or more, or use --host 127.0.0.1"
        )
    try:
        results.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(
            f"--results {results}: {results.absolute()} cannot be created ({error.strerror}); give a folder"
        ) from None
    spaces = OwnSpaces(args.spaces, results)
    for left_out in spaces.scan()[1]:
        print(f"left out of --spaces: {left_out}", file=sys.stderr, flush=True)
    token, searches, problem, kept = environment_token, None, missing() if args.address else "", None
    try:
        state = state_folder(results)
        if not token:
            kept = secret_file(state / "token")
            token = kept.read_text()
        searches = None if problem else starter(args, state, spaces)
    except RequestError as error:
        problem = problem or str(error)
    app = create_app(results, host=args.host, token=token, searches=searches, problem=problem)

    def close() -> None:
        left = searches.close() if searches else []
        if left:
            print(f"{', '.join(left)}: still running; the next tuner.serve of this folder finds them", flush=True)

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until uvicorn handles signals, so that `close` runs
    try:
        with listen(args.host, args.port) as listener:
            config = uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                log_level="error",  # uvicorn's warnings are about clients that do not speak HTTP
                access_log=False,  # an access log would record the code of the sign-in link
                timeout_keep_alive=REQUEST_S,
                limit_concurrency=2 * MOST_CLIENTS,  # `Connection` closes idle connections above half of it
                # By default uvicorn trusts X-Forwarded-For of any local program. A forged address would get around
                # the limit on wrong tokens, which are counted by address.
                proxy_headers="FORWARDED_ALLOW_IPS" in os.environ,
            )
            server = Server(config, close)
            app.state.stopping = lambda: server.should_exit  # ends the event streams, which would delay shutdown
            if searches:
                searches.open()
            port, code = listener.getsockname()[1], app.state.keys.code
            print(greeting(results, args.host, port, code, problem, kept), flush=True)
            threading.Thread(target=app.state.reader.read_newest, daemon=True).start()
            server.run(sockets=[listener])
    finally:
        close()


class Server(uvicorn.Server):
    """A uvicorn server whose shutdown calls `close` and ends the process, whatever its threads still work on."""

    def __init__(self, config: uvicorn.Config, close: Callable[[], None]) -> None:
        super().__init__(config)
        self._close = close

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        with contextlib.suppress(TimeoutError):  # waits for responses that are being sent
            await asyncio.wait_for(super().shutdown(sockets), SHUTDOWN_TIMEOUT_S)
        self._close()
        leave(0)


class RequestParser(h11.Connection):
    _parts = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._parts = 0
        self._parts += isinstance(event, h11.Data)
        if self._parts > MAX_BODY_PARTS:
            raise h11.RemoteProtocolError(f"a body in more than {MAX_BODY_PARTS} parts")
        return event


class Connection(H11Protocol):
    """An HTTP connection that is closed if a request's head takes too long, or if it is idle among many connections.

    A client has `timeout_keep_alive` seconds for a request's head; uvicorn itself stops that timer at the first byte.
    Above half of `limit_concurrency` connections, a new connection closes the oldest one whose client does not wait for
    a response. If all clients wait, uvicorn answers 503 at its own limit, which also counts tasks that still run.
    TCP_USER_TIMEOUT, which `listen` sets, ends the connections of clients that read nothing.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn = RequestParser(h11.SERVER, HEAD_BYTES)
        self._since = self.loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        if self.limit_concurrency and len(self.connections) > self.limit_concurrency // 2:
            others = cast(set[Connection], self.connections - {self})
            idle = [each for each in others if not each._is_waiting()]
            if idle:
                oldest = min(idle, key=lambda each: each._since)
                oldest.transport.abort()
                self.connections.discard(oldest)

    def data_received(self, data: bytes) -> None:
        try:
            self.conn.receive_data(data)
            self.handle_events()  # uvicorn stops the timer of the head once it is complete
        except h11.LocalProtocolError:  # the refusal is sent, and the rest of the refused body is not valid HTTP
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Sends status 400 for wrong HTTP, and drops the app's response, which would now fail with a traceback."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        super().send_400_response(msg)

    def _is_waiting(self) -> bool:
        """Whether the client waits for a response to a complete request, and has read everything sent so far."""
        if self.cycle is None or self.cycle.more_body or self.cycle.response_complete:
            return False
        return not self.transport.is_closing() and not self.transport.get_write_buffer_size()


def starter(args: argparse.Namespace, state: Path, spaces: OwnSpaces = NO_SPACES) -> Searches:
    data_dir = NO_DATA_DIR + (str(Path(args.data_dir).absolute()) if args.data_dir else "")
    chosen = [f"--wandb={args.wandb}", data_dir]
    jobs = RayJobs(args.address) if args.address else LocalJobs(state / QUEUE)
    return Searches(Path(args.results), state, jobs, chosen, spaces)


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens at the address, or raises RequestError; uvicorn would only log a failure."""
    if not 0 <= port <= 65535:
        raise RequestError(f"--port {port}: must be 0..65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[:2], family=family)
    except (OSError, UnicodeError) as error:
        what = getattr(error, "strerror", None) or error
        raise RequestError(
            f"--host {host} --port {port}: {what}; give another --host or --port, or end what uses the port"
        ) from None
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, READER_S * 1000)  # accepted sockets inherit it
    # asyncio sets TCP_NODELAY only on sockets made with IPPROTO_TCP. Without it, a response may wait 40 ms for an ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def greeting(results: Path, host: str, port: int, code: str, problem: str, kept: Path | None) -> str:
    """Returns the text printed at the start: the page's address, `problem`, the sign-in link, the token's file."""
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    what = "to tag and delete experiments" if problem else "to start and stop searches"
    sign_in = f"{what}, sign in once with {url}signin?code={code}"
    programs = f"programs sign in with the token in {kept}" if kept else ""
    return "\n".join(filter(None, [f"{results.absolute()} at {url} (Ctrl-C ends it)", problem, sign_in, programs]))


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
