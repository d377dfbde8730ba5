"""Holds the credentials (token, sign-in code, browser sessions) and limits how often clients may try wrong ones."""

from __future__ import annotations

import hmac
import math
import secrets
import time
from collections import deque
from collections.abc import Callable

WINDOW_S = 60.0
MOST = 10  # wrong tries of one client within WINDOW_S
SESSION_S = 12 * 3600


class Wait(Exception):
    """Raised for a wrong token or sign-in code after too many wrong ones; tells the client to wait `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many wrong tries; wait {seconds} s")
        self.seconds = seconds


class Keys:
    """The token, a code that works once, and the browser sessions opened with either.

    A right token or code is always accepted, so one client's wrong tries lock no other client out. The secret's
    length, not the limit on wrong tries, protects it from being guessed.
    """

    def __init__(self, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._token, self._clock = token.encode(), clock
        self._wrong: deque[tuple[float, str]] = deque(maxlen=1000)  # time and client of each wrong try
        self._sessions: dict[str, tuple[str, float]] = {}  # a session's secret -> its key, and when it ends, by `clock`
        # Browsers store cookies by host, not by port, so each service on a machine needs its own cookie name.
        self.cookie = f"tuner_{secrets.token_hex(6)}"
        self.code = secrets.token_urlsafe(24)

    def is_token(self, token: bytes, client: str) -> bool:
        """Checks a token in constant time; raises Wait if it is wrong and this client tried too many wrong ones."""
        return self._checked(hmac.compare_digest(token, self._token), client)

    def spend(self, code: bytes, client: str) -> bool:
        """Returns whether the sign-in code is right, and replaces it, so that it works once; raises as `is_token`."""
        right = self._checked(hmac.compare_digest(code, self.code.encode()), client)
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
        self._sessions = {each: kept for each, kept in self._sessions.items() if kept[1] > now}
        self._sessions[secret] = secrets.token_urlsafe(32), now + SESSION_S
        return secret

    def key_of(self, secret: str) -> str:
        """Returns an open session's key, which requests that change something need; empty if there is no session."""
        key, ends = self._sessions.get(secret, ("", 0.0))
        return key if self._clock() < ends else ""

    def end_session(self, secret: str) -> None:
        """Ends the browser session with that secret; does nothing if there is none."""
        self._sessions.pop(secret, None)
