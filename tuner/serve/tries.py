"""Limits how many wrong tokens one client, and all clients together, may try per minute."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import deque
from collections.abc import Callable

WINDOW_S = 60.0
MOST = 10  # wrong tries of one client within WINDOW_S
MOST_IN_ALL = 100


class Wait(Exception):
    """Raised for a wrong try after too many others; the client should wait `seconds` before it tries again."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many wrong tries; wait {seconds} s")
        self.seconds = seconds


class Tries:
    """Counts the wrong tries of the last minute.

    The right secret is never refused, so one client's wrong tries lock no other client out. The secret's length, not
    this limit, protects it from being guessed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: deque[tuple[float, str]] = deque()

    def check(self, client: str, is_right: bool) -> bool:
        """Counts a try and returns `is_right`.

        Raises:
            Wait: the try is wrong, and this client or all clients together had too many wrong tries before it.
        """
        if is_right:
            return True
        client = _network(client)
        if wait_s := self._wait_s(client):
            raise Wait(wait_s)
        self._wrong.append((self._clock(), client))
        return False

    def _wait_s(self, client: str) -> int:
        """Returns the whole seconds until the client may try again; 0 if it may now."""
        now = self._clock()
        while self._wrong and self._wrong[0][0] <= now - WINDOW_S:
            self._wrong.popleft()
        everyone = [at for at, _ in self._wrong]
        own = [at for at, other in self._wrong if other == client]
        ends = [at[-most] + WINDOW_S - now for at, most in ((own, MOST), (everyone, MOST_IN_ALL)) if len(at) >= most]
        return math.ceil(max(ends, default=0))


def _network(client: str) -> str:
    """Returns the key by which tries are counted: an IPv4 address, or the /64 network of an IPv6 address.

    The owner of an IPv6 address can choose its lower 64 bits freely.
    """
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return client
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or (address if address.version == 4 else ipaddress.ip_network((address, 64), strict=False)))
