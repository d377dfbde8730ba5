"""The dashboard: `python -m tuner.serve --results DIR`. It reads what searches write; no search notices it."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path
from typing import NoReturn

import uvicorn

from tuner.errors import RequestError
from tuner.serve.app import create_app
from tuner.serve.guard import is_loopback


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise RequestError(f"{message} (see --help)")


def main(argv: list[str]) -> int:
    """Serves until interrupted; returns 0, or 2 for a request that is wrong."""
    try:
        args = parse(argv)
        serve(Path(args.results), args.host, args.port, os.environ.get("TUNER_TOKEN", ""))
        return 0
    except RequestError as error:
        print(f"tuner: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0  # uvicorn has closed what was open, and raises the signal again


def parse(argv: list[str]) -> argparse.Namespace:
    """`results`, `host` and `port`; RequestError in one line."""
    parser = Parser(prog="python -m tuner.serve", description=__doc__)
    parser.add_argument("--results", default="results", help="the folder that searches write to (default: results)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at; beyond loopback needs TUNER_TOKEN")
    parser.add_argument("--port", type=int, default=8800, help="0 = any that is free (default: 8800)")
    return parser.parse_args(argv)


def serve(results: Path, host: str, port: int, token: str) -> None:
    """Blocks until a signal ends it; RequestError for a folder that is missing, or an address that cannot be had."""
    if not results.is_dir():
        raise RequestError(f"--results {results}: no such folder; give the one that searches write to")
    app = create_app(results, host=host, token=token)
    with listen(host, port) as listener:
        # No access log: it would hold the token of the sign-in link.
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=3)
        server = uvicorn.Server(config)
        app.state.stopping = lambda: server.should_exit  # or an open page would keep the server from ending
        print(greeting(results, host, listener.getsockname()[1]), flush=True)
        server.run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """A socket bound here and not by uvicorn, which prints a log line and exits with 1 where it cannot."""
    if not 0 <= port <= 65535:
        raise RequestError(f"--port {port}: must be 0..65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, UnicodeError) as error:
        what = getattr(error, "strerror", None) or error
        raise RequestError(f"--host {host} --port {port}: {what}; give another --port, or end what uses it") from None


def greeting(results: Path, host: str, port: int) -> str:
    """Where the page is; the token itself is not printed, since output is kept in logs."""
    name = f"[{host}]" if ":" in host else host
    sign_in = "" if is_loopback(host) else "?token=TUNER_TOKEN"
    return f"{results.absolute()} at http://{name}:{port}/{sign_in} (Ctrl-C ends it)"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
