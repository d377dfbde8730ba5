"""The slowest answers of the dashboard: `python -m benchmarks.slow_answers [--trials 10000] [--shown 10]`.

Asks every GET route of the service's own schema about a large experiment and about folders that are made to cost much,
and again where that took less than 5 s: a first answer reads the folder, a second one has its records in memory. Prints
the slowest, and what the service held at most. Asserts nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import httpx

from benchmarks.dashboard import Server, write_journal
from tuner.record.events import sealed
from tuner.record.format import FORMAT
from tuner.record.saved_experiment import save_experiment
from tuner.spec.experiment import Experiment

TIMEOUT_S = 60.0
AGAIN_S = 5.0  # what took longer at first is not asked for again
MANY = 300  # small experiments, of which one alone is asked about
QUESTIONS = {  # the queries of the routes that need some, or have several kinds of answers
    "/contour": ["x=lr&y=l1"],
    "/what-if": ["scheduler=asha", "scheduler=hyperband", "reduction_factor=1.3"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--reports", type=int, default=10)
    parser.add_argument("--shown", type=int, default=10)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        write_journal(results, args.trials, args.reports)
        hostile(results)
        with Server(results) as server:
            places = sorted(path.name for path in results.iterdir() if path.name[0] != ".")
            taken = list(asked(server.url, places[: 1 - MANY]))
            peak = server.memory_bytes()
    taken.sort(reverse=True)
    print(f"{len(taken)} answers, {sum(seconds for seconds, *_ in taken):.1f} s in all; the slowest:")
    for seconds, status, turn, path in taken[: args.shown]:
        print(f"{seconds * 1e3:8.0f} ms  {status}  {turn:<6}  {path}")
    print(f"the service held {peak / 1e6:.0f} MB at most, beside the process of its costly questions")


def asked(url: str, names: list[str]) -> Iterator[tuple[float, int, str, str]]:
    """Of each answer: seconds to its end (of a stream: to its first bytes), status, first or second, and the path."""
    with httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False) as client:
        routes = client.get("/api/openapi.json").json()["paths"]
        reading = [route for route, how in routes.items() if "get" in how]
        for path in itertools.chain.from_iterable(filled(route, names) for route in reading):
            took = 0.0
            for turn in ("first", "second"):
                if took > AGAIN_S:
                    continue
                began = time.perf_counter()
                try:
                    with client.stream("GET", path) as answer:
                        next(answer.iter_bytes(), None) if path.endswith("/events") else answer.read()
                    status = answer.status_code
                except httpx.TimeoutException:
                    status = 0
                took = time.perf_counter() - began
                yield took, status, turn, path


def filled(route: str, names: list[str]) -> Iterable[str]:
    """The route for every experiment, with every query."""
    queries = next((["?" + each for each in some] for end, some in QUESTIONS.items() if route.endswith(end)), [""])
    for name in names if "{name}" in route else names[:1]:
        yield from (route.replace("{name}", name).replace("{trial}", "00000") + query for query in queries)


def hostile(results: Path) -> None:
    """Folders that are cheap to make and dear to show."""
    experiment(results, "long-line", [started("00000"), report("00000", 1, {"loss": 1.0, "odd": [[]] * 4_000_000})])
    experiment(results, "line-ends", [started("00000")], b"\n" * (32 << 20))
    many = {f"p{i}": i for i in range(500)}
    experiment(results, "many-parameters", [e for n in range(100) for e in reported(n, {**many, "lr": n, "l1": n % 7})])
    experiment(results, "many-epochs", [e for n in range(20) for e in reported(n, {"lr": n, "l1": n})],
               max_epochs=1_000_000)  # fmt: skip
    experiment(results, "many-metrics", [e for n in range(50) for e in reported(n, {"lr": n}, wide(n))])
    experiment(results, "deep", [started("00000", {"lr": json.loads("[" * 300 + "]" * 300)})] * 200)
    for number in range(2000):
        trial = results / "ray" / f"trial_{number:05}"
        trial.mkdir(parents=True)
        (trial / "params.json").write_text(json.dumps({"lr": number, "l1": number % 7}))
        rows = [{"training_iteration": i, "loss": i / (number + 1), "timestamp": 1e9 + i} for i in range(1, 11)]
        (trial / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (results / "ray" / "experiment_state-1.json").write_text("{}")
    for number in range(MANY):
        experiment(results, f"z{number:03}", [started("00000"), report("00000", 1, {"loss": 1.0})])


def experiment(results: Path, name: str, events: list[dict], more: bytes = b"", **options: int) -> None:
    """An experiment of these events, and whatever follows them."""
    folder = results / name
    folder.mkdir()
    about = {"created": 1e9, "space": {"params": {}}}
    save_experiment(Experiment(name=name, results=str(results), space="cifar", **options), folder, about)
    first = {"time": 1e9, "event": "experiment_started", "name": name, "format": FORMAT}
    lines = [sealed(json.dumps(event).encode()) for event in (first, *events)]
    (folder / "journal.jsonl").write_bytes(b"".join(lines) + more)


def reported(number: int, config: dict, metrics: dict | None = None) -> list[dict]:
    trial = f"{number:05}"
    reports = [report(trial, epoch, {"loss": epoch / (number + 1), **(metrics or {})}) for epoch in (1, 2, 3)]
    return [started(trial, config), *reports]


def started(trial: str, config: dict | None = None) -> dict:
    return {"time": 1e9, "event": "trial_started", "trial": trial, "config": config or {}, "resources": {}, "node": "n"}


def report(trial: str, epoch: int, metrics: dict) -> dict:
    return {"time": 1e9 + epoch, "event": "report", "trial": trial, "epoch": epoch, "metrics": metrics}


def wide(number: int) -> dict:
    return {f"m{i}": i * number for i in range(1000)}


if __name__ == "__main__":
    main()
