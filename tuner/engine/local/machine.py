"""Counts the CPUs and GPUs of this machine that a search may use, before Ray is started."""

from __future__ import annotations

import os
import sys


def num_gpus() -> int:
    """Returns the number of GPUs that this process may use; CUDA_VISIBLE_DEVICES and similar variables reduce it."""
    from ray._private.accelerators import get_accelerator_manager_for_resource

    manager = get_accelerator_manager_for_resource("GPU")
    if manager is None:
        return 0
    on_machine = manager.get_current_node_num_accelerators()
    visible = manager.get_current_process_visible_accelerator_ids()
    return int(on_machine if visible is None else min(on_machine, len(visible)))


def local_cluster() -> dict[str, float]:
    """Returns the CPUs and GPUs that a search on this machine may use, as Ray's resources; Ray need not run.

    If the program that calls tuner has started Ray, these are the ones that it has given to `ray.init`.
    """
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        here = ray.cluster_resources()
        return {name: float(here.get(name, 0)) for name in ("CPU", "GPU")}
    from ray._private.utils import get_num_cpus

    # The smaller count applies: Ray's respects a container's CPU quota, the affinity mask taskset and batch systems.
    return {"CPU": float(min(int(get_num_cpus()), len(os.sched_getaffinity(0)))), "GPU": float(num_gpus())}
