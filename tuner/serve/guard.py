"""Who may ask: on loopback this machine's own pages and programs may read; all else needs the token.

A page elsewhere on the web reaches loopback through its visitor's browser. It cannot read answers, since no CORS header
is sent; with its own name rebound to 127.0.0.1 it could, but then its name is in the Host header, which is refused.
What it sends is refused by its Origin, and by the session's cookie, which a browser sends from our own pages alone.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
READS = ("GET", "HEAD")
PUBLIC = ("/signin", "/page.css", "/control.css")  # asked for before there is a session; they tell nothing
NO_TOKEN = (
    "sign in at /signin, or send 'Authorization: Bearer TOKEN'; the token is TUNER_TOKEN, or in .service/token of the "
    "results folder"
)


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own and reached from nowhere else."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Keys:
    """What lets in: the token, the session's cookie that proves it without being it, a code that works once."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self.session = hmac.new(self._token, b"tuner.serve session", "sha256").hexdigest()
        # Browsers keep cookies by host and not by port: two services on one machine must not take each other's.
        self.cookie = f"tuner_{hashlib.sha256(self.session.encode()).hexdigest()[:12]}"
        self.code = secrets.token_urlsafe(24)

    def is_token(self, given: str) -> bool:
        """Compares in constant time."""
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token)

    def spend(self, code: str) -> bool:
        """Whether this is the code; from then on it is not."""
        right = hmac.compare_digest(code.encode("utf-8", "replace"), self.code.encode())
        if right:
            self.code = secrets.token_urlsafe(24)
        return right

    def holds(self, asked: HTTPConnection) -> tuple[bool, bool]:
        """Whether a request brings the token, and whether it brings the cookie."""
        kind, _, bearer = asked.headers.get("authorization", "").partition(" ")
        cookie = asked.cookies.get(self.cookie, "").encode("latin-1", "replace")
        # Both are always compared: how long it takes says nothing. Headers are latin-1, the token may be more.
        given = bearer.strip().encode("latin-1")
        by_token = hmac.compare_digest(given, self._token) and kind.lower() == "bearer"
        return by_token, hmac.compare_digest(cookie, self.session.encode())


class Guard:
    """Middleware: refuses what may not ask, signs in, and sets those of HEADERS that an answer has not set itself.

    Args:
        loopback: the service is reached from this machine alone: reading needs no token, but a Host that is loopback.
    """

    def __init__(self, app: ASGIApp, keys: Keys, loopback: bool) -> None:
        self._app, self._keys, self._loopback = app, keys, loopback

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
            answer = self._foreign(scope) or self._signed_in(scope) or self._without_key(scope)
            await (answer or self._app)(scope, receive, send_guarded)

    def _foreign(self, scope: Scope) -> Response | None:
        """By Host, Origin and what the browser says of where a request comes from."""
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or (self._loopback and not is_loopback(_without_port(hosts[0]))):
            what = "open this page as http://127.0.0.1 or localhost" if self._loopback else "send one"
            return refusal(403, f"the Host header names another machine, or none; {what}")
        asked = HTTPConnection(scope)
        origin, site = asked.headers.get("origin"), asked.headers.get("sec-fetch-site", "same-origin")
        if origin is not None and _netloc(origin) != hosts[0].lower():
            return refusal(403, "the Origin header names another page than this service's; ask from here")
        if site not in ("same-origin", "none") and (scope["method"] not in READS or scope["path"].startswith("/api/")):
            return refusal(403, "a page elsewhere asked for this; ask from here")
        return None

    def _signed_in(self, scope: Scope) -> Response | None:
        """`GET /signin?code=` of the link printed at the start."""
        if scope["path"] != "/signin" or scope["method"] != "GET":
            return None
        codes = parse_qs(scope["query_string"].decode("latin-1")).get("code", [])
        if not codes:
            return signin_page()
        if not self._keys.spend(codes[0]):
            return signin_page("This link was used already, or is of an earlier start. Sign in by the token.", 401)
        return welcome(self._keys, secure=scope["scheme"] == "https")

    def _without_key(self, scope: Scope) -> Response | None:
        by_token, by_cookie = self._keys.holds(asked := HTTPConnection(scope))
        scope.setdefault("state", {})["signed_in"] = by_token or by_cookie
        reads = scope["method"] in READS
        if scope["path"] in PUBLIC or (self._loopback and reads):
            return None
        if by_token or (by_cookie and (reads or "origin" in asked.headers)):
            return None
        if scope["path"] == "/" and reads and "text/html" in asked.headers.get("accept", ""):
            return signin_page("", 401)
        return refusal(401, NO_TOKEN)


def welcome(keys: Keys, secure: bool) -> Response:
    """The session's cookie. A page that goes on by itself and no redirect: one that began elsewhere, by a link in a
    chat, would not send a Strict cookie on."""
    text = '<meta http-equiv="refresh" content="0;url=/"><p>Signed in. <a href="/">Go on</a></p>'
    answer = HTMLResponse(_page(text))
    answer.set_cookie(keys.cookie, keys.session, httponly=True, samesite="strict", secure=secure)
    return answer


def signin_page(problem: str = "", status: int = 200) -> Response:
    """A form for the token, without a script; `problem` is a text of this module's."""
    form = (
        f'<h1>Sign in</h1><p role="alert">{problem}</p><form method="post" action="/signin"><p><label>Token '
        '<input type="password" name="token" autocomplete="current-password" required autofocus></label> '
        "<button>Sign in</button></p></form><p>It is TUNER_TOKEN where the service was started, or in "
        "<code>.service/token</code> of the results folder.</p>"
    )
    policy = HEADERS["Content-Security-Policy"].replace("form-action 'none'", "form-action 'self'")
    # Under no-referrer a browser sends a form with `Origin: null`, even to its own page.
    headers = {"Content-Security-Policy": policy, "Referrer-Policy": "same-origin"}
    headers |= {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return HTMLResponse(_page(form), status, headers)


def _page(body: str) -> str:
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>tuner: sign in</title>'
    view = '<meta name="viewport" content="width=device-width">'
    look = "".join(f'<link rel="stylesheet" href="{path}">' for path in PUBLIC if path.endswith(".css"))
    return f"{head}{view}{look}<main>{body}</main></html>"


def refusal(status: int, message: str) -> Response:
    """An error as every error of the API is: `{"error": message}`."""
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse({"error": message}, status, headers)


def _netloc(origin: str) -> str | None:
    """`http://box:8800` -> `box:8800`; None for `null` and what is no origin of the web."""
    try:
        parts = urlsplit(origin.lower())
    except ValueError:
        return None
    plain = parts.scheme in ("http", "https") and not (parts.path or parts.query or parts.fragment)
    return parts.netloc if plain else None


def _without_port(host: str) -> str:
    """`[::1]:8800` -> `[::1]`; what is no host and port stays what no name equals."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and not host.endswith("]") else host
