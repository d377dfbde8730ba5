"""Access control: on loopback, our own page and local programs may read; other requests need the token or a session.

A foreign web page can send requests to loopback through its visitor's browser. It cannot read the responses, because
the service sends no CORS header. After DNS rebinding (its own name resolved to 127.0.0.1) the Host header has its name,
and the guard refuses the request. The guard also refuses its requests that change something, for their Origin header.

Cookies ignore ports: the browser sends the cookie to every other service on this host too. The cookie alone therefore
only allows reading. Requests that change something also need the session's key. The page keeps the key in the browser's
storage, which is separate for each port.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.errors import RequestError
from tuner.serve.access.keys import SESSION_S, Keys, Wait, client_of
from tuner.serve.access.state import LEAST_CHARS
from tuner.serve.answers import refusal

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
READS = ("GET", "HEAD")
MOST_BYTES = 16 << 10  # bytes of a request body; a search's options take 1 kB
PUBLIC = ("/signin", "/page.css", "/control.css")  # paths that anybody may read to sign in; they contain no data
NO_TOKEN = (
    "sign in at /signin, or send 'Authorization: Bearer TOKEN'; the token is TUNER_TOKEN, or in the file that "
    "tuner.serve named when it was started"
)
KEY = "X-Tuner-Key"  # the header that carries a session's key


def is_loopback(host: str) -> bool:
    """Checks whether a host name or address is loopback, which other machines cannot reach."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def require_token(host: str, token: str) -> None:
    """Raises RequestError if other machines can reach a service at `host` and `token` is empty."""
    if not (token or is_loopback(host)):
        raise RequestError(
            f"--host {host} is open to other machines and there is no token: set TUNER_TOKEN to a secret of "
            f"{LEAST_CHARS} characters or more, or use --host 127.0.0.1"
        )


class Guard:
    """Middleware that refuses requests without access, signs users in, and adds HEADERS that the response does not set.

    It also limits a body to MOST_BYTES. FastAPI's `max_body_size` answers with a plain text, maybe before the 401.

    Args:
        loopback: whether only this machine can reach the service. Reading then needs no token, but the Host header
            must name loopback.
    """

    def __init__(self, app: ASGIApp, keys: Keys, loopback: bool) -> None:
        self._app, self._keys, self._loopback = app, keys, loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        num_bytes = 0

        async def receive_limited() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > MOST_BYTES:
                raise HTTPException(413, f"the body has more than {MOST_BYTES:,} bytes, which is the limit; send less")
            return message

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in {**HEADERS, "Cache-Control": "no-store"}.items():
                    headers.setdefault(name, value)
            await send(message)

        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            scope.setdefault("state", {})["session"] = self._keys.take_cookie(scope)
            try:
                answer = self._foreign(scope) or self._signed_in(scope) or self._without_key(scope)
            except Wait as wait:
                answer = refusal(429, str(wait), {"Retry-After": str(wait.seconds)})
            await (answer or self._app)(scope, receive_limited, send_guarded)

    def _foreign(self, scope: Scope) -> Response | None:
        """Returns a 403 for requests of foreign pages, by Host, Origin and Sec-Fetch-Site headers; None for others."""
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or (self._loopback and not is_loopback(_without_port(hosts[0]))):
            what = "open this page as http://127.0.0.1 or localhost" if self._loopback else "send one"
            return refusal(403, f"the Host header is missing or names another machine; {what}")
        asked = HTTPConnection(scope)
        origin, site = asked.headers.get("origin"), asked.headers.get("sec-fetch-site", "same-origin")
        host = hosts[0].lower()
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            return refusal(403, "the Origin header names another site; send the request from this service's page")
        if site not in ("same-origin", "none") and (scope["method"] not in READS or scope["path"].startswith("/api/")):
            return refusal(403, "a page of another site sent this request; send it from this service's page")
        return None

    def _signed_in(self, scope: Scope) -> Response | None:
        """Handles `GET /signin`: shows the form, or signs in by the printed link's code; None for other requests."""
        if scope["path"] != "/signin" or scope["method"] != "GET":
            return None
        codes = parse_qs(scope["query_string"].decode("latin-1")).get("code", [])
        if not codes:
            return signin_page()
        if not self._keys.spend(codes[0], client_of(HTTPConnection(scope))):
            problem = "This link was already used, or belongs to an earlier start of the service."
            return signin_page(f"{problem} Sign in with the token.", 401)
        return welcome(self._keys, secure=scope["scheme"] == "https")

    def _without_key(self, scope: Scope) -> Response | None:
        """Returns a 401 for requests without the token or session they need, else None; sets `state.signed_in`."""
        reads = scope["method"] in READS
        public, asked = scope["path"] in PUBLIC or (self._loopback and reads), HTTPConnection(scope)
        try:
            by_token, by_cookie = self._keys.holds(asked, asked.state.session)
        except Wait:
            if not public:
                raise
            by_token = by_cookie = False  # this request needs no token; a program may send an outdated one
        sent, key = asked.headers.get(KEY, ""), self._keys.key_of(asked.state.session)
        acts = by_cookie and hmac.compare_digest(sent.encode("latin-1"), key.encode())
        asked.state.signed_in = by_token or acts
        if public or by_token or (by_cookie and reads) or (acts and "origin" in asked.headers):
            return None
        if scope["path"] == "/" and reads and "text/html" in asked.headers.get("accept", ""):
            return signin_page("", 401)
        return refusal(401, NO_TOKEN)


def welcome(keys: Keys, secure: bool) -> Response:
    """Opens a session; returns a page that sets the session's cookie and opens the dashboard with the session's key.

    With a redirect, a browser would not send the SameSite=Strict cookie if a link on another site led here.
    """
    session = keys.open_session()
    page = f"/#key={keys.key_of(session)}"  # browsers never send what follows #; service.js stores the key
    answer = HTMLResponse(
        _page(f'<meta http-equiv="refresh" content="0;url={page}"><p>Signed in. <a href="{page}">Continue</a></p>')
    )
    answer.set_cookie(keys.cookie, session, max_age=SESSION_S, httponly=True, samesite="strict", secure=secure)
    return answer


def signin_page(problem: str = "", status: int = 200, more: Mapping[str, str] | None = None) -> Response:
    """Returns the sign-in page: a form for the token, without a script; `more` are additional headers.

    `problem`, shown above the form, is not escaped, so it must never contain text from a request.
    """
    form = (
        f'<h1>Sign in</h1><p role="alert">{problem}</p><form method="post" action="/signin"><p><label>Token '
        '<input type="password" name="token" autocomplete="current-password" required autofocus></label> '
        "<button>Sign in</button></p></form><p>The token is the TUNER_TOKEN that the service was started with, or the "
        "content of the file that the service named when it started.</p>"
    )
    policy = HEADERS["Content-Security-Policy"].replace("form-action 'none'", "form-action 'self'")
    # With the policy no-referrer, a browser sends a form with `Origin: null`, even to its own site: `Guard` refuses it.
    headers = {"Content-Security-Policy": policy, "Referrer-Policy": "same-origin"}
    headers |= {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return HTMLResponse(_page(form), status, headers | dict(more or {}))


def _page(body: str) -> str:
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>tuner: sign in</title>'
    view = '<meta name="viewport" content="width=device-width">'
    look = "".join(f'<link rel="stylesheet" href="{path}">' for path in PUBLIC if path.endswith(".css"))
    return f"{head}{view}{look}<main>{body}</main></html>"


def _without_port(host: str) -> str:
    """Removes the port of a Host header: `[::1]:8800` -> `[::1]`; returns any other text unchanged."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and not host.endswith("]") else host
