"""Answers have a largest size, and what does not fit is said."""

import asyncio
import json
from dataclasses import dataclass, field

import pytest

from tests.serve.conftest import HERE, client_of
from tests.serve.test_hostile import DECISION, REPORT, STARTED, begin
from tuner.serve import answers
from tuner.serve.app import create_app
from tuner.serve.client import Client


@dataclass(frozen=True)
class Page:
    total: int
    rows: list = field(default_factory=list)
    left_out: int = 0


def page(rows, **named):
    return json.loads(answers.text_of(Page(len(rows), **named), rows=iter(rows)))


def test_rows_that_do_not_fit_are_counted(monkeypatch):
    monkeypatch.setattr(answers, "MOST_BYTES", 1000)
    answer = page(["x" * 90] * 50)
    assert len(answer["rows"]) == 10 and answer["left_out"] == 40 and answer["total"] == 50
    assert page(["x" * 90] * 50, left_out=5)["left_out"] == 45


MILLION = "... (1,000,000 characters)"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"a": 1.5, "b": ["x", None, float("nan")]}, {"a": 1.5, "b": ["x", None, "nan"]}),
        (["a\u202eb", "\\u202e", "\\\u2066", {"x": "\u2069"}], ["a\\u202eb", "\\u202e", "\\\\u2066", {"x": "\\u2069"}]),
        ("\u2028\u05d0", "\u2028\u05d0"),
        ({"errors": ["x" * 10**6] * 30}, {"errors": ["x" * 400 + MILLION] * 30}),
        ({"k" * 10**6: [[]] * 10**5}, {"k" * 4000 + MILLION: [[]] * 4000 + ["left out: 96,000 more"]}),
        ({str(n): n for n in range(10**5)}, {str(n): n for n in range(4000)} | {"left out": "96,000 more"}),
        ({"a": "\x00" * 10**6, "lr": 0.5}, {"a": "\x00" * 4000 + MILLION, "lr": 0.5}),
        ("\U0001f600" * 10**6, "\U0001f600" * 4000 + MILLION),
    ],
    ids=["fits", "reverses a line", "reverses none", "texts", "name", "numbers", "beside short", "escapes"],
)
def test_a_row_reverses_no_line_and_a_long_one_is_cut_and_says_so(value, shown):
    assert page([value]) == {"total": 1, "rows": [shown], "left_out": 0} and len(json.dumps(shown)) < answers.MOST_ROW


def test_a_figure_that_does_not_fit_is_empty_and_says_so(monkeypatch):
    monkeypatch.setattr(answers, "MOST_BYTES", 2000)
    large = {"data": [{"x": list(range(1000))}], "layout": {}}
    small = {"data": [{"x": [1]}], "layout": {}}
    texts = {
        name: answers.figure_text(figure) for name, figure in {"large": large, "none": None, "small": small}.items()
    }
    figures = json.loads(answers.figures_text(texts, 2000))
    assert list(figures) == ["large", "small"] and figures["small"] == small and figures["large"]["data"] == []
    crowded = json.loads(answers.figures_text({"a": texts["small"], "b": texts["small"]}, len(texts["small"])))
    assert crowded["a"] == small and crowded["b"]["data"] == []
    assert "left out" in figures["large"]["layout"]["annotations"][0]["text"]
    assert json.loads(answers.text_of(Page(0, rows=[])))["rows"] == []


def test_answers_that_are_being_sent_take_bounded_memory(monkeypatch):
    monkeypatch.setattr(answers, "MOST_SENT", 300_000)
    body, sent = b"x" * 100_000, []

    async def one(content, read):
        async def send(message):
            messages.append(message)
            await read.wait()

        sent.append(messages := [])
        await answers.BoundedResponse(content)({"type": "http"}, None, send)

    async def ask():
        read = asyncio.Event()

        async def begin(content):
            task = asyncio.create_task(one(content, read))
            await asyncio.sleep(0)
            return task

        gone, *others = [await begin(body) for _ in range(3)]
        others += [await begin(body), await begin(b"small")]
        gone.cancel()
        await asyncio.sleep(0)
        others.append(await begin(body))
        read.set()
        await asyncio.gather(*others)

    asyncio.run(ask())
    assert [messages[0]["status"] for messages in sent] == [200, 200, 200, 503, 200, 200]
    pieces = [message.get("body", b"") for message in sent[1]]
    assert b"".join(pieces) == body and max(map(len, pieces)) <= answers.PIECE_BYTES


@pytest.fixture
def client(tmp_path, monkeypatch):
    """40 trials, of which all but the best have a setting and a decision of 20 kB, in answers of 100 kB."""
    trials = [
        {**event, "trial": str(n)}
        for n in range(40)
        for event in (
            {**STARTED, "config": {"lr": n, **({"long": "y" * 20_000} if n else {})}},
            {**REPORT, "metrics": {"loss": n}},
            {**DECISION, "reason": "z" * 20_000},
        )
    ]
    begin(tmp_path, "wide", trials)
    monkeypatch.setattr(answers, "MOST_BYTES", 100_000)
    return client_of(create_app(tmp_path))


def test_every_route_stays_below_the_largest_answer(client):
    for part, rows in {"trials": "trials", "rungs": "decisions", "trials/3": "metrics", "figures": ""}.items():
        answer = client.get(f"/api/experiments/wide/{part}")
        assert answer.status_code == 200 and len(answer.content) < 110_000, part
        assert part in ("trials/3", "figures") or len(answer.json()[rows]) + answer.json()["left_out"] == 40


def test_a_client_gets_all_rows_page_by_page(client, monkeypatch):
    asked = []
    monkeypatch.setattr(Client, "_get", lambda self, path: asked.append(path) or client.get(path).json())
    assert [row["trial"] for row in Client(HERE).trials("wide")] == [str(n) for n in range(40)] and len(asked) > 5
