"""The dashboard over a large search: `python -m benchmarks.dashboard [--trials 10000] [--reports 10]`.

Prints how long the server takes for a first page (every request that the page makes), for an update after new events,
and its memory, over `--repeats` server processes. Instead,

* `--browser` prints what a user waits for in chromium: the first page, updates, selections, a comparison;
* `--search` prints the pace of a search with the page open over its pace without, in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import httpx
import psutil

from benchmarks import browser
from benchmarks.peers import measure
from tuner.record.format import FORMAT
from tuner.record.lines import Chain
from tuner.record.saved_experiment import save_experiment
from tuner.spec.experiment import Experiment
from tuner.views.figures.catalogue import FIGURES

WINDOW_S = 10.0  # of the search with the page open, and without
ALL = "".join(f"&figures={name}" for name in FIGURES)  # what the page asks for when it opens
ON_SCREEN = "&figures=curves"  # and at an update, with its top on the screen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--reports", type=int, default=10)
    parser.add_argument(
        "--repeats", type=int, default=5, help="servers, or windows with the page open (then at least 2)"
    )
    parser.add_argument("--browser", action="store_true", help="what a user waits for in a browser")
    parser.add_argument("--compare", type=int, default=20, help="with --browser: experiments compared; 0 = none")
    parser.add_argument("--search", action="store_true", help="the pace of a search with the page open")
    args = parser.parse_args()
    if args.browser and args.trials < 100:
        parser.error(f"--trials {args.trials}: must be at least 100 with --browser, which waits for 100 rows")
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        if args.search:
            if args.repeats < 2:
                parser.error(f"--repeats {args.repeats}: must be at least 2 here, for a standard error")
            paces(results, args.repeats)
            return
        journal = write_journal(results, args.trials, args.reports)
        print(f"{args.trials} trials x {args.reports} reports: {journal.stat().st_size / 1e6:.1f} MB of journal\n")
        if args.browser:
            browser.pages(results, journal, args.repeats, Server, args.compare)
            return
        pages(results, journal, args.repeats)


def write_journal(results: Path, trials: int, reports: int) -> Path:
    """A search of asha's shape, with decisions at four rungs and metrics as a Task space reports them."""
    draw = random.Random(0)
    folder = results / "large"
    folder.mkdir()
    options = {"space": "cifar", "max_epochs": reports, "num_samples": trials}
    params = {"lr": {"kind": "loguniform"}, "l1": {"kind": "choice"}, "batch_size": {"kind": "choice"}}
    facts = {"created": 1e9, "space": {"params": params}}
    save_experiment(Experiment(name="large", results=str(results), **options), folder, facts)
    path, clock = folder / "journal.jsonl", 1e9
    chain = Chain()
    with open(path, "wb") as file:
        first = {"time": clock, "event": "experiment_started", "name": "large", "format": FORMAT}
        file.write(chain.line_of(json.dumps(first).encode()))
        for number in range(trials):
            for event in trial_events(f"{number:05}", reports, draw):
                clock += 0.001
                file.write(chain.line_of(json.dumps({"time": round(clock, 3), **event}).encode()))
    return path


def trial_events(trial: str, reports: int, draw: random.Random) -> list[dict]:
    config = {"lr": 10 ** draw.uniform(-4, -1), "l1": 2 ** draw.randint(2, 8), "batch_size": 2 ** draw.randint(1, 4)}
    of = {"trial": trial}
    events = [{"event": "trial_suggested", **of, "config": config}]
    events += [{"event": "trial_started", **of, "config": config, "resources": {"CPU": 1.0}, "node": "10.0.0.1"}]
    asymptote = draw.random() + abs(config["lr"] - 0.01) * 10
    for epoch in range(1, reports + 1):
        loss = asymptote + draw.random() / epoch
        metrics = {"loss": loss, "accuracy": 1 / (1 + loss), "train_loss": loss, "micro_batch_size": 16}
        metrics |= {"train_s": 0.1, "validate_s": 0.01, "images_per_s": 4e4 + draw.random()}
        events.append({"event": "report", **of, "epoch": epoch, "metrics": metrics})
        if epoch in (1, 2, 4, 8):
            cutoff = asymptote + 1 / epoch
            compared = {"rung": epoch, "bracket": 0, "value": loss, "cutoff": cutoff, "recorded": int(trial)}
            why = f"loss {loss:.6g} is not worse than the cutoff {cutoff:.6g} of the {trial} trials at rung {epoch}"
            events.append({"event": "decision", **of, "epoch": epoch, **compared, "action": "continue", "reason": why})
    reason = f"trained its {reports} epochs"
    return [*events, {"event": "trial_ended", **of, "status": "completed", "reason": reason}]


def pages(results: Path, journal: Path, repeats: int) -> None:
    """First pages, each of a fresh server, then updates."""
    first, updates, held = [], [], []
    for _ in range(repeats):
        with Server(results) as server:
            first.append(1e3 * server.load("large"))
            for number in range(3):
                line = {
                    "time": 2e9 + number,
                    "event": "report",
                    "trial": "00007",
                    "epoch": 10,
                    "metrics": {"loss": 0.5},
                }
                browser.append(journal, line)
                updates.append(1e3 * server.load("large"))
            held.append(server.memory_bytes() / 1e6)
    rows = [["first page (ms)", *first], ["an update (ms)", *updates], ["memory at most (MB)", *held]]
    measure.show(["what", "median (range)"], [[name, measure.spread(values, 0)] for name, *values in rows])


class Server:
    """`tuner.serve` in a process of its own."""

    def __init__(self, results: Path) -> None:
        self._command = [*measure.README_PYTHON, "-m", "tuner.serve", "--results", str(results), "--port", "0"]
        self._env = {**os.environ, "TUNER_STATE": str(results / ".state")}  # goes with the results
        self._lines = 0  # of the journal, that the page knows

    def __enter__(self) -> Server:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, env=self._env)
        line = self._process.stdout.readline()
        started = psutil.Process(self._process.pid)
        self.process = next(iter(started.children()), started)  # `uv run` waits for the service that it starts
        self.url = line.split(" at ")[1].split(" ")[0]
        self._client = httpx.Client(base_url=self.url, timeout=120)
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()
        self._process.terminate()
        self._process.wait()

    def load(self, name: str) -> float:
        """Sends the request of a page that opens, later that of an update; returns its seconds."""
        began = time.perf_counter()
        query = f"since={self._lines}{ON_SCREEN}" if self._lines else f"limit=500{ALL}"
        answer = self._client.get(f"/api/experiments/{name}/changes?{query}").raise_for_status()
        self._lines = answer.json()["summary"]["lines"]
        return time.perf_counter() - began

    def memory_bytes(self) -> float:
        """The most that the process has held."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * float(status.split("VmHWM:")[1].split()[0])


def paces(results: Path, repeats: int) -> None:
    """One search of trials that return at once, with the page open in every other window.

    Windows that lie next to each other are compared: a machine's pace drifts, and two whole searches differ by more
    than the page could cost.
    """
    journal = results / "search" / "journal.jsonl"
    command = [*measure.README_PYTHON, "-m", "tuner.run", "--space", "quadratic", "--num-samples", "100000"]
    command += ["--searcher", "random", "--scheduler", "fifo", "--wandb", "disabled"]
    command += ["--results", str(results), "--name", "search"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env={**os.environ, "RAY_ADDRESS": ""}, **quiet)
    rates = []
    try:
        with Server(results) as server:
            while num_lines(journal) < 1000:
                assert process.poll() is None, "the search has ended"
                time.sleep(0.5)
            for number in range(2 * repeats + 1):
                rates.append(pace(journal, server if number % 2 else None))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
    ratios = [2 * rates[i] / (rates[i - 1] + rates[i + 1]) for i in range(1, len(rates), 2)]
    error = statistics.stdev(ratios) / len(ratios) ** 0.5
    print(f"pace with the page open / alone: {statistics.mean(ratios):.3f} +- {error:.3f} ({repeats} windows)")


def pace(journal: Path, server: Server | None) -> float:
    """Lines a second that the journal gets for a window, with the page of a server open if there is one."""
    over = threading.Event()
    page = threading.Thread(target=watch, args=(server, journal.parent.name, over)) if server else None
    if page:
        page.start()
    begun, lines = time.perf_counter(), num_lines(journal)
    time.sleep(WINDOW_S)
    rate = (num_lines(journal) - lines) / (time.perf_counter() - begun)
    over.set()
    if page:
        page.join()
    return rate


def num_lines(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def watch(server: Server, name: str, over: threading.Event) -> None:
    """A page: there is always news, and it asks for a twentieth of the time, 0.8 to 5 s after the last answer."""
    pause_s = 0.0
    while not over.wait(pause_s):
        pause_s = min(5.0, max(0.8, 20 * server.load(name)))


if __name__ == "__main__":
    main()
