"""Questions that cost much: bounds on their time and memory, and the process that answers them."""

import asyncio
import json
import os
import signal
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.serve.test_hostile import REPORT, STARTED, begin
from tuner.record.saved_experiment import COPY, FILE, digest
from tuner.serve.analysis.costly import MOST_WAITING, Costly

PLAIN = {"scheduler": "fifo", "grace_period": 1, "reduction_factor": 2.0, "brackets": 1}
JOURNAL = 1 << 30


class Asked:
    """A request whose client goes away after so many seconds."""

    def __init__(self, gone_s=600.0):
        self._gone_s = gone_s

    async def receive(self):
        await asyncio.sleep(self._gone_s)
        return {"type": "http.disconnect"}


def asked(costly, folder, choices=PLAIN, question="what-if", request=None, stopping=lambda: False):
    answer = asyncio.run(costly.ask(request or Asked(), folder, question, choices, stopping))
    return answer.status_code, json.loads(answer.body)


def process_of(costly):
    return costly._processes[0] if costly._processes else None


@pytest.fixture
def small(tmp_path):
    return begin(tmp_path, "small", [STARTED, REPORT])


@pytest.fixture
def endless(tmp_path):
    """60 trials that were cut off after one epoch of a million: a replay of 60 million epochs."""
    folder = begin(
        tmp_path, "endless", [{**e, "trial": str(i)} for i in range(60) for e in (STARTED, REPORT)], num_samples=60
    )
    document = json.loads((folder / FILE).read_text())
    del document["sha256"]
    document["options"]["max_epochs"] = 1_000_000
    (folder / COPY).unlink()
    (folder / FILE).write_text(json.dumps({**document, "sha256": digest(document)}))
    return folder


def test_one_process_answers_and_stays(small):
    costly = Costly(JOURNAL)
    assert process_of(costly) is None  # started by the first question
    status, answer = asked(costly, small)
    first = process_of(costly)
    assert status == 200 and answer["outcome"]["scheduler"] == "fifo"
    assert asked(costly, small) == (status, answer) and process_of(costly) is first
    assert asked(costly, small, {"x": "lr", "y": "b"}, "contour")[0] == 422
    assert asked(costly, small.parent / "none")[0] == 422 and process_of(costly) is first


def test_what_takes_too_long_is_ended_and_the_next_is_answered(small, endless):
    costly = Costly(JOURNAL, most_s=1.0, most_memory=16 << 30)
    status, answer = asked(costly, endless)
    assert status == 503 and "more than 1 s" in answer["error"] and process_of(costly) is None
    costly = Costly(JOURNAL)
    assert asked(costly, small)[0] == 200


def test_what_takes_too_much_memory_is_ended(endless, small):
    costly = Costly(JOURNAL, most_s=60.0, most_memory=400 << 20)
    status, answer = asked(costly, endless)
    assert status == 503 and "400 MiB of memory" in answer["error"]
    assert asked(costly, small)[0] == 200  # by a new process


def test_it_ends_when_its_client_goes_away(endless):
    costly = Costly(JOURNAL, most_s=60.0, most_memory=16 << 30)
    began = time.monotonic()
    status, _ = asked(costly, endless, request=Asked(gone_s=0.5))
    assert status == 503 and time.monotonic() - began < 20 and process_of(costly) is None


def test_it_ends_when_the_service_does(endless):
    costly = Costly(JOURNAL, most_s=60.0, most_memory=16 << 30)
    until = time.monotonic() + 0.5
    status, _ = asked(costly, endless, stopping=lambda: time.monotonic() > until)
    assert status == 503 and process_of(costly) is None


def test_few_wait_and_the_others_are_told_when_to_ask_again(endless):
    costly = Costly(JOURNAL, most_s=1.0, most_memory=16 << 30)

    def one(_):
        return asyncio.run(costly.ask(Asked(2.0), endless, "what-if", PLAIN, lambda: False))

    with ThreadPoolExecutor(MOST_WAITING + 4) as threads:
        replies = list(threads.map(one, range(MOST_WAITING + 4)))
    assert {answer.status_code for answer in replies} == {503}
    turned_away = [answer for answer in replies if b"analyses are queued" in answer.body]
    assert len(turned_away) == 4 and all(answer.headers["Retry-After"] == "1" for answer in turned_away)


def test_it_does_not_get_the_services_secret(small, monkeypatch):
    monkeypatch.setenv("TUNER_TOKEN", "s3cret of 32 characters, or more")
    costly = Costly(JOURNAL)
    asked(costly, small)
    with open(f"/proc/{process_of(costly).pid}/environ", "rb") as file:
        assert b"TUNER_TOKEN" not in file.read()


def test_it_ends_with_the_service(small):
    costly = Costly(JOURNAL)
    asked(costly, small)
    process = process_of(costly)
    del costly
    assert process.wait(30) is not None


def ask(url, timeout_s):
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_a_client_that_asks_for_too_much_takes_nothing_from_others(real, endless):
    endless.rename(real.results / "endless")
    begin(real.results, "small", [STARTED, REPORT])
    path = f"{real.url}api/experiments"
    rungs = [f"{path}/small/what-if?scheduler={name}&reduction_factor=1.0000001" for name in ("asha", "hyperband")]
    assert [ask(url, 30) for url in rungs] == [422, 422]
    for _ in range(3):  # each goes away
        with pytest.raises(TimeoutError):
            ask(f"{path}/endless/what-if?scheduler=fifo", 1)
    assert ask(path, 30) == ask(f"{path}/small/what-if", 60) == 200
    with ThreadPoolExecutor(1) as threads:
        last = threads.submit(ask, f"{path}/endless/what-if?scheduler=fifo", 60)
        time.sleep(1)
        os.kill(real.process.pid, signal.SIGTERM)
        real.process.communicate(timeout=20)  # while it is being worked out
        assert isinstance(last.exception(), OSError) or last.result() == 503
