"""Analyses that cost much: limits on their time and memory, and the process that computes them."""

import asyncio
import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest
from tiers import further

from tests.serve.test_hostile import REPORT, STARTED, begin
from tuner.serve.analysis.insight import MOST_WAITING, AnalysisWorker

FIFO = {"scheduler": "fifo", "grace_period": 1, "reduction_factor": 2.0, "brackets": 1}


class Asked:
    """A request whose client goes away at the event."""

    def __init__(self, gone):
        self._gone = gone

    async def is_disconnected(self):
        return self._gone.is_set()


def asked(worker, folder, choices=FIFO, analysis="what-if", gone=None, stopping=lambda: False):
    request = Asked(gone or threading.Event())
    answer = asyncio.run(worker.ask(request, folder, analysis, choices, stopping))
    return answer.status_code, json.loads(answer.body)


def children():
    """The processes of analyses that this process has started and that still run."""
    return {
        child.pid
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE and "tuner.serve.analysis.analyses" in child.cmdline()
    }


@pytest.fixture
def small(tmp_path):
    return begin(tmp_path, "small", [STARTED, REPORT])


@pytest.fixture
def endless(tmp_path):
    """60 trials that were cut off after one epoch of a million: a replay of 60 million epochs."""
    events = [{**e, "trial": str(i)} for i in range(60) for e in (STARTED, REPORT)]
    return begin(tmp_path, "endless", events, num_samples=60, max_epochs=1_000_000)


def test_one_process_answers_stays_and_ends_with_the_service(small):
    before, worker = children(), AnalysisWorker()
    assert children() == before  # the first request starts it
    status, answer = asked(worker, small)
    (process,) = children() - before
    assert status == 200 and answer["outcome"]["scheduler"] == "fifo"
    assert asked(worker, small) == (status, answer)
    assert asked(worker, small, {"x": "lr", "y": "b"}, "contour")[0] == 422
    assert asked(worker, small.parent / "none")[0] == 422 and children() - before == {process}
    del worker
    psutil.wait_procs([psutil.Process(process)], timeout=30)
    assert children() <= before


@pytest.mark.parametrize(
    ("most_s", "most_memory", "text"),
    [(60.0, 400 << 20, "400 MiB of memory"), *further([(10.0, 16 << 30, "more than 10 s")], 1)],
)
def test_what_takes_too_much_is_ended_and_the_next_is_answered(small, endless, most_s, most_memory, text):
    before, worker = children(), AnalysisWorker(most_s, most_memory)
    status, answer = asked(worker, endless)
    assert status == 503 and text in answer["error"] and children() <= before
    assert asked(worker, small)[0] == 200


def test_few_wait_and_the_others_are_told_when_to_ask_again(endless):
    worker, gone = AnalysisWorker(most_s=600.0, most_memory=16 << 30), threading.Event()

    def one(_):
        answer = asyncio.run(worker.ask(Asked(gone), endless, "what-if", FIFO, lambda: False))
        refused = b"analyses are queued" in answer.body and answer.headers["Retry-After"] == "1"
        if refused:
            gone.set()  # the others would wait for minutes
        return answer.status_code, refused

    with ThreadPoolExecutor(MOST_WAITING + 1) as threads:
        replies = list(threads.map(one, range(MOST_WAITING + 1)))
    assert sorted(replies) == [(503, False)] * MOST_WAITING + [(503, True)]


def test_a_client_that_asks_for_too_much_takes_nothing_from_others(real, endless):
    endless.rename(real.results / "endless")
    begin(real.results, "small", [STARTED, REPORT])
    path = f"{real.url}api/experiments"

    def ask(url, timeout_s):
        return httpx.get(url, timeout=timeout_s, trust_env=False).status_code

    rungs = [f"{path}/small/what-if?scheduler={name}&reduction_factor=1.0000001" for name in ("asha", "hyperband")]
    assert [ask(url, 30) for url in rungs] == [422, 422]
    for _ in range(3):  # each goes away
        with pytest.raises(httpx.ReadTimeout):
            ask(f"{path}/endless/what-if?scheduler=fifo", 1)
    assert ask(path, 30) == ask(f"{path}/small/what-if", 60) == 200
    with ThreadPoolExecutor(1) as threads:
        last = threads.submit(ask, f"{path}/endless/what-if?scheduler=fifo", 60)
        time.sleep(1)
        os.kill(real.process.pid, signal.SIGTERM)
        real.process.communicate(timeout=20)  # while it is being computed
        assert last.result() == 503 and real.process.returncode == 0
