"""Runs the ranks of a ddp trial: each has a process of its own, directed by a Ray actor in the trial's placement group.

The trial's own actor has no resources: it directs the ranks epoch by epoch, and reports. The ranks end when this actor
ends. A `TorchTrainer` would take 14 s to its first report. It would reserve a second placement group, which Ray Tune
does not count, and would not free the group when the trial is pruned (ray 2.60).
"""

from __future__ import annotations

import os
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tuner.engine.processes import child, keeper
from tuner.engine.processes.client import Caller, Shared, ended_by, environment
from tuner.engine.processes.threads import limit_threads
from tuner.errors.sent import error_of
from tuner.training.group import Answer, Group, addresses_among, run_calls
from tuner.training.task import TrialSpec

_material: Any = None  # the task and the splits of the trial in this process


def material_here() -> Any:
    return _material


def run_rank(_: Any, material: Any, *, arguments: tuple[Any, ...]) -> None:
    """Make the calls of a `DDPRank` that this process's actor asks for, until it closes the connection."""
    global _material
    _material = material
    limit_threads(arguments[2])
    run_calls(child.to_caller, *arguments)


class WorkerActor:
    """Directs the same rank of one trial after the other, as a Ray actor; `arguments` are those of `DDPRank`."""

    def __init__(self, shared: Shared, *arguments: Any) -> None:
        self.caller, self.arguments = Caller(shared), arguments
        self.channel: Connection | None = None  # to the process of the rank

    def address(self) -> str:
        return str(ray.util.get_node_ip_address())

    def enter(self, folder: str, outputs: tuple[str, str]) -> None:
        """Start the rank of a trial in the trial's own folder, which only the ranks on the trial's node have."""
        self.leave()
        self.caller.await_end(2 * keeper.TERM_GRACE_S + 1)  # it may still hold a GPU's memory
        call = self.caller.call_of(partial(run_rank, arguments=self.arguments), {}, environment({}))
        if os.path.isdir(folder):
            call = call._replace(folder=folder)
        self.channel = self.caller.begin(call, outputs)

    def call(self, method: str, *arguments: Any) -> Any:
        """Return what a method of the rank returns, or raise its error."""
        assert self.channel
        try:
            self.channel.send((method, arguments))
            *_, value, pickled, printed = self.channel.recv()  # an answer of `run_calls`, or the end of `child.run`
        except (EOFError, OSError):
            raise ended_by(self.caller.await_end(None)) from None
        if printed:
            raise error_of(pickled, printed)
        return value

    def leave(self) -> None:
        """Let the rank's process end."""
        if self.channel:
            self.channel.close()
            self.channel = None


class Workers(Group):
    """A training group of Ray actors, one per bundle of the trial's placement group.

    Args:
        own: the trial's folder, which gets the output of rank 0 if it is on that node.
    """

    def __init__(self, shared: Shared, num_workers: int, cpus: float, gpus: float, own: Path) -> None:
        self.shared, self.cpus, self.gpus, self.own = shared, cpus, gpus, own
        super().__init__(material_here, num_workers)

    def start(self) -> None:
        # The actors have no runtime environment of their own, so that Ray uses the processes started in advance.
        actor = ray.remote(WorkerActor)
        group = get_current_placement_group()
        self.actors: list[Any] = []
        device = "cuda:0" if self.gpus else "cpu"  # Ray makes only the worker's own GPUs visible to it
        for rank in range(self.num_workers):
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
            options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "scheduling_strategy": strategy}
            arguments = rank, self.num_workers, max(1, int(self.cpus)), device
            self.actors.append(actor.options(**options).remote(self.shared, *arguments))

    def begin(self, spec: TrialSpec, state: bytes | None = None, limit: int | None = None) -> Any:
        outputs = [str(self.own / "stdout"), str(self.own / "stderr")], [os.devnull, os.devnull]
        entered = [actor.enter.remote(os.getcwd(), outputs[rank > 0]) for rank, actor in enumerate(self.actors)]
        self.answers(entered)
        addresses = addresses_among(self.answers([each.address.remote() for each in self.actors]))
        (port,) = self.answers([self.send(0, "listen", addresses[0])])
        self.answers([self.send(rank, "join", addresses[0], port, own) for rank, own in enumerate(addresses)])
        return super().begin(spec, state, limit)

    def send(self, rank: int, method: str, *arguments: Any) -> Any:
        return self.actors[rank].call.remote(method, *arguments)

    def finished(self, calls: list[Any], timeout_s: float | None) -> list[Answer]:
        return [received(call) for call in ray.wait(calls, num_returns=1, timeout=timeout_s)[0]]

    def release(self) -> None:
        """Makes the ranks end; does not wait for them, since a trial must end at once."""
        for actor in self.actors:
            actor.leave.remote()

    def close(self) -> None:
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []


def received(call: Any) -> Answer:
    """Returns a finished call with its value or its error; a member's own error is unwrapped from Ray's."""
    try:
        return call, ray.get(call), None
    except ray.exceptions.RayTaskError as error:
        return call, None, error.cause if isinstance(error.cause, Exception) else error
    except ray.exceptions.RayError as error:
        return call, None, error


warm: Workers | None = None  # the actors of the last trial of this process, if that trial ended without an error


def workers_for(shared: Shared, num_workers: int, cpus: float, gpus: float, own: Path) -> Workers:
    """Returns the actors of the last trial of this process, or new ones; after the trial, `keep_warm` saves them."""
    global warm
    group, warm = warm, None
    if group is not None:
        group.own = own
        return group
    return Workers(shared, num_workers, cpus, gpus, own)


def keep_warm(group: Workers) -> None:
    """Ends the ranks, and keeps their actors for the next trial; not to be called after an error."""
    global warm
    group.release()
    warm = group
