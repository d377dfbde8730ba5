"""Keeps the user's code from printing and ending the process during the check, and from the network in a dry run."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import socket
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn

from tuner.errors.users_code import place_of
from tuner.training.task import Task

logger = logging.getLogger(__name__)


class Dropped(io.StringIO):
    """A stream that keeps nothing: a function may print gigabytes. A user's log handler may use it after the check."""

    def write(self, text: str) -> int:
        return len(text)


@contextlib.contextmanager
def silence() -> Iterator[list[warnings.WarningMessage]]:
    """Context manager that drops what the user's functions print; the trials print it again.

    Yields the list to which Python's warnings are added. `os._exit` raises SystemExit meanwhile, because it would
    end the command without a message.
    """
    process, ends = os.getpid(), os._exit

    def leave(status: int) -> NoReturn:
        if os.getpid() != process:  # a forked process, such as a DataLoader's
            ends(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = leave
    with contextlib.redirect_stdout(Dropped()), contextlib.redirect_stderr(Dropped()):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                yield heard
            finally:
                os._exit = ends


# Starts of warnings of torch -> the Task's function that causes it: mistakes that give a wrong loss but no error.
WARNINGS = {"Using a target size": "loss", "Implicit dimension choice": "model"}


def warn_of(heard: list[warnings.WarningMessage], task: Task) -> None:
    """Logs the warnings listed in WARNINGS, once each, with the user's function."""
    texts = [" ".join(str(each.message).split()) for each in heard]
    for start, name in WARNINGS.items():
        if text := next((text for text in texts if text.startswith(start)), ""):
            logger.warning("the %s%s: %s", name, place_of(getattr(task, name)), text)


class NoNetwork(OSError):
    """Raised if a dry run would connect to another machine."""


@contextlib.contextmanager
def no_network() -> Iterator[list[str]]:
    """Context manager that refuses connections of Python's sockets to other machines; yields the refused hosts."""
    hosts: list[str] = []
    local = ("localhost", "127.0.0.1", "::1", "", None)
    look_up, connect = socket.getaddrinfo, socket.socket.connect

    def refused(host: Any) -> None:
        if host not in local:
            hosts.append(str(host))
            raise NoNetwork(f"a dry run does not connect to {host}")

    def looking_up(host: Any, *arguments: Any, **options: Any) -> Any:
        refused(host.decode() if isinstance(host, bytes) else host)
        return look_up(host, *arguments, **options)

    def connecting(self: socket.socket, address: Any) -> Any:
        refused(address[0] if isinstance(address, tuple) else "")
        return connect(self, address)

    socket.getaddrinfo, socket.socket.connect = looking_up, connecting  # type: ignore[assignment,method-assign]
    try:
        yield hosts
    finally:
        socket.getaddrinfo, socket.socket.connect = look_up, connect  # type: ignore[method-assign]
