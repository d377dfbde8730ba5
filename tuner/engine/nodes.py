"""The nodes of Ray's cluster while they come and go: how many trials fit, what they wait for, which nodes leave."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ray
import yaml

from tuner.engine import control
from tuner.engine.shares import Want, agreed
from tuner.spec.resources import Resources

LOOK_S = 2.0  # between two looks at the cluster: three calls to its head
UNBOUNDED = 1000  # nodes of a type that an autoscaler may start without limit


class Nodes:
    """What the cluster has for the trials of one search. On this machine alone, what it had at the start.

    Args:
        resources: of one trial; `concurrent` trials at the start.
        most: trials at a time that were asked for, 0 = as many as fit.
        follow: whether nodes come and go (`--address`).
        priority: among the searches that share the cluster.
    """

    def __init__(self, resources: Resources, most: int = 0, *, follow: bool = False, priority: int = 0) -> None:
        self._resources, self._most, self._follow, self._priority = resources, most, follow, priority
        self._looked = 0.0
        self._fit = resources.concurrent
        self._present: list[dict[str, float]] = []
        self._leaving: frozenset[str] = frozenset()
        self._part: int | None = None
        self.wanted = self._most or resources.concurrent  # trials that this search could run at a time

    def concurrent(self) -> int:
        """Trials that may be alive at a time, at least 1; those that find no place are what an autoscaler sees.

        A number that was asked for is kept to even where fewer fit: an autoscaler may not say how far it goes.
        """
        if not self._follow:
            return self._resources.concurrent
        self._look()
        most = self._most or max(1, self._fit)
        return most if self._part is None else min(most, self._part)

    def too_many(self, num_workers: int) -> bool:
        """Whether these are more than this search's part of a cluster that it shares with other searches."""
        self._look()
        return self._part is not None and num_workers > self._part

    @property
    def leaving(self) -> frozenset[str]:
        """The ids of nodes that are being drained: they take no new trials and will be gone."""
        self._look()
        return self._leaving

    def notice(self, num_waiting: int, num_running: int) -> str:
        """Why trials wait, where none runs; else nothing."""
        if not self._follow or not num_waiting or num_running:
            return ""
        self._look()
        there, has = (f"{len(self._present)} nodes", "have") if len(self._present) != 1 else ("1 node", "has")
        trials = f"{num_waiting} trial{' waits' if num_waiting == 1 else 's wait'}"
        trial = self._resources
        wanted = f"{trial.workers} workers with {trial.each()} each" if trial.split else trial.each()
        if trial.fit(self._present):
            return f"{trials} for {wanted}: what has that is taken, or starting"
        add = "add one, or let the autoscaler"
        if trial.split:
            return f"{trials} for {wanted}: {there} {has} room for {trial.num_places(self._present)} of them; {add}"
        return f"{trials} for a node with {wanted}: none of {there} has that; {add}"

    def _look(self) -> None:
        now = time.monotonic()
        if not self._follow or now - self._looked < LOOK_S:
            return
        self._looked = now
        self._present, self._leaving = present()
        self._fit = max(self._resources.fit(self._present), self._resources.fit(launchable()))
        most = self._most or self._fit
        self._part = agreed(Want(min(self.wanted, most), max(1, self._fit), self._priority))


def present() -> tuple[list[dict[str, float]], frozenset[str]]:
    """Resources (name -> amount) of each node that takes trials, and the ids of those being drained."""
    drained = control.draining_nodes()
    alive = [node for node in ray.nodes() if node["Alive"]]
    return [node["Resources"] for node in alive if node["NodeID"] not in drained], drained


def launchable() -> list[dict[str, float]]:
    """Resources of each worker node that an autoscaler may have at most; empty where none says so.

    An autoscaler may tell Ray's control service; `ray up` leaves its file on the head, where the driver is.
    """
    groups = control.launchable_groups()
    return _each(groups) if groups else launchable_here()


def launchable_here() -> list[dict[str, float]]:
    """As `launchable`, by what `ray up` left on this machine."""
    file = Path("~/ray_bootstrap_config.yaml").expanduser()
    if not file.is_file():
        return []
    kinds = yaml.safe_load(file.read_text())["available_node_types"].values()
    return _each((kind.get("resources", {}), kind.get("max_workers", 0)) for kind in kinds)


def _each(groups: Iterable[tuple[dict[str, Any], int]]) -> list[dict[str, float]]:
    return [resources for resources, count in groups for _ in range(UNBOUNDED if count < 0 else min(count, UNBOUNDED))]
