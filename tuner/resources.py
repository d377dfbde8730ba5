"""What one trial gets, and how many trials fit; what does not fit is refused with what there is."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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

    def fit(self, nodes: Sequence[Mapping[str, float]]) -> int:
        """Trials that the nodes hold at a time: none spans two of them.

        Args:
            nodes: of each, name -> amount.
        """
        return sum(self._fit(node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in nodes)

    def _fit(self, cpus: float, gpus: float) -> int:
        fit = math.floor(cpus / self.cpus + 1e-9)
        if self.gpus:
            # A fraction does not span two devices: 0.4 of a GPU fits twice into each.
            each = int(gpus // self.gpus) if self.gpus >= 1 else int(gpus) * math.floor(1 / self.gpus + 1e-9)
            fit = min(fit, each)
        return fit


def resources_of(experiment: Experiment, nodes: Sequence[Mapping[str, float]]) -> Resources:
    """The resources of a trial on these nodes; `auto` is one GPU where there is one, and one CPU.

    Args:
        nodes: of each that there is or that may come, name -> amount.

    Raises:
        RequestError: no node can hold a trial. Ray would leave it pending without a word. Not raised where a number of
            trials at a time was asked of a cluster: its autoscaler may have nodes to add that nobody knows of.
    """
    cpus = 1.0 if experiment.cpus_per_trial == "auto" else float(experiment.cpus_per_trial)
    most = {name: max((float(node.get(name, 0)) for node in nodes), default=0.0) for name in ("CPU", "GPU")}
    gpus = min(1.0, most["GPU"]) if experiment.gpus_per_trial == "auto" else float(experiment.gpus_per_trial)
    trial = Resources(cpus, gpus, experiment.max_concurrent_trials)
    fit = trial.fit(nodes)
    if experiment.address and experiment.max_concurrent_trials:
        return trial
    if not fit:
        raise RequestError(_too_much(experiment, trial, most))
    return replace(trial, concurrent=min(fit, experiment.max_concurrent_trials or fit))


def _too_much(experiment: Experiment, trial: Resources, most: dict[str, float]) -> str:
    """What no node has, and what to ask for."""
    pairs = (("CPU", "--cpus-per-trial", trial.cpus), ("GPU", "--gpus-per-trial", trial.gpus))
    name, flag, wanted = next((pair for pair in pairs if pair[2] > most[pair[0]]), pairs[1])
    there, s = most[name], "" if most[name] == 1 else "s"
    if not experiment.address:
        is_or_are = "is" if there == 1 else "are"
        return f"{flag} {wanted:g}: there {is_or_are} {there:g} {name}{s} on this machine; ask for {there:g} or less"
    scaled = "; where an autoscaler adds such nodes, say for how many trials: --max-concurrent-trials N"
    if wanted > there:
        return (
            f"{flag} {wanted:g}: no node of the cluster has more than {there:g} {name}{s}; ask for that or less{scaled}"
        )
    return (
        f"{flag} {wanted:g}: no node of the cluster has {trial.cpus:g} CPUs beside it; ask for fewer of either{scaled}"
    )


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
