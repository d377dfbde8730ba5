"""What one trial gets, and how many trials fit; what does not fit is refused with what there is."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from tuner.errors import RequestError
from tuner.experiment import Experiment


@dataclass(frozen=True)
class Resources:
    """CPUs and GPUs (fractions too) of one trial, and trials at a time."""

    cpus: float
    gpus: float
    concurrent: int

    def bundle(self) -> dict[str, float]:
        """As a Ray placement group's bundle."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}


def resources_of(experiment: Experiment, cluster: dict[str, float]) -> Resources:
    """The resources of a trial on a cluster; `auto` is one GPU where there is one, and one CPU.

    Args:
        cluster: name -> amount, as `ray.cluster_resources()` gives it.

    Raises:
        RequestError: one trial needs more than there is. Ray would leave it pending without a word.
    """
    cpus = 1.0 if experiment.cpus_per_trial == "auto" else float(experiment.cpus_per_trial)
    there = {"CPU": float(cluster.get("CPU", 0)), "GPU": float(cluster.get("GPU", 0))}
    gpus = float(min(1.0, there["GPU"])) if experiment.gpus_per_trial == "auto" else float(experiment.gpus_per_trial)
    for name, flag, wanted in (("CPU", "--cpus-per-trial", cpus), ("GPU", "--gpus-per-trial", gpus)):
        if wanted > there[name]:
            raise RequestError(
                f"{flag} {wanted:g}: there {'is' if there[name] == 1 else 'are'} {there[name]:g} {name}"
                f"{'' if there[name] == 1 else 's'} {'in the cluster' if experiment.address else 'on this machine'}; "
                f"ask for {there[name]:g} or less"
            )
    fit = math.floor(there["CPU"] / cpus + 1e-9)
    if gpus:
        # A fraction does not span two devices: 0.4 of a GPU fits twice into each.
        fit = min(fit, int(there["GPU"] // gpus if gpus >= 1 else there["GPU"] * math.floor(1 / gpus + 1e-9)))
    return Resources(cpus, gpus, min(fit, experiment.max_concurrent_trials or fit))


def local_cluster() -> dict[str, float]:
    """This machine's CPUs (those this process may use) and GPUs (those visible), before Ray is started."""
    from ray._private.accelerators import get_accelerator_manager_for_resource

    manager = get_accelerator_manager_for_resource("GPU")
    visible = manager.get_current_process_visible_accelerator_ids() if manager else None
    gpus = manager.get_current_node_num_accelerators() if manager else 0
    return {"CPU": float(_cpus()), "GPU": float(gpus if visible is None else min(gpus, len(visible)))}


def _cpus() -> int:
    from ray._private.utils import get_num_cpus

    # Ray's count knows a container's CPU quota, the affinity mask a taskset or batch system's share.
    return min(int(get_num_cpus()), len(os.sched_getaffinity(0)))
