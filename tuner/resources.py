"""What one trial gets, and how many trials fit; what does not fit is refused with what there is."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from tuner.errors import RequestError
from tuner.experiment import Experiment


@dataclass(frozen=True)
class Resources:
    """CPUs and GPUs (fractions too) of one trial, trials at a time, and processes that a trial has for its training.

    Those of a trial with workers are split evenly over them.
    """

    cpus: float
    gpus: float
    concurrent: int
    workers: int = 1
    split: bool = False  # into processes of their own, which the trial's waits for

    def bundles(self) -> list[dict[str, float]]:
        """As a Ray placement group's bundles, the trial's own process first: it needs nothing where it only waits."""
        if not self.split:
            return [bundle(self.cpus, self.gpus)]
        return [{}, *[bundle(self.cpus / self.workers, self.gpus / self.workers)] * self.workers]


def bundle(cpus: float, gpus: float) -> dict[str, float]:
    """CPUs and GPUs that belong together, on one node."""
    return {"CPU": cpus, **({"GPU": gpus} if gpus else {})}


def resources_of(experiment: Experiment, cluster: dict[str, float]) -> Resources:
    """The resources of a trial on a cluster; `auto` is one CPU, and one GPU where there is one, for each worker.

    The strategies that use several devices in one process get two GPUs by `auto`, where there are two.

    Args:
        cluster: name -> amount, as `ray.cluster_resources()` gives it.

    Raises:
        RequestError: one trial needs more than there is. Ray would leave it pending without a word.
    """
    workers, ddp = experiment.workers_per_trial, experiment.strategy == "ddp"
    cpus = float(workers) if experiment.cpus_per_trial == "auto" else float(experiment.cpus_per_trial)
    there = {"CPU": float(cluster.get("CPU", 0)), "GPU": float(cluster.get("GPU", 0))}
    if experiment.gpus_per_trial != "auto":
        gpus = float(experiment.gpus_per_trial)
    elif ddp:
        gpus = float(workers) if there["GPU"] else 0.0
    else:
        gpus = min(1.0 if experiment.strategy == "single" else 2.0, there["GPU"])
    for name, flag, wanted in (("CPU", "--cpus-per-trial", cpus), ("GPU", "--gpus-per-trial", gpus)):
        if wanted > there[name] and ddp:
            raise RequestError(
                f"--workers-per-trial {workers}: {workers} workers x {wanted / workers:g} {name} per trial, there "
                f"{'is' if there[name] == 1 else 'are'} {there[name]:g}; ask for fewer workers"
                + (", or for --gpus-per-trial 0" if name == "GPU" else "")
            )
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
    return Resources(cpus, gpus, min(fit, experiment.max_concurrent_trials or fit), workers, ddp)


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
