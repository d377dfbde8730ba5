"""What the service must refuse of whoever has no token, comes from elsewhere, or sends too much."""

import itertools
import json
import os
import stat
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient

from tests.serve.conftest import HERE, TOKEN
from tuner.errors import RequestError
from tuner.record.saved_experiment import COPY, FILE
from tuner.record.storage.files import secret_file
from tuner.serve.access import state
from tuner.serve.access.guard import KEY, MOST_BYTES, SESSION_S, Keys, Wait
from tuner.serve.access.state import LEAST_CHARS, token_from_environment
from tuner.serve.app import create_app

ALL, DEMO = "/api/experiments", "/api/experiments/demo"
BODY = {"space": "quadratic", "name": "evil"}
JSON = {"Content-Type": "application/json"}
OWN = {"Origin": HERE}
BOX = {"Origin": "http://box:8800"}
FOREIGN = {"Origin": "http://evil.com"}


def cookie(service, value=None):
    keys = service.app.state.keys
    return {"Cookie": f"{keys.cookie}={keys.open_session() if value is None else value}"}


def page(service):
    """What our own page sends once it is signed in."""
    keys = service.app.state.keys
    secret = keys.open_session()
    return {"Cookie": f"{keys.cookie}={secret}", KEY: keys.key_of(secret)}


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


# name -> (headers of a POST, its status); a callable gets the service
WRITES = {
    "no token": ({}, 401),
    "our own page, not signed in": (OWN, 401),
    "wrong token": (bearer("wrong"), 401),
    "empty token": (bearer(""), 401),
    "token with a character too few": (lambda s: bearer(s.token[:-1]), 401),
    "token by basic authentication": (lambda s: {"Authorization": f"Basic {s.token}"}, 401),
    "token in a cookie": (lambda s: {**cookie(s, "s3cret"), **OWN}, 401),
    "empty cookie": (lambda s: {**cookie(s, ""), **OWN}, 401),
    "forged cookie": (lambda s: {**cookie(s, "0" * 64), **OWN}, 401),
    "cookie without its key": (lambda s: {**cookie(s), **OWN}, 401),
    "cookie with an empty key": (lambda s: {**cookie(s), **OWN, KEY: ""}, 401),
    "cookie with another session's key": (lambda s: {**page(s), **cookie(s), **OWN}, 401),
    "key without a cookie": (lambda s: {**page(s), "Cookie": "", **OWN}, 401),
    "cookie and key without an origin": (page, 401),
    "cookie from a page elsewhere (CSRF)": (lambda s: {**cookie(s), **FOREIGN}, 403),
    "cookie from a sandboxed page": (lambda s: {**cookie(s), "Origin": "null"}, 403),
    "cookie from another port": (lambda s: {**cookie(s), "Origin": "http://127.0.0.1:9999"}, 403),
    "cookie from a name that begins like ours": (lambda s: {**cookie(s), "Origin": f"{HERE}.evil.com"}, 403),
    "cookie from a name with ours as its user": (lambda s: {**cookie(s), "Origin": "http://127.0.0.1:8800@evil"}, 403),
    "cookie from a file": (lambda s: {**cookie(s), "Origin": "file://127.0.0.1:8800"}, 403),
    "an origin that does not parse": (lambda s: {**cookie(s), "Origin": "http://[::1"}, 403),
    "token from a page elsewhere": (lambda s: {**bearer(s.token), **FOREIGN}, 403),
    "a browser says it is another site": (lambda s: {**cookie(s), **OWN, "Sec-Fetch-Site": "cross-site"}, 403),
    "a browser says it is a sibling": (lambda s: {**cookie(s), **OWN, "Sec-Fetch-Site": "same-site"}, 403),
    "rebound name": (lambda s: {**bearer(s.token), "Host": "evil.com:8800"}, 403),
    "rebound name with its own origin": (
        lambda s: {**cookie(s), "Host": "evil.com:8800", "Origin": "http://evil.com:8800"},
        403,
    ),
    "says it was forwarded from here": ({"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1"}, 401),
}


def test_a_write_is_refused(service):
    service.begin("demo").close()
    paths = [("POST", ALL), *(("POST", f"{DEMO}/{each}") for each in ("stop", "resume", "notes", "archive"))]
    for attack, (headers, status) in WRITES.items():
        service.app.state.keys._wrong.clear()  # else it would answer 429
        for method, path in [*paths, ("DELETE", DEMO)]:
            sent = headers(service) if callable(headers) else headers
            answer = service.anyone.request(method, path, json=BODY, headers=sent)
            assert answer.status_code == status and list(answer.json()) == ["error"], attack
            assert "access-control-allow-origin" not in answer.headers and not service.searches.all(), attack
    for _, path in paths:
        assert service.anyone.options(path, headers=FOREIGN).status_code in (401, 403, 405)
    assert os.listdir(service.results) == ["demo"]
    assert sorted(os.listdir(service.results / "demo")) == [COPY, FILE, "journal.jsonl"]


def test_a_cookie_that_another_port_got_starts_nothing(service, far):
    """A browser sends it to whatever else listens on this host; it may read, and act nowhere."""
    stolen = {**cookie(service), **OWN}
    assert not service.anyone.get("/api/session", headers=stolen).json()["signed_in"]
    assert service.anyone.post(ALL, json=BODY, headers=stolen).status_code == 401 and not service.searches.all()
    own = {**page(service), **OWN}
    assert service.anyone.get("/api/session", headers=own).json()["signed_in"]
    assert service.anyone.post(ALL, json=BODY, headers=own).status_code == 202
    assert far.health(Cookie=f"{far.keys.cookie}={far.keys.open_session()}") == 200


def test_a_body_that_is_no_request_is_refused(service):
    for body in (b"{", b"[]", b"null", b'"x"', b"\xff", b"[" * 10_000, b"", b'{"space": NaN}'):
        answer = service.owner.post(ALL, content=body, headers=JSON)
        assert answer.status_code in (400, 422) and list(answer.json()) == ["error"]
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):  # a form elsewhere
        answer = service.owner.post(ALL, content=json.dumps(BODY), headers={"Content-Type": kind})
        assert answer.status_code == 422 and not service.searches.all()


SPACES = [
    "/etc/passwd", "../search_spaces/cifar.py", "./evil.py", "os:system", "search_spaces.cifar", "cifar.py", "CIFAR",
    "cifar\x00", "cifar ", "", "__init__", "datasets", "--list", "$(id)", "cifar;id", "http://evil.com/space.py",
]  # fmt: skip


def test_a_space_is_a_known_name_and_never_code(service):
    for space in SPACES:
        answer = service.owner.post(ALL, json={"space": space})
        assert answer.status_code == 422 and "must be one of" in answer.json()["error"] and not service.searches.all()


def test_where_a_search_reads_writes_and_runs_is_not_a_requests_to_say(service):
    for name in ("results", "data_dir", "address", "wandb", "wandb_project", "resume", "__class__"):
        answer = service.owner.post(ALL, json={**BODY, name: "/tmp/evil"})
        assert answer.status_code == 422 and name in answer.json()["error"]
    for name in ("..", ".service", "a/b", "/abs", "a\x00b", "a\n", "-rf", "--results=x", "é", "a" * 101):
        assert service.owner.post(ALL, json={**BODY, "name": name}).status_code == 422
    assert not service.searches.all()


def test_only_experiments_are_acted_on(service):
    (service.results / "link").symlink_to(service.results.parent)
    for name in ("..%2fsecret", "%2e%2e", "demo%00", ".service", "link", "%2fetc", "nothing", "%ff"):
        for action in ("stop", "resume"):
            answer = service.owner.post(f"{ALL}/{name}/{action}")
            assert answer.status_code == 404 and list(answer.json()) == ["error"]


def test_a_value_never_becomes_an_option(service):
    answer = service.owner.post(ALL, json={**BODY, "metric": "--results=/tmp/evil"})
    assert answer.status_code == 202 and service.searches.get("evil").options["results"] == str(service.results)
    assert service.searches.get("evil").options["metric"] == "--results=/tmp/evil"


def test_a_text_that_is_not_printable_is_refused_before_a_process_is_started(service, monkeypatch):
    """A zero byte in a process's arguments is a ValueError of Python's."""
    service.begin("demo").close()
    monkeypatch.setattr("tuner.serve.jobs.searches.checked_options", lambda arguments: pytest.fail("it was asked"))
    for field, character in itertools.product(("metric", "name", "time_budget"), "\x00\n\x1b\x9b\u202e\ud800"):
        path, more = (f"{DEMO}/resume", {}) if field == "time_budget" else (ALL, BODY)
        answer = service.owner.post(path, content=json.dumps({**more, field: f"1{character}s"}), headers=JSON)
        assert answer.status_code == 422 and field in answer.json()["error"] and answer.json()["error"].isprintable()


def test_a_page_elsewhere_opens_no_stream(service):
    service.begin("demo").close()
    for site in ("cross-site", "same-site"):
        headers = {"Sec-Fetch-Site": site}
        assert service.anyone.get(f"{ALL}/demo/events", headers=headers).status_code == 403
        assert service.anyone.get("/", headers=headers).status_code == 200  # a link to the page may be


def test_a_long_body_is_refused(service):
    for content in (b" " * (MOST_BYTES + 1), (b" " * 1000 for _ in range(MOST_BYTES // 500))):
        answer = service.owner.post(ALL, content=content)
        assert answer.status_code == 413 and list(answer.json()) == ["error"]


@pytest.fixture
def far(tmp_path):
    """A service that is reached from elsewhere."""
    app = create_app(tmp_path, host="0.0.0.0", token=TOKEN)
    client = TestClient(app, base_url="http://box:8800")

    def sign_in(token=TOKEN, **headers):
        return client.post("/signin", data={"token": token}, headers={**BOX, **headers}).status_code

    def health(**headers):
        return client.get("/api/health", headers=headers).status_code

    return SimpleNamespace(client=client, keys=app.state.keys, sign_in=sign_in, health=health)


def test_the_link_signs_in_once_and_its_code_is_spent(far):
    code = far.keys.code
    assert far.health() == 401
    answer = far.client.get("/signin", params={"code": code})
    assert answer.status_code == 200
    kept = answer.headers["set-cookie"]
    assert "HttpOnly" in kept and "SameSite=strict" in kept and TOKEN not in kept and code not in kept
    assert far.health() == 200
    (secret,) = far.client.cookies.values()
    assert f'content="0;url=/#key={far.keys.key_of(secret)}"' in answer.text and secret not in answer.text
    far.client.cookies.clear()
    again = far.client.get("/signin", params={"code": code})
    assert again.status_code == 401 and "set-cookie" not in again.headers and "already used" in again.text


def test_wrong_codes_sign_nobody_in_and_the_right_one_does(far):
    for code in ("", "é", "%ff", "<script>alert(1)</script>"):
        answer = far.client.get("/signin", params={"code": code})
        assert "set-cookie" not in answer.headers and "<script" not in answer.text
    codes = [far.client.get("/signin", params={"code": "wrong"}).status_code for _ in range(8)]
    assert codes == [401] * 7 + [429]
    assert far.client.get("/signin", params={"code": far.keys.code}).status_code == 200


def test_the_form_signs_in_by_the_token_from_its_own_page_alone(far):
    assert far.sign_in(**FOREIGN) == 403 and far.sign_in("wrong") == 401
    assert far.client.post("/signin", content=b"x" * (MOST_BYTES + 1), headers=BOX).status_code == 413
    assert far.health() == 401
    assert far.sign_in() == 200 == far.health()


def test_a_browser_beyond_loopback_gets_the_form_and_nothing_else(far):
    answer = far.client.get("/", headers={"Accept": "text/html"})
    assert answer.status_code == 401 and "password" in answer.text and "page.js" not in answer.text
    assert "form-action 'self'" in answer.headers["content-security-policy"]


def test_a_secret_is_kept_from_others_and_no_full_disk_leaves_half_of_one(tmp_path, monkeypatch):
    """A file that is half written would be taken for the token by the next start."""
    path, opened = tmp_path / "token", os.open

    def full(path, flags, *mode, **options):
        handle = opened(path, flags, *mode, **options)
        if flags & os.O_EXCL:
            os.dup2(opened("/dev/full", os.O_WRONLY), handle)
        return handle

    with monkeypatch.context() as disk:
        disk.setattr(os, "open", full)
        with pytest.raises(RequestError, match="cannot be created .No space left"):
            secret_file(path)
    assert not path.exists()
    token = secret_file(path).read_text()
    assert len(token) > 40 and secret_file(path).read_text() == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_pythons_reader_of_cookies_is_never_asked(service, far, monkeypatch):
    """It takes 10 s for a header of 60 kB, in the thread that answers everybody."""
    monkeypatch.setattr("http.cookies._unquote", lambda text: pytest.fail("it was asked"))
    hostile = 'a="' + "\\" * 60_000 + '"; '
    for client, keys, own in ((service.anyone, service.app.state.keys, OWN), (far.client, far.keys, BOX)):
        secret = keys.open_session()
        kept = {"Cookie": f"{hostile}{keys.cookie}={secret}; b=2", KEY: keys.key_of(secret), **own}
        paths = {"/": "GET", ALL: "GET", "/api/session": "GET", "/signout": "POST"}
        assert all(client.request(paths[path], path, headers=kept).status_code in (200, 204) for path in paths)


def test_a_session_ends_after_twelve_hours():
    now = [1000.0]
    keys = Keys("x" * 40, lambda: now[0])
    secret = keys.open_session()
    now[0] += SESSION_S - 1
    assert keys.key_of(secret)
    now[0] += 1
    assert not keys.key_of(secret)


def test_a_session_is_of_one_start_of_the_service(far):
    again = Keys(TOKEN)
    assert far.keys.cookie != again.cookie and far.keys.open_session() != again.open_session()
    assert not again.key_of(far.keys.open_session())


def test_signing_out_ends_the_session_and_no_other(far):
    other = far.keys.open_session()
    assert far.sign_in() == 200
    (value,) = far.client.cookies.values()
    key = {KEY: far.keys.key_of(value)}
    assert far.client.post("/signout", headers=FOREIGN).status_code == 403 and far.health() == 200
    assert far.client.post("/signout", headers=BOX).status_code == 401
    answer = far.client.post("/signout", headers={**BOX, **key})
    assert answer.status_code == 204 and "Max-Age=0" in answer.headers["set-cookie"]
    assert not far.client.cookies and far.health() == 401
    assert far.health(Cookie=f"{far.keys.cookie}={value}") == 401  # a copy of the cookie
    assert far.keys.key_of(other)


def test_wrong_tokens_are_refused_after_ten_in_a_minute_and_the_right_one_is_not(far):
    assert [far.health(**bearer("wrong")) for _ in range(11)] == [401] * 10 + [429]
    forged = {**bearer("wrong"), "X-Forwarded-For": "192.0.2.1"}  # it does not change the client that is counted
    answer = far.client.get("/api/health", headers=forged)
    assert 0 < int(answer.headers["retry-after"]) <= 60 and "too many wrong tries" in answer.json()["error"]
    assert far.sign_in("x") == 429
    assert far.health(**bearer(TOKEN)) == far.sign_in() == far.health() == 200


def test_whoever_has_the_token_is_never_kept_out_by_others(far):
    """Nobody is kept out by others' tries: a token has too many characters to be found by trying."""

    def status(number, token):
        client = TestClient(far.client.app, base_url="http://box:8800", client=(f"192.0.2.{number}", 1))
        return client.get("/api/health", headers=bearer(token)).status_code

    for client in range(11):
        assert {status(client, f"guess {number}") for number in range(10)} == {401}
    assert status(1, "wrong") == 429 and status(99, "wrong") == 401
    assert status(1, TOKEN) == status(99, TOKEN) == 200


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "cannot be read"), (b"\xff", "cannot be read"), (b" \n", "has 0 characters, give 32 or more")]
    + [(b"t" * (LEAST_CHARS - 1), "has 31 characters"), (b"short" + b" " * 40, "has 5 characters")],
)
def test_a_file_that_holds_no_token_is_not_no_token(tmp_path, monkeypatch, content, says):
    """Else a service whose secret is missing would start with a token of its own, and say nothing of it."""
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.delenv(state.TOKEN, raising=False)
    monkeypatch.setenv(state.TOKEN_FILE, str(path))
    with pytest.raises(RequestError, match=says):
        token_from_environment()


def test_tries_are_counted_for_a_minute():
    now = [1000.0]
    keys = Keys("x" * 40, lambda: now[0])
    for _ in range(10):
        now[0] += 1
        assert not keys.is_token(b"wrong", "192.0.2.1")
    with pytest.raises(Wait) as caught:
        keys.is_token(b"wrong", "192.0.2.1")
    assert caught.value.seconds == 51  # the first was 9 s ago
    now[0] += 51
    assert not keys.is_token(b"wrong", "192.0.2.1")


def test_a_reader_with_an_old_token_goes_on_reading_on_loopback(service):
    old = [service.anyone.get("/api/health", headers=bearer("old")).status_code for _ in range(30)]
    assert set(old) == {200}
    assert not service.anyone.get("/api/session", headers=bearer("old")).json()["signed_in"]
    assert service.owner.get("/api/session").json()["signed_in"]
    assert service.anyone.post(ALL, json=BODY, headers=bearer("old")).status_code == 429
