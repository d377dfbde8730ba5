"""Reads and writes state of the cluster in Ray's control service (GCS), for which Ray has no public function."""

from __future__ import annotations

from typing import Any

from ray._private.state import state
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_list, _internal_kv_put


def draining_nodes() -> frozenset[str]:
    """Returns the ids of nodes that are being drained."""
    return frozenset(state.get_draining_nodes())


def launchable_groups() -> list[tuple[dict[str, float], int]]:
    """Returns (a node's resources, maximum number of nodes or -1 = unlimited) for each node group of the autoscaler."""
    config = state.get_cluster_config()
    return [(dict(group.resources), group.max_count) for group in config.node_group_configs] if config else []


def running_jobs() -> set[str]:
    """Returns the ids of jobs whose driver is alive."""
    return {job["JobID"] for job in state.job_table() if not job["IsDead"]}


def nodes_of_group(placement_group: Any) -> set[str]:
    """Returns the ids of the nodes on which a placement group has bundles."""
    return set(state.placement_group_table(placement_group.id)["bundles_to_node_id"].values())


def publish(table: bytes, key: str, value: bytes) -> None:
    """Writes one value into a table of the control service's key-value store."""
    _internal_kv_put(key.encode(), value, overwrite=True, namespace=table)


def published(table: bytes) -> dict[str, bytes]:
    """Returns all keys and values of a table in the control service's key-value store."""
    keys = _internal_kv_list(b"", namespace=table)
    return {key.decode(): _internal_kv_get(key, namespace=table) for key in keys}
