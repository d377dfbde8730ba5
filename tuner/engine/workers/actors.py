"""Runs the worker processes of a ddp trial as Ray actors inside the trial's placement group.

The trial's actor has no resources of its own: it directs its workers epoch by epoch, and reports. The workers
end when this actor ends. A `TorchTrainer` would take 14 s to its first report. It would reserve a second placement
group, which Ray Tune does not count, and would not free the group when the trial is pruned (ray 2.60).
"""

from __future__ import annotations

import os
from typing import Any

import ray
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tuner.engine.workers.own_folder import rest, start_folder
from tuner.training.group import Answer, DDPRank, Group, addresses_among
from tuner.training.task import TrialSpec


class WorkerActor(DDPRank):
    """One process of a ddp trial, as a Ray actor."""

    def address(self) -> str:
        return str(ray.util.get_node_ip_address())

    def enter(self, folder: str) -> None:
        """Change into the trial's own folder, which only the workers on the trial's node have."""
        start = start_folder()
        os.chdir(folder if os.path.isdir(folder) else start)

    def leave(self) -> None:
        """Free the training state, and leave the trial's folder."""
        self.end()
        rest(start_folder())


class Workers(Group):
    """A training group of Ray actors, one per bundle of the trial's placement group; `material` is an ObjectRef."""

    def __init__(self, material: Any, num_workers: int, cpus: float, gpus: float) -> None:
        self.cpus, self.gpus = cpus, gpus
        super().__init__(material, num_workers)

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
            self.actors.append(actor.options(**options).remote(*arguments))
        addresses = addresses_among(ray.get([each.address.remote() for each in self.actors]))
        (port,) = self.answers([self.send(0, "listen", addresses[0])])
        self.answers([self.send(rank, "join", addresses[0], port, own) for rank, own in enumerate(addresses)])

    def begin(self, spec: TrialSpec, state: bytes | None = None, limit: int | None = None) -> Any:
        self.call("enter", os.getcwd())
        return super().begin(spec, state, limit)

    def send(self, rank: int, method: str, *arguments: Any) -> Any:
        return getattr(self.actors[rank], method).remote(*arguments)

    def finished(self, calls: list[Any], timeout_s: float | None) -> list[Answer]:
        return [received(call) for call in ray.wait(calls, num_returns=1, timeout=timeout_s)[0]]

    def release(self) -> None:
        """Makes the workers free their training state; does not wait for them, since a trial must end at once."""
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


warm: Workers | None = None  # the workers of this actor's last trial, if that trial ended without an error


def workers_for(shared: Any, num_workers: int, cpus: float, gpus: float) -> Workers:
    """Returns the workers of this actor's last trial, or new ones; after the trial, `keep` saves them for the next."""
    global warm
    group, warm = warm, None
    if group is not None:
        group.material = shared
        return group
    return Workers(shared, num_workers, cpus, gpus)


def keep(group: Workers) -> None:
    """Frees the workers' training state and keeps them for this actor's next trial; not to be called after an error."""
    global warm
    group.release()
    warm = group
