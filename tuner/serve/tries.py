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
    """Too many tries were wrong; the next wrong one is answered as such in `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many wrong tries; wait {seconds} s")
        self.seconds = seconds


class Tries:
    """The wrong tries of the last minute.

    The right secret is never refused, so wrong tries of one client keep nobody else out. What keeps it from being found
    by trying is its length.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: deque[tuple[float, str]] = deque()

    def check(self, client: str, is_right: bool) -> bool:
        """Returns whether a try is right; Wait for a wrong one after too many of this client, or of all clients."""
        if is_right:
            return True
        client = _network(client)
        if wait_s := self._wait_s(client):
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
