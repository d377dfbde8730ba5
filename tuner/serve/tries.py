"""How often a wrong token may be tried: by one client, and by all of them together."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import deque
from collections.abc import Callable

WINDOW_S = 60.0
MOST = 10  # wrong tries of a client in the window
MOST_IN_ALL = 100


class Wait(Exception):
    """Too many tries were wrong; the next one is looked at in `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many wrong tries; wait {seconds} s")
        self.seconds = seconds


class Tries:
    """The wrong tries of the last minute.

    Args:
        guessable: whether the secret may be short enough to be found by trying. A client that has used up its tries is
            then refused without a look at what it brings. A longer secret is always looked at, so nobody who shares
            an address with a client that guesses is kept out.
    """

    def __init__(self, guessable: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._guessable, self._clock = guessable, clock
        self._wrong: deque[tuple[float, str]] = deque()

    def check(self, client: str, is_right: Callable[[], bool]) -> bool:
        """Whether a client's try is right; Wait where it, or all clients together, had too many wrong ones."""
        client, wait_s = _network(client), self._wait_s(_network(client))
        if wait_s and self._guessable:
            raise Wait(wait_s)
        if is_right():
            return True
        if wait_s:
            raise Wait(wait_s)
        self._wrong.append((self._clock(), client))
        return False

    def _wait_s(self, client: str) -> int:
        """Whole seconds until there is a try again; 0 where there is one now."""
        now = self._clock()
        while self._wrong and self._wrong[0][0] <= now - WINDOW_S:
            self._wrong.popleft()
        everyone = [at for at, _ in self._wrong]
        own = [at for at, other in self._wrong if other == client]
        ends = [at[-most] + WINDOW_S - now for at, most in ((own, MOST), (everyone, MOST_IN_ALL)) if len(at) >= most]
        return math.ceil(max(ends, default=0))


def _network(client: str) -> str:
    """An IPv4 address as it is; of an IPv6 address the 64 bits that its owner cannot choose."""
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return client
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or (address if address.version == 4 else ipaddress.ip_network((address, 64), strict=False)))
