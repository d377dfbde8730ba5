"""Checks the credentials (token, sign-in code, browser sessions) and limits how often clients may try wrong ones."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import secrets
import time
from collections import deque
from collections.abc import Callable

from starlette.requests import HTTPConnection
from starlette.types import Scope

WINDOW_S = 60.0
MOST = 10  # wrong tries of one client within WINDOW_S
MOST_IN_ALL = 100  # wrong tries of all clients together within WINDOW_S
SESSION_S = 12 * 3600
MOST_SESSIONS = 1000  # open browser sessions; a further one ends the oldest one


class Wait(Exception):
    """Raised for a wrong token or sign-in code after too many wrong ones; tells the client to wait `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many wrong tries; wait {seconds} s")
        self.seconds = seconds


class Tries:
    """Counts the wrong tries of a secret in the last WINDOW_S seconds.

    The right secret is never refused, so one client's wrong tries lock no other client out. The secret's length, not
    this limit, protects it from being guessed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: deque[tuple[float, str]] = deque()

    def check(self, client: str, is_right: bool) -> bool:
        """Returns `is_right`, and counts the try if it is wrong.

        Raises:
            Wait: the try is wrong, and this client or all clients together had too many; it is not counted.
        """
        if is_right:
            return True
        client = _network(client)
        if wait_s := self._wait_s(client):
            raise Wait(wait_s)
        self._wrong.append((self._clock(), client))
        return False

    def _wait_s(self, client: str) -> int:
        """Returns the whole seconds after which a wrong try of this client raises no Wait; 0 if it raises none now."""
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


class Keys:
    """Holds the credentials: the token, a code that works once, and the browser sessions opened with either."""

    def __init__(self, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._token, self._clock = token.encode(), clock
        self._tries = Tries(clock)
        self._code_tries = Tries(clock)  # apart from tokens: a link on a foreign page may send wrong codes
        self._sealing = secrets.token_bytes(32)  # HMAC key: derives a session's key from its secret
        self._sessions: dict[bytes, float] = {}  # the hash of a session's secret -> when it ends, by `clock`
        # Browsers store cookies by host, not by port, so each service on a machine needs its own cookie name.
        self.cookie = f"tuner_{secrets.token_hex(6)}"
        self.code = secrets.token_urlsafe(24)

    def is_token(self, token: bytes, client: str) -> bool:
        """Checks a token in constant time.

        Raises:
            Wait: the token is wrong, and too many wrong ones were tried in the minute before.
        """
        return self._tries.check(client, hmac.compare_digest(token, self._token))

    def spend(self, code: str, client: str) -> bool:
        """Returns whether the sign-in code is right; replaces a right code, so that it works once.

        A right code is accepted even after too many wrong ones.

        Raises:
            Wait: the code is wrong, and too many wrong codes were tried in the minute before.
        """
        tried = code.encode("utf-8", "replace")
        right = self._code_tries.check(client, hmac.compare_digest(tried, self.code.encode()))
        if right:
            self.code = secrets.token_urlsafe(24)
        return right

    def open_session(self) -> str:
        """Opens a session and returns its secret for a cookie.

        The session ends after SESSION_S, after MOST_SESSIONS newer ones, when the service ends, or at sign-out.
        """
        secret, now = secrets.token_urlsafe(32), self._clock()
        going_on = [(key, ends) for key, ends in self._sessions.items() if ends > now]
        self._sessions = dict(going_on[1 - MOST_SESSIONS :]) | {_hashed(secret): now + SESSION_S}
        return secret

    def key_of(self, secret: str) -> str:
        """Returns a browser session's key, which requests that change something need; the cookie does not reveal it."""
        return hmac.new(self._sealing, secret.encode("utf-8", "replace"), hashlib.sha256).hexdigest()

    def end_session(self, secret: str) -> None:
        """Ends the browser session with that secret; does nothing if there is none."""
        self._sessions.pop(_hashed(secret), None)

    def take_cookie(self, scope: Scope) -> str:
        """Removes all cookies from a request; returns the browser session's secret, or an empty text if there is none.

        FastAPI reads `request.cookies` for each route, which calls Python's cookie parser. That parser's time grows
        with the square of the header's length: 60 kB of backslashes take 10 s, during which no request is answered.
        """
        name, session_secret = self.cookie.encode(), ""
        for header, value in scope["headers"]:
            for pair in value.split(b";") if header == b"cookie" else ():
                key, _, secret = pair.strip().partition(b"=")
                if key == name:
                    session_secret = secret.decode("latin-1")  # the secret is URL-safe, so it is never quoted
        scope["headers"] = [header for header in scope["headers"] if header[0] != b"cookie"]
        return session_secret

    def holds(self, asked: HTTPConnection, secret: str) -> tuple[bool, bool]:
        """Checks whether a request has the right token, and whether it has the secret of an open session.

        Raises:
            Wait: the token is wrong, and too many wrong ones were tried in the minute before.
        """
        kind, _, bearer = asked.headers.get("authorization", "").partition(" ")
        # Starlette decodes headers as latin-1, but the token may contain other characters, so its bytes are compared.
        by_token = kind.lower() == "bearer" and self.is_token(bearer.strip().encode("latin-1"), client_of(asked))
        ends = self._sessions.get(_hashed(secret), 0.0)
        return by_token, self._clock() < ends


def client_of(asked: HTTPConnection) -> str:
    """Returns the client's address; X-Forwarded-For counts only if the user trusts a proxy (`tuner.serve.__main__`)."""
    return asked.client.host if asked.client else ""


def _hashed(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()
