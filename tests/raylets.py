"""Real raylets on this machine, searches with `--address`, and one fault in each.

Every search trains the same settings to the same epoch (`--scheduler fifo`), so that each trial's every figure can be
compared, to the last digit, with those of the same search on one node that nothing happened to.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from journals import read

from tuner.core.events import Event
from tuner.engine.local.alone import PATIENT  # so that other tests, beside these, do not take all CPU time

ROOT = Path(__file__).parent.parent
SPACE = ROOT / "tests" / "spaces" / "tiny.py:classes"
STORE_BYTES = 100 * 2**20
PATIENCE_S = 600.0  # a machine that does other things needs minutes for six short trials
Figures = dict[tuple[str, int], dict[str, str]]


@dataclass
class Search:
    """One `tuner.run` in a process of its own."""

    folder: Path
    process: subprocess.Popen[str]

    def named(self, event: str) -> list[Event]:
        return [each for each in read(self.folder / "journal.jsonl") if each["event"] == event]

    def wait_for(self, what: Callable[[], Any]) -> None:
        """Until `what()` is true; TimeoutError after `PATIENCE_S`, RuntimeError where the search ended before."""
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            if self.process.poll() is not None:
                raise RuntimeError(f"the search ended before, with {self.process.returncode}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {PATIENCE_S:.0f} s")
            time.sleep(0.1)

    def wait_for_reports(self, number: int) -> None:
        self.wait_for(lambda: len(self.named("report")) >= number)

    def end(self) -> int:
        return self.process.wait(PATIENCE_S)

    @property
    def output(self) -> str:
        return (self.folder.parent / f"{self.folder.name}.out").read_text()


class Testbed:
    """A Ray cluster of this machine's processes: a head without CPUs for the drivers, and nodes of one CPU each.

    Each node has an address of its own, 127.0.0.2 and on; all share the results folder, as a cluster's storage is.
    """

    def __init__(self, folder: Path, num_nodes: int) -> None:
        import ray.cluster_utils

        self.folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        self._cluster = ray.cluster_utils.Cluster()
        self._cluster.add_node(
            num_cpus=0, object_store_memory=STORE_BYTES, include_dashboard=False, _system_config=PATIENT
        )
        self.address: str = self._cluster.address
        self._last = 1
        self.nodes: list[Any] = []
        for _ in range(num_nodes):
            self.add()

    def add(self, **resources: Any) -> str:
        self._last += 1
        address = f"127.0.0.{self._last}"
        options = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "node_ip_address": address, **resources}
        self.nodes.append(self._cluster.add_node(**options))
        return address

    def kill(self, address: str) -> None:
        """As a spot machine goes: the raylet by SIGKILL, its workers with it."""
        (node,) = [node for node in self.nodes if node.node_ip_address == address]
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def drain(self, address: str, deadline_s: int = 600) -> None:
        """As an autoscaler or operator announces that a node goes: `ray drain-node`."""
        (node,) = [node for node in self.nodes if node.node_ip_address == address]
        reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "reclaimed"]
        deadline = ["--deadline-remaining-seconds", str(deadline_s)]
        command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", self.address]
        subprocess.run([*command, "--node-id", node.node_id, *reason, *deadline], check=True, capture_output=True)

    def search(self, name: str, *options: str, space: Path = SPACE) -> Search:
        out = (self.folder / f"{name}.out").open("w")
        place = ["--address", self.address, "--results", str(self.folder), "--name", name, "--wandb", "disabled"]
        command = [sys.executable, "-m", "tuner.run", "--space", str(space), *place]
        command += ["--searcher", "random", "--scheduler", "fifo", *options]
        return Search(self.folder / name, subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, text=True))


NODES = """
import json, sys
from ray.cluster_utils import Cluster

head, *others = json.loads(sys.argv[1])
cluster = Cluster(initialize_head=True, head_node_args=head)
for each in others:
    cluster.add_node(**each)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@contextlib.contextmanager
def nodes(env: dict[str, str], where: Path, *each: dict[str, int]) -> Iterator[str]:
    """The address of a cluster with these nodes, which runs in a process of its own."""
    head, *others = each
    given = json.dumps([{**head, "_system_config": PATIENT}, *others])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", NODES, given], env=env, cwd=where, text=True, **pipes)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate("", timeout=60)


@contextlib.contextmanager
def raylets(folder: Path, num_nodes: int) -> Iterator[Testbed]:
    """A cluster that is gone afterwards; its files in a folder with a short name, as Unix sockets need."""
    before = {name: os.environ.get(name) for name in ("RAY_TMPDIR", "PYTHONPATH", "RAY_AUTH_MODE")}
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as short:
        # These nodes ask for no token; a driver that finds one in ~/.ray would refuse their calls.
        os.environ |= {"RAY_TMPDIR": short, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}
        bed = Testbed(folder, num_nodes)
        try:
            yield bed
        finally:
            bed._cluster.shutdown()
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ |= {} if value is None else {name: value}


def figures(search: Search) -> Figures:
    """(trial, epoch) -> what it reported of its training; AssertionError where an epoch is there twice."""
    by_report: Figures = {}
    for event in search.named("report"):
        key, metrics = (event["trial"], event["epoch"]), event["metrics"]
        assert key not in by_report, f"{key} is in the journal twice"
        by_report[key] = {name: repr(metrics[name]) for name in ("loss", "train_loss") if name in metrics}
    return by_report


def epochs_lost(search: Search) -> int:
    """Epochs that had been reported and are trained again, over all retries."""
    lost, last = 0, {}
    for event in read(search.folder / "journal.jsonl"):
        if event["event"] == "report":
            last[event["trial"]] = event["epoch"]
        elif event["event"] == "trial_failed" and event["will_retry"]:
            lost += last.get(event["trial"], 0) - event["from_epoch"]
    return lost


def places(search: Search) -> dict[str, list[str]]:
    """Node -> the trials that started there, in their order."""
    trials: dict[str, list[str]] = {}
    for event in search.named("trial_started"):
        trials.setdefault(event["node"], []).append(event["trial"])
    return trials


def all_killed(bed: Testbed, search: Search) -> None:
    for node in list(bed.nodes):
        bed.kill(node.node_ip_address)
    search.wait_for(lambda: "none of 1 node has that" in search.output)
    bed.add()


# Whether a search ended as it must after the fault, beside that its trials' figures are the same.


def costs_what_was_not_saved(search: Search) -> bool:
    failed = search.named("trial_failed")
    lost = {(event["kind"], event["will_retry"]) for event in failed} == {("worker_lost", True)}
    return lost and epochs_lost(search) <= len(failed)


def leaves_the_drained_node(search: Search) -> bool:
    starts = [(event["trial"], event["node"]) for event in search.named("trial_started")]
    (moved,) = {trial for trial, _ in starts if sum(trial == other for other, _ in starts) > 1}
    first, second = [node for trial, node in starts if trial == moved]
    return bool(first == starts[0][1] != second)


def does_not_wait(search: Search) -> bool:
    first = Search(search.folder.parent / f"before_{search.folder.name}", search.process)
    began_before_its_end = search.named("report")[0]["time"] < first.named("experiment_finished")[0]["time"]
    completed = [event["status"] for event in first.named("trial_ended")] == ["completed"] * 12
    same = figures(first).items() >= figures(search).items()
    return began_before_its_end and completed and same and not first.named("trial_failed")


@dataclass(frozen=True)
class Fault:
    """What happens to a search after `num_reports`; None = a second one comes to a full cluster."""

    what: str  # in the table of `benchmarks.chaos`
    happens: Callable[[Testbed, Search], object] | None
    holds: Callable[[Search], bool]  # whether the search ended as it must
    num_nodes: int = 3  # before it
    num_reports: int = 7
    options: tuple[str, ...] = ()

    def search(self, bed: Testbed, name: str) -> Search:
        """The search to which it happened, once it has ended."""
        first = search = bed.search(name) if self.happens else bed.search(f"before_{name}", "--num-samples", "12")
        first.wait_for_reports(self.num_reports)
        if self.happens:
            self.happens(bed, search)
        else:
            search = bed.search(name, *self.options)
        search.end()
        first.end()
        return search


KILLED, DRAINED = "one node killed (SIGKILL to its raylet)", "one node drained (`ray drain-node`)"
ADDED, URGENT = "one node at first, one added in the middle", "another one holds it, of a lower priority"
ONE = "--max-concurrent-trials", "1"
FAULTS = {
    "nothing": Fault("nothing", lambda bed, search: None, lambda search: len(places(search)) == 3),
    "killed": Fault(KILLED, lambda bed, search: bed.kill(next(iter(places(search)))), costs_what_was_not_saved),
    "drained": Fault(DRAINED, lambda bed, search: bed.drain(next(iter(places(search)))), leaves_the_drained_node),
    "all_killed": Fault("all nodes killed, one comes back later", all_killed, lambda s: len(places(s)) == 3, 2),
    "added": Fault(ADDED, lambda bed, search: bed.add(), lambda search: len(places(search)) == 2, 1, 2),
    "second": Fault("another search holds the whole cluster", None, does_not_wait, options=ONE),
    "urgent": Fault(URGENT, None, does_not_wait, options=("--priority", "1")),
}
