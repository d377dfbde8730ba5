"""The worker processes of a ddp trial, as Ray actors inside the trial's placement group.

The trial's actor has no resources of its own: it tells its workers what to do, epoch by epoch, and reports. Ray
reserves the workers' resources with the trial, so none starts before all of them fit, and Ray Tune counts them.
They belong to the trial's actor, so that they end with it, however it ends, and with the placement group. A
`TorchTrainer` inside a trial reserves a second placement group that Ray Tune knows nothing of, takes 14 s to its first
report, and keeps the group when the trial is pruned (ray 2.60).

A group stays for the next trial of the same actor, as the actor itself does: starting one takes seconds.
"""

from __future__ import annotations

from typing import Any

import ray
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tuner.training.group import Answer, Group, Member, addresses_among, gathered


class WorkerActor:
    """A member of a group in a process of Ray's."""

    def __init__(self, rank: int, num_workers: int, num_threads: int, device: str) -> None:
        self.member = Member(rank, num_workers, num_threads, device)

    def address(self) -> str:
        """Of the node that this process is on."""
        return str(ray.util.get_node_ip_address())

    def begin(self, shared: Any, *arguments: Any) -> int:
        """`Member.begin` with a task and splits from the object store, whose arrays all processes of a node map."""
        task, splits = shared
        return self.member.begin(task, splits, *arguments)

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Any other method of the member."""
        return getattr(self.member, method)(*arguments, **named)


class Workers(Group):
    """A group of Ray actors, one in each bundle of this actor's placement group.

    Args:
        shared: a reference to (task, splits) in the object store.
        cpus, gpus: of one worker.
    """

    def __init__(self, shared: Any, num_workers: int, cpus: float, gpus: float) -> None:
        super().__init__()
        self.shared, self.num_workers, self.cpus, self.gpus = shared, num_workers, cpus, gpus
        self.actors: list[Any] = []
        self.start()

    def start(self) -> None:
        # Without a runtime environment of their own, so that processes which Ray has started in advance are taken.
        actor = ray.remote(WorkerActor)
        group = get_current_placement_group()
        device = "cuda:0" if self.gpus else "cpu"  # the first of those that Ray shows the process
        for rank in range(self.num_workers):
            place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
            options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "scheduling_strategy": place}
            given = rank, self.num_workers, max(1, int(self.cpus)), device
            self.actors.append(actor.options(**options).remote(*given))
        addresses = addresses_among(ray.get([each.address.remote() for each in self.actors]))
        port = self.call_first("listen", host=addresses[0])
        joins = [a.call.remote("join", addresses[0], port, own) for a, own in zip(self.actors, addresses, strict=True)]
        self.answers(joins)

    def call(self, method: str, *arguments: Any) -> list[Any]:
        if method == "begin":
            return self.answers([actor.begin.remote(self.shared, *arguments) for actor in self.actors])
        return self.answers([actor.call.remote(method, *arguments) for actor in self.actors])

    def call_first(self, method: str, **named: Any) -> Any:
        return self.answers([self.actors[0].call.remote(method, **named)])[0]

    def answers(self, calls: list[Any]) -> list[Any]:
        pending = {call: rank for rank, call in enumerate(calls)}

        def done(timeout_s: float | None) -> list[Answer]:
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=timeout_s)
            return [received(pending.pop(call), call) for call in ready]

        return gathered(len(calls), done)

    def restart(self) -> None:
        self.close()
        self.start()

    def release(self) -> None:
        """Has the processes let go of their training, without waiting for it: a trial has to end at once."""
        for actor in self.actors:
            actor.call.remote("end")

    def close(self) -> None:
        """Ends the processes now, wherever they stand."""
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []


def received(rank: int, call: Any) -> Answer:
    """What a call gave or raised; of an error of the member's own, that error."""
    try:
        return rank, ray.get(call), None
    except ray.exceptions.RayTaskError as error:
        return rank, None, error.cause if isinstance(error.cause, Exception) else error
    except ray.exceptions.RayError as error:
        return rank, None, error


warm: Workers | None = None  # the group that this actor's last trial left in good order


def workers_for(shared: Any, num_workers: int, cpus: float, gpus: float) -> Workers:
    """The group of this actor's last trial, or a new one. It is the caller's until `keep` is given it back."""
    global warm
    group, warm = warm, None
    if group is not None:
        group.shared = shared
        return group
    return Workers(shared, num_workers, cpus, gpus)


def keep(group: Workers) -> None:
    """Keeps a group that ended a trial in good order for this actor's next one."""
    global warm
    group.release()
    warm = group
