"""Searches on one cluster divide it: each tells how many trials it could run, and all come to the same division."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass

import ray

from tuner.engine import control

TABLE = b"tuner"  # in Ray's key-value store, which the cluster's head keeps: a driver's job -> what its search wants


@dataclass(frozen=True)
class Want:
    """What a search asks of the cluster.

    Args:
        num_trials: trials that it could run at a time, 0 or more.
        fit: trials of its kind that the whole cluster holds at a time, 1 or more.
        priority: the highest is served first.
    """

    num_trials: int
    fit: int
    priority: int = 0


def agreed(mine: Want) -> int | None:
    """Tells what this driver's search wants and gives the trials that are its part; None where it is alone."""
    job = ray.get_runtime_context().get_job_id()
    control.publish(TABLE, job, json.dumps(astuple(mine)).encode())
    wants, running = {job: mine}, control.running_jobs()
    for other, want in control.published(TABLE).items():
        if other in running and other != job:
            wants[other] = Want(*json.loads(want))
    return division(wants)[job] if len(wants) > 1 else None


def division(wants: Mapping[str, Want]) -> dict[str, int]:
    """Trials of each search, at least 1: one more at a time to whoever then has the smallest part of the cluster.

    What one search cannot use goes to the others (max-min fairness, Bertsekas and Gallager, Data Networks, 6.5.2).
    After the one trial that every search has, a higher priority takes all that it can use before a lower one.
    """

    def turn(name: str) -> tuple[bool, int, float, str]:
        want = wants[name]
        return given[name] > 0, -want.priority, (given[name] + 1) / want.fit, name

    given, left = dict.fromkeys(sorted(wants), 0), 1.0
    while True:
        takers = [name for name, want in wants.items() if given[name] < want.num_trials and 1 / want.fit <= left + 1e-9]
        if not takers:
            return {name: max(1, number) for name, number in given.items()}
        name = min(takers, key=turn)
        given[name] += 1
        left -= 1 / wants[name].fit
