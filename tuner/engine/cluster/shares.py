"""Divides a cluster among searches: each publishes how many trials it could run, and all compute the same shares."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass

import ray
from ray._private.state import state
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_list, _internal_kv_put

TABLE = b"tuner"  # in Ray's key-value store on the cluster's head: a driver's job id -> its search's `Want` as JSON


@dataclass(frozen=True)
class Want:
    """What a search requests from the cluster.

    Args:
        num_trials: trials that the search could run at once, 0 or more.
        fit: trials of this search that fit on the whole cluster at once, 1 or more.
        priority: once each search has a trial, the highest priority is served first.
    """

    num_trials: int
    fit: int
    priority: int = 0


def agreed(mine: Want) -> int | None:
    """Publishes this search's request and returns its share in trials; None if no other search runs on the cluster."""
    job = ray.get_runtime_context().get_job_id()
    _internal_kv_put(job.encode(), json.dumps(astuple(mine)).encode(), overwrite=True, namespace=TABLE)
    wants, running = {job: mine}, {each["JobID"] for each in state.job_table() if not each["IsDead"]}
    for key in _internal_kv_list(b"", namespace=TABLE):
        if key.decode() in running:
            wants[key.decode()] = Want(*json.loads(_internal_kv_get(key, namespace=TABLE)))
    return division(wants)[job] if len(wants) > 1 else None


def division(wants: Mapping[str, Want]) -> dict[str, int]:
    """Returns how many trials each search may run, at least 1.

    It hands out one trial at a time, first to searches without a trial. Then the search with the highest priority takes
    all that it can use. Among equal priorities, the next trial goes to the search whose part of the cluster is
    smallest. Other searches get what a search cannot use (max-min fairness, Bertsekas and Gallager, Data Networks,
    6.5.2).
    """

    def turn(name: str) -> tuple[bool, int, float, str]:
        want = wants[name]
        return shares[name] > 0, -want.priority, (shares[name] + 1) / want.fit, name

    shares, left = dict.fromkeys(sorted(wants), 0), 1.0
    while True:
        takers = [
            name for name, want in wants.items() if shares[name] < want.num_trials and 1 / want.fit <= left + 1e-9
        ]
        if not takers:
            return {name: max(1, number) for name, number in shares.items()}
        name = min(takers, key=turn)
        shares[name] += 1
        left -= 1 / wants[name].fit
