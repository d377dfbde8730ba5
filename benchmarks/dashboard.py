"""The dashboard over a large journal: `python benchmarks/dashboard.py [--trials 10000] [--reports 10]`.

Prints how long the server takes for a first page (every request that the page makes), for an update after new events,
how large the answers are, and its memory; each is the median of `--repeats`, in a server process of its own.
With `--search`, in its place, the pace of a search with the page open, against its pace without, in turn. With
`--browser`, in its place, what a user waits for in chromium: the first page, updates, selections, a comparison.
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
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil

from benchmarks import browser
from benchmarks.peers import measure
from tuner.record.events import sealed
from tuner.record.format import FORMAT
from tuner.record.saved_experiment import save_experiment
from tuner.spec.experiment import Experiment
from tuner.views.figures.catalogue import FIGURES

WINDOW_S = 10.0  # of the search with the page open, and without
ALL = "".join(f"&figures={name}" for name in FIGURES)  # what the page asks for when it opens
ON_SCREEN = "&figures=curves"  # and at an update, with its top on the screen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--reports", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--search", action="store_true", help="the pace of a search with the page open, --repeats times"
    )
    parser.add_argument("--browser", action="store_true", help="what a user waits for in a browser, --repeats times")
    parser.add_argument("--compare", type=int, default=20, help="with --browser: experiments compared; 0 = none")
    args = parser.parse_args()
    if args.browser and args.trials < 100:
        parser.error(f"--trials {args.trials}: must be at least 100 with --browser, which waits for 100 rows")
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        if args.search:
            searches(results, args.repeats)
            return
        journal = write_journal(results, args.trials, args.reports)
        print(f"{args.trials} trials x {args.reports} reports: {journal.stat().st_size / 1e6:.1f} MB of journal")
        if args.browser:
            browser.pages(results, journal, args.repeats, Server, args.compare)
            return
        pages(results, journal, args.repeats)


def write_journal(results: Path, trials: int, reports: int) -> Path:
    """A search of asha's shape: half of the trials are stopped at each rung; metrics as a Task space reports them."""
    draw = random.Random(0)
    folder = results / "large"
    folder.mkdir()
    options = {"space": "cifar", "max_epochs": reports, "num_samples": trials}
    params = {"lr": {"kind": "loguniform"}, "l1": {"kind": "choice"}, "batch_size": {"kind": "choice"}}
    save_experiment(
        Experiment(name="large", results=str(results), **options), folder, {"created": 1e9, "space": {"params": params}}
    )
    path, clock = folder / "journal.jsonl", 1e9
    with open(path, "wb") as file:
        first = {"time": clock, "event": "experiment_started", "name": "large", "format": FORMAT}
        file.write(sealed(json.dumps(first).encode()))
        for number in range(trials):
            for event in trial_events(f"{number:05}", reports, draw):
                clock += 0.001
                file.write(sealed(json.dumps({"time": round(clock, 3), **event}).encode()))
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
            compared = {
                "rung": epoch,
                "bracket": 0,
                "value": loss,
                "cutoff": asymptote + 1 / epoch,
                "recorded": int(trial),
            }
            cutoff = f"the cutoff {compared['cutoff']:.6g} of the {trial} trials recorded at rung {epoch}"
            why = f"loss {loss:.6g} is not worse than {cutoff}"
            events.append({"event": "decision", **of, "epoch": epoch, **compared, "action": "continue", "reason": why})
    reason = f"trained its {reports} epochs"
    return [*events, {"event": "trial_ended", **of, "status": "completed", "reason": reason}]


def pages(results: Path, journal: Path, repeats: int) -> None:
    """First pages, each of a fresh server, then updates."""
    first, updates, sizes, most = [], [], {}, 0.0
    for _ in range(repeats):
        with Server(results) as server:
            first.append(server.load("large"))
            for number in range(3):
                append(journal, number)
                updates.append(server.load("large"))
            sizes = server.sizes
            most = max(most, server.memory_bytes())
    print(f"first page   {statistics.median(first) * 1e3:7.0f} ms")
    print(f"an update    {statistics.median(updates) * 1e3:7.0f} ms  {sizes}")
    print(f"memory       {most / 1e6:7.0f} MB at most")


def append(journal: Path, number: int) -> None:
    line = {"time": 1e9 + 1000 + number, "event": "report", "trial": "00007", "epoch": 10, "metrics": {"loss": 0.5}}
    with open(journal, "ab") as file:
        file.write(sealed(json.dumps(line).encode()))


class Server:
    """`tuner.serve` in a process of its own."""

    def __init__(self, results: Path) -> None:
        self._command = [*measure.README_PYTHON, "-m", "tuner.serve", "--results", str(results), "--port", "0"]
        self._env = {**os.environ, "TUNER_STATE": str(results / ".state")}  # goes with the results
        self.sizes: dict[str, str] = {}
        self._lines = 0  # of the journal, that the page knows

    def __enter__(self) -> Server:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, env=self._env)
        line = self._process.stdout.readline()
        started = psutil.Process(self._process.pid)
        self._pid = next(iter(started.children()), started).pid  # `uv run` waits for the service that it starts
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
        self._lines = self._ask(name, f"/changes?{query}").json()["summary"]["lines"]
        return time.perf_counter() - began

    def _ask(self, name: str, part: str) -> httpx.Response:
        answer = self._client.get(f"/api/experiments/{name}{part}")
        answer.raise_for_status()
        took_ms = answer.elapsed.total_seconds() * 1e3
        self.sizes[part.partition("?")[0] or "/"] = f"{len(answer.content) / 1e3:.0f} kB, {took_ms:.0f} ms"
        return answer

    def cpu_s(self) -> float:
        """The processor time that the process has taken."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self) -> float:
        """The most that the process has held."""
        status = Path(f"/proc/{self._pid}/status").read_text()
        return 1024 * float(status.split("VmHWM:")[1].split()[0])


def searches(results: Path, repeats: int, visitor: Visitor | None = None, what: str = "the page open") -> None:
    """One search of trials that return at once, with a visitor of the dashboard in every other window.

    Windows that lie next to each other are compared: a machine's pace drifts, and two whole searches differ by more
    than a visitor could cost.
    """
    folder = results / "search"
    command = [*measure.README_PYTHON, "-m", "tuner.run", "--space", "quadratic", "--num-samples", "100000"]
    command += ["--searcher", "random", "--scheduler", "fifo", "--wandb", "disabled"]
    command += ["--results", str(results), "--name", folder.name]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "RAY_ADDRESS": ""}
    )
    try:
        with Server(results) as server:
            while num_lines(folder / "journal.jsonl") < 1000:
                assert process.poll() is None, "the search has ended"
                time.sleep(0.5)
            rates, taken, clients = [], [], []
            for number in range(2 * repeats + 1):
                before, ours = server.cpu_s(), time.process_time()
                rates.append(pace(folder, (visitor or watch) if number % 2 else None, server))
                if number % 2:
                    taken.append((server.cpu_s() - before) / WINDOW_S / os.cpu_count())
                    clients.append((time.process_time() - ours) / WINDOW_S / os.cpu_count())
                    print(f"lines a second: alone {rates[-2]:.0f}, with {what} {rates[-1]:.0f}", flush=True)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
    ratios = [2 * rates[i] / (rates[i - 1] + rates[i + 1]) for i in range(1, len(rates), 2)]
    error = statistics.stdev(ratios) / len(ratios) ** 0.5
    print(f"pace with {what} / alone: {statistics.mean(ratios):.3f} +- {error:.3f} ({repeats} windows)")
    shares = f"{100 * statistics.mean(taken):.1f} %, the client {100 * statistics.mean(clients):.1f} %"
    print(f"the server took {shares} of the machine's {os.cpu_count()} cores meanwhile")


def pace(folder: Path, visitor: Visitor | None, server: Server) -> float:
    """Lines a second that the journal gets for a window, with a visitor of the server if there is one."""
    over = threading.Event()
    visit = threading.Thread(target=visitor, args=(server, folder.name, over)) if visitor else None
    if visit:
        visit.start()
    begun, lines = time.perf_counter(), num_lines(folder / "journal.jsonl")
    time.sleep(WINDOW_S)
    rate = (num_lines(folder / "journal.jsonl") - lines) / (time.perf_counter() - begun)
    over.set()
    if visit:
        visit.join()
    return rate


def watch(server: Server, name: str, over: threading.Event) -> None:
    """A page: there is always news, and it asks for a twentieth of the time, 0.8 to 5 s after the last answer."""
    pause_s = 0.0
    while not over.wait(pause_s):
        pause_s = min(5.0, max(0.8, 20 * server.load(name)))


def num_lines(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


Visitor = Callable[[Server, str, threading.Event], None]  # with a server and an experiment's name, until it is over

if __name__ == "__main__":
    main()
