"""Follows the nodes of Ray's cluster: how many trials fit, how many this search may run, which nodes are drained."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import ray
import yaml
from ray._private.state import state
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_list, _internal_kv_put

from tuner.spec.resources import Resources

QUERY_INTERVAL_S = 2.0  # minimum seconds between two queries of the cluster; a query is six or more calls to its head
MOST_NODES = 1000  # the most nodes of one type that are counted
TABLE = b"tuner"  # namespace in the key-value store of the cluster's head: driver's job id -> its `Want` as JSON


class Nodes:
    """Says how many trials of one search the cluster can run; without `follow`, always the number at the start.

    Args:
        resources: the resources of one trial; their `concurrent` is how many trials run at once at the start.
        most: the requested number of concurrent trials; 0 = as many as fit.
        follow: whether to follow nodes that join and leave (`--address`).
        priority: this search's rank among the searches that share the cluster; the highest first.
    """

    def __init__(self, resources: Resources, most: int = 0, *, follow: bool = False, priority: int = 0) -> None:
        self._resources, self._most, self._follow, self._priority = resources, most, follow, priority
        self._looked = 0.0
        self._fit = resources.concurrent
        self._present: list[dict[str, float]] = []
        self._leaving: frozenset[str] = frozenset()
        self._part: int | None = None
        self.wanted = self._most or resources.concurrent  # trials that have not ended; `Watch` updates this first guess

    def concurrent(self) -> int:
        """Returns how many trials may run or start at once: 1 or more, on a cluster at most this search's share.

        A requested number applies even if fewer trials fit: trials without a node make the autoscaler add nodes.
        """
        if not self._follow:
            return self._resources.concurrent
        self._look()
        most = self._most or max(1, self._fit)
        return most if self._part is None else min(most, self._part)

    def too_many(self, num_workers: int) -> bool:
        """Whether `num_workers` trial processes exceed this search's share of the cluster."""
        self._look()
        return self._part is not None and num_workers > self._part

    @property
    def leaving(self) -> frozenset[str]:
        """The ids of nodes that are being drained: they take no new trials and will soon leave the cluster."""
        self._look()
        return self._leaving

    def notice(self, num_waiting: int, num_running: int) -> str:
        """Returns why trials wait, if trials wait on a cluster and none runs; otherwise an empty text."""
        if not self._follow or not num_waiting or num_running:
            return ""
        self._look()
        there, has = (f"{len(self._present)} nodes", "have") if len(self._present) != 1 else ("1 node", "has")
        trials = f"{num_waiting} trial{' waits' if num_waiting == 1 else 's wait'}"
        trial = self._resources
        wanted = f"{trial.workers} workers with {trial.each()} each" if trial.split else trial.each()
        if trial.fit(self._present):
            return f"{trials} for {wanted}: all nodes with enough resources are busy or still starting"
        add = "add one, or let the autoscaler"
        if trial.split:
            return f"{trials} for {wanted}: {there} {has} room for {trial.num_bundles(self._present)} of them; {add}"
        return f"{trials} for a node with {wanted}: none of {there} has that; {add}"

    def _look(self) -> None:
        now = time.monotonic()
        if not self._follow or now - self._looked < QUERY_INTERVAL_S:
            return
        self._looked = now
        self._present, self._leaving = present()
        self._fit = max(self._resources.fit(self._present), self._resources.fit(launchable()))
        most = self._most or self._fit
        self._part = agreed(Want(min(self.wanted, most), max(1, self._fit), self._priority))


def present() -> tuple[list[dict[str, float]], frozenset[str]]:
    """Returns the resources of each living node that is not being drained, and the ids of the nodes being drained."""
    drained = frozenset(state.get_draining_nodes())
    alive = [node for node in ray.nodes() if node["Alive"]]
    return [node["Resources"] for node in alive if node["NodeID"] not in drained], drained


def launchable() -> list[dict[str, float]]:
    """Returns the resources of the nodes that the autoscaler may start; known only on a head that `ray up` made."""
    file = Path("~/ray_bootstrap_config.yaml").expanduser()
    if not file.is_file():
        return []
    kinds = yaml.safe_load(file.read_text())["available_node_types"].values()
    return [kind.get("resources", {}) for kind in kinds for _ in range(min(kind.get("max_workers", 0), MOST_NODES))]


class Want(NamedTuple):
    """What a search requests from the cluster."""

    num_trials: int  # trials that the search could run at once, 0 or more
    fit: int  # trials of this search that fit on the whole cluster at once, 1 or more
    priority: int = 0  # once each search has a trial, the highest priority is served first


def agreed(mine: Want) -> int | None:
    """Publishes this search's request and returns its share in trials; None if no other search runs on the cluster."""
    job = ray.get_runtime_context().get_job_id()
    _internal_kv_put(job.encode(), json.dumps(mine).encode(), overwrite=True, namespace=TABLE)
    wants, running = {job: mine}, {each["JobID"] for each in state.job_table() if not each["IsDead"]}
    for key in _internal_kv_list(b"", namespace=TABLE):
        if key.decode() in running:
            wants[key.decode()] = Want(*json.loads(_internal_kv_get(key, namespace=TABLE)))
    return division(wants)[job] if len(wants) > 1 else None


def division(wants: Mapping[str, Want]) -> dict[str, int]:
    """Returns how many trials each search may run, at least 1.

    It hands out one trial at a time, first to searches without a trial, then to the highest priority. Among equals, it
    takes the search whose part of the cluster would be smallest with that trial (max-min fairness, Bertsekas and
    Gallager, Data Networks, 6.5.2).
    """

    def turn(name: str) -> tuple[bool, int, float, str]:
        want = wants[name]
        return shares[name] > 0, -want.priority, (shares[name] + 1) / want.fit, name

    def may_take(name: str) -> bool:
        return shares[name] < wants[name].num_trials and 1 / wants[name].fit <= left + 1e-9

    shares, left = dict.fromkeys(sorted(wants), 0), 1.0
    while takers := list(filter(may_take, wants)):
        name = min(takers, key=turn)
        shares[name] += 1
        left -= 1 / wants[name].fit
    return {name: max(1, number) for name, number in shares.items()}
