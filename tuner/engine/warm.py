"""Keeps the processes of trials for later trials: which of them wait, and how they are started."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ray

from tuner.engine.nodes import Nodes


class ActorClasses:
    """Makes actor classes without a runtime environment of their own; replaces Ray's class cache.

    Ray gives each trial's actor two environment variables, so that no worker which the raylet has started in advance
    fits it: a second pair of processes would start and import beside the first. On this machine the workers inherit
    the driver's environment anyway.
    """

    def __init__(self) -> None:
        self._made: dict[type, Any] = {}

    def get(self, trainable: type) -> Any:
        """Returns the actor class of a trainable; the same one each time."""
        if trainable not in self._made:
            self._made[trainable] = ray.remote(trainable)
        return self._made[trainable]


class IdleWorkers:
    """The workers that wait for a trial, at most as many as trials may run at once; replaces Ray's object cache.

    Ray keeps a worker only if a trial already waits for it (or one in all), so two trials that end together cost a new
    process each time: 2 to 4 s of imports. All trials of a search need the same resources, so the keys are ignored.

    Args:
        num_running: gives the number of trials that run.
        nodes_of: gives the ids of the nodes that a worker occupies.
    """

    def __init__(self, nodes: Nodes, num_running: Callable[[], int], nodes_of: Callable[[Any], set[str]]) -> None:
        self._nodes, self._num_running, self._nodes_of = nodes, num_running, nodes_of
        self._workers: list[Any] = []

    @property
    def num_cached_objects(self) -> int:
        """Number of waiting workers."""
        return len(self._workers)

    @property
    def total_max_objects(self) -> int:
        """Number of workers that may wait; Ray ends all waiting ones when this is 0 and no trial is left."""
        return self._nodes.concurrent()

    def increase_max(self, key: Any, by: int = 1) -> None:
        """Does nothing: how many may wait follows from the cluster."""

    def decrease_max(self, key: Any, by: int = 1) -> None:
        """Does nothing, as `increase_max`."""

    def has_cached_object(self, key: Any) -> bool:
        """Whether a worker waits."""
        return bool(self._workers)

    def cache_object(self, key: Any, obj: Any) -> bool:
        """Keeps a worker; False if there are enough."""
        room = len(self._workers) < self._nodes.concurrent()
        if room:
            self._workers.append(obj)
        return room

    def pop_cached_object(self, key: Any) -> Any:
        """Takes the worker that has waited longest; None if none waits."""
        return self._workers.pop(0) if self._workers else None

    def flush_cached_objects(self, force_all: bool = False) -> Iterator[Any]:
        """Yields the workers to end: all, or those on nodes being drained and those beyond this search's share."""
        for worker in list(self._workers):
            if force_all or self._has_to_go(worker):
                self._workers.remove(worker)
                yield worker

    def _has_to_go(self, worker: Any) -> bool:
        if self._nodes.too_many(self._num_running() + len(self._workers)):
            return True
        return bool(self._nodes.leaving and self._nodes_of(worker) & self._nodes.leaving)
