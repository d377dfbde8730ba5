"""What one trial gets, and how many trials fit; what does not fit is refused with what there is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.errors import RequestError
from tuner.spec.experiment import Experiment

SCALED = "; where an autoscaler adds such nodes, say for how many trials: --max-concurrent-trials N"


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

    def num_processes(self) -> int:
        """Of all trials that run at a time."""
        return self.concurrent * (self.workers + 1 if self.split else 1)

    def fit(self, nodes: Sequence[Mapping[str, float]]) -> int:
        """Trials that the nodes hold at a time. A bundle spans no two nodes; a trial's workers may be on several.

        Args:
            nodes: of each, name -> amount.
        """
        return self.num_places(nodes) // (self.workers if self.split else 1)

    def num_places(self, nodes: Sequence[Mapping[str, float]]) -> int:
        """Bundles with resources that the nodes hold at a time: those of a trial are all the same."""
        return sum(_fit(self.bundles()[-1], node) for node in nodes)

    def each(self) -> str:
        """What one of those bundles has: `1 CPU and 0.5 GPU`."""
        return " and ".join(f"{amount:g} {name}" for name, amount in self.bundles()[-1].items())


def bundle(cpus: float, gpus: float) -> dict[str, float]:
    """CPUs and GPUs that belong together, on one node."""
    return {"CPU": cpus, **({"GPU": gpus} if gpus else {})}


def _fit(bundle: Mapping[str, float], node: Mapping[str, float]) -> int:
    """How often a node holds a bundle."""
    fit = math.floor(node.get("CPU", 0.0) / bundle["CPU"] + 1e-9)
    if "GPU" in bundle:
        each, there = bundle["GPU"], node.get("GPU", 0.0)
        # A fraction does not span two devices: 0.4 of a GPU fits twice into each.
        fit = min(fit, int(there // each) if each >= 1 else int(there) * math.floor(1 / each + 1e-9))
    return fit


def resources_of(experiment: Experiment, nodes: Sequence[Mapping[str, float]]) -> Resources:
    """The resources of a trial on these nodes; `auto` is one CPU, and one GPU where there is one, for each worker.

    The strategies that use several devices in one process get two GPUs by `auto`, where a node has two.

    Args:
        nodes: of each that there is or that may come, name -> amount.

    Raises:
        RequestError: the nodes cannot hold a trial. Ray would leave it pending without a word. Not raised where a
            number of trials at a time was asked of a cluster: its autoscaler may add nodes that nobody knows of.
    """
    workers, ddp = experiment.workers_per_trial, experiment.strategy == "ddp"
    most = {name: max((float(node.get(name, 0)) for node in nodes), default=0.0) for name in ("CPU", "GPU")}
    cpus = float(workers) if experiment.cpus_per_trial == "auto" else float(experiment.cpus_per_trial)
    if experiment.gpus_per_trial != "auto":
        gpus = float(experiment.gpus_per_trial)
    elif ddp:
        gpus = float(workers) if most["GPU"] else 0.0
    else:
        gpus = min(1.0 if experiment.strategy == "single" else 2.0, most["GPU"])
    trial = Resources(cpus, gpus, experiment.max_concurrent_trials, workers, ddp)
    if experiment.address and experiment.max_concurrent_trials:
        return trial
    fit = trial.fit(nodes)
    if not fit:
        there = {name: sum(float(node.get(name, 0)) for node in nodes) for name in most}
        said = _too_many_workers(trial, nodes, there) if ddp else _too_much(experiment, trial, most)
        raise RequestError(said + (SCALED if experiment.address else ""))
    return replace(trial, concurrent=min(fit, experiment.max_concurrent_trials or fit))


def _too_much(experiment: Experiment, trial: Resources, most: dict[str, float]) -> str:
    """What no node has, and what to ask for."""
    pairs = (("CPU", "--cpus-per-trial", trial.cpus), ("GPU", "--gpus-per-trial", trial.gpus))
    name, flag, wanted = next((pair for pair in pairs if pair[2] > most[pair[0]]), pairs[1])
    there, s = most[name], "" if most[name] == 1 else "s"
    if not experiment.address:
        is_or_are = "is" if there == 1 else "are"
        return f"{flag} {wanted:g}: there {is_or_are} {there:g} {name}{s} on this machine; ask for {there:g} or less"
    if wanted > there:
        return f"{flag} {wanted:g}: no node of the cluster has more than {there:g} {name}{s}; ask for that or less"
    return f"{flag} {wanted:g}: no node of the cluster has {trial.cpus:g} CPUs beside it; ask for fewer of either"


def _too_many_workers(trial: Resources, nodes: Sequence[Mapping[str, float]], there: dict[str, float]) -> str:
    """What all nodes together have too little of, or how many of the workers find a place on one of them."""
    workers = trial.workers
    for name, wanted in (("CPU", trial.cpus), ("GPU", trial.gpus)):
        if wanted > there[name]:
            return (
                f"--workers-per-trial {workers}: {workers} workers x {wanted / workers:g} {name} per trial, there "
                f"{'is' if there[name] == 1 else 'are'} {there[name]:g}; ask for fewer workers"
                + (", or for --gpus-per-trial 0" if name == "GPU" else "")
            )
    return (
        f"--workers-per-trial {workers}: {workers} workers x {trial.each()} per trial, each on one node, there is "
        f"room for {trial.num_places(nodes)}; ask for fewer workers, or for less for each"
    )
