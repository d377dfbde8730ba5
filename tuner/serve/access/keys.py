"""Checks the credentials (token, sign-in code, browser sessions) and limits how often clients may try wrong ones."""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import time
from collections import deque
from collections.abc import Callable

from starlette.requests import HTTPConnection
from starlette.types import Scope

WINDOW_S = 60.0
MOST = 10  # wrong tries of one client within WINDOW_S
SESSION_S = 12 * 3600


class Wait(Exception):
    """Raised for a wrong token or sign-in code after too many wrong ones; tells the client to wait `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many wrong tries; wait {seconds} s")
        self.seconds = seconds


class Keys:
    """Holds the credentials: the token, a code that works once, and the browser sessions opened with either.

    A right token or code is always accepted, so one client's wrong tries lock no other client out. The secret's
    length, not the limit on wrong tries, protects it from being guessed.
    """

    def __init__(self, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._token, self._clock = token.encode(), clock
        self._wrong: deque[tuple[float, str]] = deque(maxlen=1000)  # time and client of each wrong try
        self._sealing = secrets.token_bytes(32)  # HMAC key: derives a session's key from its secret
        self._sessions: dict[bytes, float] = {}  # the hash of a session's secret -> when it ends, by `clock`
        # Browsers store cookies by host, not by port, so each service on a machine needs its own cookie name.
        self.cookie = f"tuner_{secrets.token_hex(6)}"
        self.code = secrets.token_urlsafe(24)

    def is_token(self, token: bytes, client: str) -> bool:
        """Checks a token in constant time; raises Wait if it is wrong and this client tried too many wrong ones."""
        return self._checked(hmac.compare_digest(token, self._token), client)

    def spend(self, code: str, client: str) -> bool:
        """Returns whether the sign-in code is right, and replaces it, so that it works once; raises as `is_token`."""
        right = self._checked(hmac.compare_digest(code.encode("utf-8", "replace"), self.code.encode()), client)
        if right:
            self.code = secrets.token_urlsafe(24)
        return right

    def _checked(self, is_right: bool, client: str) -> bool:
        """Returns `is_right`, and counts a wrong try; one that raises Wait is not counted."""
        now = self._clock()
        own = [at for at, other in self._wrong if other == client and at > now - WINDOW_S]
        if not is_right and len(own) >= MOST:
            raise Wait(math.ceil(own[-MOST] + WINDOW_S - now))
        if not is_right:
            self._wrong.append((now, client))
        return is_right

    def open_session(self) -> str:
        """Opens a session and returns its secret for a cookie; it ends after SESSION_S, at sign-out or with Keys."""
        secret, now = secrets.token_urlsafe(32), self._clock()
        going_on = {key: ends for key, ends in self._sessions.items() if ends > now}
        self._sessions = going_on | {_hashed(secret): now + SESSION_S}
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
        """Returns whether a request has the right token, and the secret of an open session; raises as `is_token`."""
        kind, _, bearer = asked.headers.get("authorization", "").partition(" ")
        # Starlette decodes headers as latin-1, but the token may contain other characters, so its bytes are compared.
        by_token = kind.lower() == "bearer" and self.is_token(bearer.strip().encode("latin-1"), client_of(asked))
        return by_token, self._clock() < self._sessions.get(_hashed(secret), 0.0)


def client_of(asked: HTTPConnection) -> str:
    """Returns the client's address; X-Forwarded-For counts only if the user trusts a proxy (`tuner.serve.__main__`)."""
    return asked.client.host if asked.client else ""


def _hashed(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()
