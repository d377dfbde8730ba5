"""Access control: on loopback, our own page and local programs may read; other requests need the token or a session.

A foreign web page can send requests to loopback through its visitor's browser. It cannot read the responses, because
the service sends no CORS header. The guard refuses such requests by their headers: Host, which names the foreign host
after DNS rebinding; Origin, which names the foreign site in requests that change something; and Sec-Fetch-Site.

Cookies ignore ports: the browser sends the cookie to every other service on this host too. The cookie alone therefore
allows only reading. To change something, the page also sends a key from its storage, which no other port can read.
"""

from __future__ import annotations

import hmac
import ipaddress
import math
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from urllib.parse import parse_qs

from fastapi import FastAPI, Request
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
MOST_BYTES = 64 << 10  # bytes of a request body; a search's options take 1 kB, the longest tags and notes 34 kB
PUBLIC = ("/signin", "/page.css")  # paths that anybody may request to sign in; they contain no data
NO_TOKEN = (
    "sign in at /signin, or send 'Authorization: Bearer TOKEN'; the token is TUNER_TOKEN, or in the file that "
    "tuner.serve named when it was started"
)
KEY = "X-Tuner-Key"  # the header that carries a session's key
WINDOW_S = 60.0  # seconds for which a wrong try counts
MOST_WRONG = 10  # wrong tokens and codes that one client may try within WINDOW_S
SESSION_S = 12 * 3600  # seconds that a browser stays signed in


def is_loopback(host: str) -> bool:
    """Checks whether a host name or address is loopback, which other machines cannot reach."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Wait(Exception):
    """Raised for a wrong token or sign-in code after too many wrong ones."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many wrong tries; wait {seconds} s")
        self.seconds = seconds


class Keys:
    """The token, a sign-in code that works once, and the browser sessions that were opened with either.

    A right token or code is always accepted, so wrong tries lock nobody out. Secrets are too long to be guessed.
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
        """Checks a sign-in code as `is_token` checks a token; after a right one, makes a new code: each works once."""
        right = self._checked(hmac.compare_digest(code, self.code.encode()), client)
        if right:
            self.code = secrets.token_urlsafe(24)
        return right

    def _checked(self, is_right: bool, client: str) -> bool:
        now = self._clock()
        own = [at for at, other in self._wrong if other == client and at > now - WINDOW_S]
        if not is_right and len(own) >= MOST_WRONG:
            raise Wait(math.ceil(own[-MOST_WRONG] + WINDOW_S - now))
        if not is_right:
            self._wrong.append((now, client))
        return is_right

    def open_session(self) -> str:
        """Opens a session that lasts SESSION_S seconds; returns its secret, which the browser keeps as a cookie."""
        secret, now = secrets.token_urlsafe(32), self._clock()
        self._sessions = {each: kept for each, kept in self._sessions.items() if kept[1] > now}
        self._sessions[secret] = secrets.token_urlsafe(32), now + SESSION_S
        return secret

    def key_of(self, secret: str) -> str:
        """Returns the key that a session's requests must send to change something; empty if there is no session."""
        key, ends = self._sessions.get(secret, ("", 0.0))
        return key if self._clock() < ends else ""

    def end_session(self, secret: str) -> None:
        self._sessions.pop(secret, None)


class Guard:
    """Middleware that refuses requests without access, limits a body to MOST_BYTES, and adds HEADERS to responses.

    With `loopback`, only this machine can reach the service: reading needs no token, but the Host header must name
    loopback.
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
            scope.setdefault("state", {})["session"] = take_cookie(scope, self._keys.cookie)
            asked = HTTPConnection(scope)
            try:
                answer = self._foreign(asked) or self._without_key(asked)
            except Wait as wait:
                answer = refusal(429, str(wait), {"Retry-After": str(wait.seconds)})
            await (answer or self._app)(scope, receive_limited, send_guarded)

    def _foreign(self, asked: HTTPConnection) -> Response | None:
        """Returns a 403 if Host is missing, or Host, Origin or Sec-Fetch-Site shows a request from a foreign page."""
        hosts = asked.headers.getlist("host")
        host = hosts[0].lower() if len(hosts) == 1 else ""
        if len(hosts) != 1 or (self._loopback and not is_loopback(re.sub(r":[0-9]+\Z", "", host))):
            what = "open this page as http://127.0.0.1 or localhost" if self._loopback else "send one"
            return refusal(403, f"the Host header is missing or names another machine; {what}")
        origin, site = asked.headers.get("origin"), asked.headers.get("sec-fetch-site", "same-origin")
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            return refusal(403, "the Origin header names another site; send the request from this service's page")
        reads_page = asked.scope["method"] in READS and not asked.scope["path"].startswith("/api/")
        if site not in ("same-origin", "none") and not reads_page:
            return refusal(403, "a page of another site sent this request; send it from this service's page")
        return None

    def _without_key(self, asked: HTTPConnection) -> Response | None:
        """Returns a 401 if a request lacks the token or session it needs; sets `state.signed_in`; may raise Wait."""
        reads, path = asked.scope["method"] in READS, asked.scope["path"]
        public, by_token = path in PUBLIC or (self._loopback and reads), False
        kind, _, token = asked.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            try:  # Starlette decodes headers as latin-1; the token may have other characters, so bytes are compared
                by_token = self._keys.is_token(token.strip().encode("latin-1"), client_of(asked))
            except Wait:
                if not public:  # a public request needs no token; a program may send an outdated one
                    raise
        key, sent = self._keys.key_of(asked.state.session), asked.headers.get(KEY, "")
        acts = bool(key) and hmac.compare_digest(sent.encode("latin-1"), key.encode())
        asked.state.signed_in = by_token or acts
        if public or by_token or (key and reads) or (acts and "origin" in asked.headers):
            return None
        if path == "/" and reads and "text/html" in asked.headers.get("accept", ""):
            return signin_page("", 401)
        return refusal(401, NO_TOKEN)


def take_cookie(scope: Scope, cookie: str) -> str:
    """Removes all cookies from a request; returns the session's secret, or an empty text.

    FastAPI reads `request.cookies` for each request to a route, which calls `http.cookies._unquote`. In Python 3.11.7,
    this function's time grows with the square of the header's length: 60 kB of backslashes block all requests for 10 s.
    """
    session_secret = ""
    for header, value in scope["headers"]:
        for pair in value.split(b";") if header == b"cookie" else ():
            name, _, secret = pair.strip().partition(b"=")
            if name == cookie.encode():
                session_secret = secret.decode("latin-1")  # the secret is URL-safe, so it is never quoted
    scope["headers"] = [header for header in scope["headers"] if header[0] != b"cookie"]
    return session_secret


def client_of(asked: HTTPConnection) -> str:
    """Returns the client's address; X-Forwarded-For counts only if the user trusts a proxy (`tuner.serve.__main__`)."""
    return asked.client.host if asked.client else ""


def add_signin(app: FastAPI, keys: Keys) -> None:
    """Adds the routes that sign a browser in (by the code in the printed link, or by the token) and sign it out."""

    def opened(request: Request, is_right: Callable[[bytes, str], bool], given: str, problem: str) -> Response:
        """If `given` is right, opens a session and returns a page that sets the cookie and forwards to the dashboard.

        After a redirect instead, a browser that came from another site's link would not send a SameSite=Strict cookie.
        """
        try:
            if not is_right(given.encode("utf-8", "replace"), client_of(request)):
                return signin_page(problem, 401)
        except Wait as wait:
            return signin_page(f"{wait}.".capitalize(), 429, {"Retry-After": str(wait.seconds)})
        secret = keys.open_session()
        page = f"/#key={keys.key_of(secret)}"  # browsers never send what follows #; service.js stores the key
        body = f'<meta http-equiv="refresh" content="0;url={page}"><p>Signed in. <a href="{page}">Continue</a></p>'
        answer, is_secure = HTMLResponse(html_page("sign in", body)), request.url.scheme == "https"
        answer.set_cookie(keys.cookie, secret, SESSION_S, httponly=True, samesite="strict", secure=is_secure)
        return answer

    @app.get("/signin", include_in_schema=False)
    async def link(request: Request, code: str = "") -> Response:
        problem = "This link was already used, or belongs to an earlier start of the service. Sign in with the token."
        return opened(request, keys.spend, code, problem) if code else signin_page()

    @app.post("/signin", include_in_schema=False)
    async def form(request: Request) -> Response:
        token = parse_qs((await request.body()).decode("utf-8", "replace")).get("token", [""])[0]
        return opened(request, keys.is_token, token, "That is not the token.")

    @app.post("/signout", include_in_schema=False)
    async def signout(request: Request) -> Response:
        keys.end_session(request.state.session)
        gone = Response(status_code=204)
        gone.delete_cookie(keys.cookie, httponly=True, samesite="strict", secure=request.url.scheme == "https")
        return gone


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
    # With the policy no-referrer, a browser sends a form with `Origin: null`, even to its own site; `Guard` refuses it.
    headers = {"Content-Security-Policy": policy, "Referrer-Policy": "same-origin"}
    headers |= {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return HTMLResponse(html_page("sign in", form), status, headers | dict(more or {}))


def html_page(title: str, body: str) -> str:
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>tuner: {title}</title>'
    view = '<meta name="viewport" content="width=device-width">'
    look = "".join(f'<link rel="stylesheet" href="{path}">' for path in PUBLIC if path.endswith(".css"))
    return f"{head}{view}{look}<main>{body}</main></html>"
