"""Keeps idle worker processes for later trials, and starts new workers in processes that the raylet prepared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ray

from tuner.engine.cluster.nodes import Nodes


class ActorClasses:
    """Makes actor classes without a runtime environment of their own; replaces Ray's class cache.

    Ray sets environment variables for each trial's actor. The workers that the raylet started in advance lack them,
    so Ray would start new processes, which import torch again. On this machine the workers inherit the driver's
    environment anyway.
    """

    def __init__(self) -> None:
        self._made: dict[type, Any] = {}

    def get(self, trainable: type) -> Any:
        """Returns the actor class of a trainable, the same class at each call."""
        if trainable not in self._made:
            self._made[trainable] = ray.remote(trainable)
        return self._made[trainable]


class IdleWorkers:
    """Keeps idle workers for the next trials, at most as many as trials may run at once; replaces Ray's object cache.

    Ray keeps idle workers only for trials that already wait for one; if none waits, it keeps one worker. Two trials
    that end together then cost a new process each time, which takes 2 to 4 s of imports. All trials of a search need
    the same resources, so the keys are ignored.

    Args:
        num_running: returns the number of running trials.
        nodes_of: returns the ids of the nodes that a worker occupies.
    """

    def __init__(self, nodes: Nodes, num_running: Callable[[], int], nodes_of: Callable[[Any], set[str]]) -> None:
        self._nodes, self._num_running, self._nodes_of = nodes, num_running, nodes_of
        self._workers: list[Any] = []

    @property
    def num_cached_objects(self) -> int:
        """Number of idle workers."""
        return len(self._workers)

    @property
    def total_max_objects(self) -> int:
        """Maximum number of idle workers. If it is 0 and no trial is left, Ray ends all idle workers."""
        return self._nodes.concurrent()

    def increase_max(self, key: Any, by: int = 1) -> None:
        """Does nothing: `Nodes.concurrent` is the maximum number of idle workers."""

    def decrease_max(self, key: Any, by: int = 1) -> None:
        """Does nothing, because `Nodes.concurrent` is the maximum number of idle workers."""

    def has_cached_object(self, key: Any) -> bool:
        """Whether there is an idle worker."""
        return bool(self._workers)

    def cache_object(self, key: Any, obj: Any) -> bool:
        """Keeps an idle worker; returns False if there are already enough."""
        room = len(self._workers) < self._nodes.concurrent()
        if room:
            self._workers.append(obj)
        return room

    def pop_cached_object(self, key: Any) -> Any:
        """Removes and returns the worker that has been idle longest; None if there is none."""
        return self._workers.pop(0) if self._workers else None

    def flush_cached_objects(self, force_all: bool = False) -> Iterator[Any]:
        """Yields the idle workers to end: those on drained nodes or beyond the search's share; with `force_all` all."""
        for worker in list(self._workers):
            if force_all or self._has_to_go(worker):
                self._workers.remove(worker)
                yield worker

    def _has_to_go(self, worker: Any) -> bool:
        if self._nodes.too_many(self._num_running() + len(self._workers)):
            return True
        return bool(self._nodes.leaving and self._nodes_of(worker) & self._nodes.leaving)
