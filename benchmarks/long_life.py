"""What stays behind of each trial in a search of 100,000: memory, open handles and threads, of driver and service.

Ray's own controller runs the search in a process of its own, with workers that train nothing (`tests/workerless.py`).
The service reads the growing journal meanwhile, and a page asks it for updates. Each report has a text of
`--text-bytes`, so that the journal of 100,000 trials has nearly the size that the service accepts (512 MiB).
`--owners` prints instead which lines of code allocated what the driver still holds of a trial.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import httpx
import psutil

from benchmarks.dashboard import Server
from benchmarks.peers import measure

CONCURRENT = 4
SHARES = 0.01, 0.1, 0.5, 1.0  # of all trials: when the figures are taken
WARM_UP = 0.3  # share of the trials before those whose memory `--owners` counts


def search(
    num_trials: int, folder: Path, max_epochs: int, scheduler: str, saves: bool, text_bytes: int, owners: bool
) -> None:
    """A search in this process; appends the figures of this process to `folder`/marks after each share of trials.

    `folder`/waits has the seconds that it waited for syncs.
    """
    import pytest
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    import workerless

    from benchmarks.peers.instant import without_syncs
    from tuner.tuning.proposals import Proposals

    class Worker(workerless.Worker):
        """Its reports have all that a real worker's have, and share no object with them."""

        def train(self) -> dict[str, Any]:
            report = super().train() if saves else self.trained()
            seconds = {"time_this_iter_s": 0.1, "time_total_s": 0.1 * self.epoch, "time_since_restore": 0.1}
            place = {"pid": os.getpid(), "hostname": "host", "node_ip": "127.0.0.1", "date": "2026-01-01_00-00-00"}
            own = {"accuracy": 1 / (1 + report["loss"]), "train_s": 0.1, "images_per_s": 4e4, "text": "x" * text_bytes}
            more = {"timestamp": int(time.time()), "iterations_since_restore": self.epoch, "config": self.setting}
            self.report = report | seconds | place | own | more
            return pickle.loads(pickle.dumps(self.report))

        def trained(self) -> dict[str, Any]:
            self.epoch += 1
            self.way, loss = workerless.learn(self.trial, self.setting, self.epoch, self.way)
            return {"loss": loss, "training_iteration": self.epoch, "improved": 0, "done": False}

    class Handle:
        metrics, place = ray.put({}), ray.put(("127.0.0.1", os.getpid()))
        get_auto_filled_metrics = SimpleNamespace(remote=lambda **options: Handle.metrics)
        get_current_ip_pid = SimpleNamespace(remote=lambda: Handle.place)

    class Workerless(workerless.Workerless):
        num_cpus, worker, handle = CONCURRENT, Worker, Handle()

    without_syncs()
    sync, waits = os.fsync, list[float]()

    def waited(handle: int) -> None:
        began = time.perf_counter()
        sync(handle)
        waits.append(time.perf_counter() - began)

    os.fsync = waited
    made, num_made = Proposals._trial, 0
    marks = {max(2, int(num_trials * share)) for share in SHARES}
    counted = [int(num_trials * share) for share in (WARM_UP / 2, WARM_UP, 1 - WARM_UP / 2)]
    snapshots: list[tracemalloc.Snapshot] = []

    def counting(self: Any, *args: Any) -> Any:
        nonlocal num_made
        num_made += 1
        if num_made in marks:
            with (folder / "marks").open("a") as file:
                print(json.dumps(now(num_made)), file=file)
        if owners and num_made == counted[0]:
            tracemalloc.start()
        elif owners and num_made in counted[1:]:
            gc.collect()
            snapshots.append(tracemalloc.take_snapshot())
        return made(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workerless.MANAGER, Workerless)
        patch.setattr(Proposals, "_trial", counting)
        choices = {"searcher": "random", "scheduler": scheduler, "max_epochs": max_epochs}
        workerless.run(folder / "long", concurrent=CONCURRENT, num_samples=num_trials, **choices)
    (folder / "waits").write_text(json.dumps(sum(waits)))
    if owners:
        print_owners(snapshots, counted[2] - counted[1])
    ray.shutdown()


def now(number: int) -> dict[str, float]:
    gc.collect()
    return {"trials": number, "at": time.time(), **used_by(psutil.Process())}


def used_by(process: psutil.Process) -> dict[str, float]:
    return {"handles": process.num_fds(), "threads": process.num_threads(), "bytes": process.memory_info().rss}


def print_owners(snapshots: list[tracemalloc.Snapshot], number: int) -> None:
    lines = snapshots[1].compare_to(snapshots[0], "lineno")
    print(f"{sum(line.size_diff for line in lines) / number:.0f} bytes a trial; by line:\n")
    rows = [[f"{line.size_diff / number:.0f}", str(line.traceback)] for line in lines[:30]]
    measure.show(["bytes", "allocated at"], rows)


def watch(server: Server, over: threading.Event, statuses: list[int]) -> None:
    """A page: asks for a twentieth of the time, 0.8 to 5 s after the last answer; notes the status of each answer."""
    pause_s = 0.8
    while not over.wait(pause_s):
        began = time.perf_counter()
        try:
            server.load("long")
            statuses.append(200)
        except httpx.HTTPStatusError as error:
            statuses.append(error.response.status_code)
        pause_s = min(5.0, max(0.8, 20 * (time.perf_counter() - began)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--max-epochs", type=int, default=4)
    parser.add_argument("--scheduler", default="asha", choices=["asha", "asha-promotion", "fifo"])
    parser.add_argument("--saves", action="store_true", help="each report saves a checkpoint; asha-promotion needs it")
    parser.add_argument("--text-bytes", type=int, default=1_700, help="of a text in each report")
    parser.add_argument("--owners", action="store_true", help="which lines of code hold the driver's memory")
    parser.add_argument("--search", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.search:
        search(args.trials, args.search, args.max_epochs, args.scheduler, args.saves, args.text_bytes, args.owners)
        return
    saves = ["--saves"] if args.saves or args.scheduler == "asha-promotion" else []
    words = [
        "--trials",
        str(args.trials),
        "--max-epochs",
        str(args.max_epochs),
        "--scheduler",
        args.scheduler,
        "--text-bytes",
        str(args.text_bytes),
        *saves,
    ]
    with tempfile.TemporaryDirectory() as results:
        folder = Path(results)
        command = [sys.executable, "-m", "benchmarks.long_life", *words, "--search", results]
        if args.owners:
            subprocess.run([*command, "--owners"], cwd=measure.REPOSITORY, env=measure.environment(), check=True)
            return
        measured(command, folder)


def measured(command: list[str], folder: Path) -> None:
    """Runs the search with the service and a page beside it; prints a row for each share of the trials."""
    over, statuses, marks, rows = threading.Event(), list[int](), folder / "marks", list[list[str]]()
    with (folder / "log").open("w") as log, Server(folder) as server:
        process = subprocess.Popen(command, cwd=measure.REPOSITORY, env=measure.environment(), stdout=log, stderr=log)
        page = threading.Thread(target=watch, args=(server, over, statuses))
        page.start()
        before: dict[str, float] = {}
        while (code := process.poll()) is None or (marks.exists() and len(marks.read_text().splitlines()) > len(rows)):
            for line in (marks.read_text().splitlines() if marks.exists() else [])[len(rows) :]:
                mark, service = json.loads(line), used_by(server.process)
                num_new = mark["trials"] - before.get("trials", 0)
                took = f"{(mark['at'] - before['at']) * 1e3 / num_new:.1f}" if before else ""
                grown = f"{(mark['bytes'] - before['bytes']) / num_new:.0f}" if before else ""
                journal_mib = (folder / "long" / "journal.jsonl").stat().st_size / 2**20
                cells = [f"{mark['trials']:,}", took, grown, f"{mark['bytes'] / 2**20:.0f}"]
                own = [mark["handles"], mark["threads"], service["handles"], service["threads"]]
                rows.append([*cells, *map(str, own), f"{service['bytes'] / 2**20:.0f}", f"{journal_mib:.0f}"])
                print(" ".join(rows[-1]), file=sys.stderr, flush=True)
                before = mark
            time.sleep(0.5)
        over.set()
        page.join()
    if code:
        raise SystemExit((folder / "log").read_text()[-4000:])
    header = ["trials", "ms a trial", "bytes a trial", "MiB", "handles", "threads"]
    measure.show([*header, "service's handles", "threads", "MiB", "journal (MiB)"], rows)
    answers = {status: statuses.count(status) for status in sorted(set(statuses))}
    print(f"\nanswers to the page, by status: {answers}")


if __name__ == "__main__":
    main()
