"""Real sockets that ask slowly, not at all, or do not read: everybody else is still answered."""

import asyncio
import contextlib
import threading
import time

import h11
import httpx
import pytest

from tests.serve.conftest import serving
from tuner.serve.__main__ import MAX_BODY_PARTS
from tuner.serve.app import create_app

GET = b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
POST = b"POST /api/experiments HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n"


@pytest.fixture
def app(tmp_path):
    return create_app(tmp_path)


def ends(connection):
    """Whether the other side has closed it; waits for that."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def is_open(connection):
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def stays_open(connection):
    """Whether the other side keeps a connection, on which a byte comes now and then, for 30 s."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if not is_open(connection):
            return False
        with contextlib.suppress(OSError):
            connection.sendall(b"x")
        time.sleep(0.02)
    return True


def healthy(url):
    return httpx.get(f"{url}api/health", timeout=20, trust_env=False).status_code == 200


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: 127", POST])
def test_sockets_that_do_not_ask_keep_nobody_out(sent):
    with serving(reads_and_answers, most=60, timeout_keep_alive=60, lifespan="off") as service:
        assert_the_oldest_make_room(service, [service.connect(sent) for _ in range(120)])


def test_sockets_that_were_refused_before_their_body_was_there_keep_nobody_out(app):
    with serving(app, most=60, timeout_keep_alive=60) as service:
        refused = []
        for _ in range(120):
            refused.append(service.connect(POST))
            # An answered one is closed only if all others are answered too: so each waits for its answer.
            assert b"401" in refused[-1].recv(2000)
        assert_the_oldest_make_room(service, refused)


def assert_the_oldest_make_room(service, connections):
    """Others are answered; half of the connections were closed for it, and no more of them than had to be."""
    assert all(healthy(service.url) for _ in range(3))
    assert ends(connections[0]) and is_open(connections[-1])
    assert 55 <= len(service.state.connections) <= 60


def test_whoever_waits_for_an_answer_is_not_closed_for_another():
    release, started = threading.Event(), []

    async def slow(scope, receive, send):
        started.append(scope["path"])
        while not release.is_set():
            await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    with serving(slow, most=2, lifespan="off") as service:
        waiting = []
        for number in range(1, 4):
            waiting.append(service.connect(GET))
            while len(started) < number:
                time.sleep(0.01)
        assert b"503" in service.connect(GET).recv(1000)
        release.set()
        assert all(b"200 OK" in each.recv(1000) for each in waiting)


async def reads_and_answers(scope, receive, send):
    """`ok`, after the whole body."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def large(scope, receive, send):
    """32 MB in parts, as a file is sent, and at `/large` a thread that goes on; `ok` for the service's health."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(0 if scope["path"] == "/api/health" else 32):
        await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
    await asyncio.to_thread(time.sleep, scope["path"] == "/large")
    await send({"type": "http.response.body", "body": b"ok"})


def test_answers_that_nobody_reads_keep_nobody_out():
    with serving(large, most=10, lifespan="off") as service:
        unread = []
        for _ in range(3):  # the last ones are let in for the first ones, whose threads go on
            unread += [service.connect(GET.replace(b"/api/health", b"/large")) for _ in range(5)]
            time.sleep(0.2)
        assert all(healthy(service.url) for _ in range(3))  # the first one too
        assert is_open(unread[-1])


def test_a_head_that_dribbles_in_a_body_that_nobody_reads_and_an_idle_connection_end_in_time(app):
    with serving(app, timeout_keep_alive=1) as service:
        first, second, refused = service.connect(), service.connect(GET), service.connect(POST.replace(b"9", b"9000"))
        never, once = service.connect(), service.connect(GET)
        assert b"200 OK" in second.recv(1000)
        assert b"401" in refused.recv(2000)  # the guard answers before the body is there
        for connection in (first, second):  # before any request, and after one
            connection.sendall(b"GET / HTTP/1.1\r\nX: ")
        assert not any(stays_open(each) for each in (first, second, refused))
        assert ends(never) and ends(once)
        assert not service.state.connections and healthy(service.url)


def test_what_is_no_http_ends_its_connection_without_a_traceback(app, caplog):
    with serving(app) as service:
        chunked = POST.replace(b"Content-Length: 9", b"Transfer-Encoding: chunked")
        connection = service.connect(chunked)
        assert b"401" in connection.recv(2000)
        connection.sendall(b"no chunk\r\n")
        assert ends(connection)
        assert ends(service.connect(b"\x16\x03\x01 no HTTP\r\n\r\n"))
        assert healthy(service.url)
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("head", [GET, POST, GET.replace(b"Host: 127.0.0.1", b"Host: elsewhere")])
@pytest.mark.parametrize("answered", [False, True])
def test_a_body_of_countless_parts_is_refused_before_all_are_read(app, caplog, monkeypatch, head, answered):
    """A part takes 40 us, in which nobody else is answered, and a client may send a million of them."""
    events, next_event = [], h11.Connection.next_event

    def counted(self):
        events.append(next_event(self))
        return events[-1]

    monkeypatch.setattr(h11.Connection, "next_event", counted)
    chunked = head.removesuffix(b"\r\n").replace(b"Content-Length: 9\r\n", b"") + b"Transfer-Encoding: chunked\r\n\r\n"
    with serving(app) as service:
        connection = service.connect(chunked if answered else b"")
        if answered:
            assert connection.recv(2000).startswith(b"HTTP/1.1 ")
        with contextlib.suppress(OSError):
            connection.sendall((b"" if answered else chunked) + b"1\r\na\r\n" * 20_000)
        assert ends(connection)
        assert sum(isinstance(event, h11.Data) for event in events) == MAX_BODY_PARTS + 1
        assert healthy(service.url)
    assert not [record for record in caplog.records if record.exc_info]


def test_a_long_body_in_few_parts_is_answered(app):
    with serving(app) as service:
        connection = service.connect(POST.replace(b"9", b"4000000"))
        connection.sendall(bytes(4_000_000) + GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answers = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        assert answers.startswith(b"HTTP/1.1 401") and b"HTTP/1.1 200 OK" in answers


def test_an_answer_that_nobody_reads_is_given_up(monkeypatch):
    monkeypatch.setattr("tuner.serve.__main__.READER_S", 1)

    async def whole(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % (1 << 25))]})
        await send({"type": "http.response.body", "body": bytes(1 << 25)})

    with serving(whole, lifespan="off", timeout_keep_alive=1) as service:
        service.connect(GET)
        until = time.monotonic() + 30
        while not service.state.connections:
            assert time.monotonic() < until
        while service.state.connections and time.monotonic() < until:
            time.sleep(0.05)
        assert not service.state.connections
        slow, read = service.connect(GET), 0  # reads all the time, for longer than a client may read nothing
        while read < 1 << 25:
            piece = slow.recv(1 << 20)
            assert piece, f"cut off after {read} bytes"
            read += len(piece)
            time.sleep(0.05)
