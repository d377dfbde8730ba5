"""Who may ask: on loopback this machine's own browser pages and programs, beyond it whoever has the token.

A page elsewhere on the web reaches loopback through its visitor's browser. It cannot read answers, since no CORS header
is sent; with its own name rebound to 127.0.0.1 it could, but then its name is in the Host header, which is refused.
"""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "tuner_session"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own and reached from nowhere else."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Middleware: refuses what may not ask, and sets those of HEADERS that an answer has not set itself.

    Without a token the Host header must name loopback; with one, every request must bring it.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in {**HEADERS, "Cache-Control": "no-store"}.items():
                    headers.setdefault(name, value)
            await send(message)

        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            answer = self._by_token(scope) if self._token else self._by_host(scope)
            await (answer or self._app)(scope, receive, send_guarded)

    def _by_host(self, scope: Scope) -> Response | None:
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) == 1 and is_loopback(_without_port(hosts[0])):
            return None
        return refusal(403, "the Host header names another machine; open this page as http://127.0.0.1 or localhost")

    def _by_token(self, scope: Scope) -> Response | None:
        asked = HTTPConnection(scope)
        given = parse_qs(scope["query_string"].decode("latin-1"), encoding="utf-8").get("token", [])
        if scope["path"] == "/" and scope["method"] == "GET" and given:
            return self._sign_in(given[0], secure=scope["scheme"] == "https")
        kind, _, bearer = asked.headers.get("authorization", "").partition(" ")
        by_header = kind.lower() == "bearer" and self._same(bearer.strip().encode("latin-1"), self._token)
        # Both are always compared: how long it takes says nothing.
        by_cookie = self._same(asked.cookies.get(COOKIE, "").encode("latin-1", "replace"), self._session())
        if by_header or by_cookie:
            return None
        return refusal(401, "sign in at /?token=TUNER_TOKEN, or send 'Authorization: Bearer TUNER_TOKEN'")

    def _sign_in(self, given: str, secure: bool) -> Response:
        if not self._same(given.encode("utf-8", "replace"), self._token):
            return refusal(401, "wrong token; it is what TUNER_TOKEN was set to where tuner.serve was started")
        answer = RedirectResponse("/", status_code=303)
        # Lax and not strict: a browser that follows the link from a chat would not send the cookie on otherwise.
        answer.set_cookie(COOKIE, self._session().decode(), httponly=True, samesite="lax", secure=secure)
        return answer

    def _session(self) -> bytes:
        """What the cookie holds: proof of the token without being it."""
        return hmac.new(self._token, b"tuner.serve session", "sha256").hexdigest().encode()

    @staticmethod
    def _same(given: bytes, wanted: bytes) -> bool:
        return hmac.compare_digest(given, wanted)


def refusal(status: int, message: str) -> Response:
    """An error as every error of the API is: `{"error": message}`."""
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse({"error": message}, status, headers)


def _without_port(host: str) -> str:
    """`[::1]:8800` -> `[::1]`; what is no host and port stays what no name equals."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and not host.endswith("]") else host
