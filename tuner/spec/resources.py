"""Computes the CPUs and GPUs of one trial and how many trials fit; refuses a trial that does not fit on the nodes."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.errors import RequestError
from tuner.spec.experiment import Options
from tuner.training.devices.nvml import trouble

SCALED = "; if an autoscaler can add such nodes, give --max-concurrent-trials N, the number of trials to request"


@dataclass(frozen=True)
class Resources:
    """The CPUs and GPUs (or fractions) of one trial, its number of workers, and how many trials run at once.

    A trial's CPUs and GPUs are split evenly over its workers.
    """

    cpus: float
    gpus: float
    concurrent: int
    workers: int = 1
    split: bool = False  # whether separate worker processes train, and the trial's own process waits for them

    def bundles(self) -> list[dict[str, float]]:
        """The bundles of a trial's Ray placement group, its own process first; a process that waits needs nothing."""
        amounts = {"CPU": self.cpus / self.workers, "GPU": self.gpus / self.workers}
        bundle = {name: amount for name, amount in amounts.items() if amount}
        return [{}, *[bundle] * self.workers] if self.split else [bundle]

    def num_processes(self) -> int:
        """The number of processes of all trials that run at once."""
        return self.concurrent * (self.workers + 1 if self.split else 1)

    def fit(self, nodes: Sequence[Mapping[str, float]]) -> int:
        """How many trials fit on the nodes (name -> amount) at once; a trial's workers may be on several nodes."""
        return self.num_bundles(nodes) // (self.workers if self.split else 1)

    def num_bundles(self, nodes: Sequence[Mapping[str, float]]) -> int:
        """How many of such trials' bundles that are not empty fit on the nodes at once."""
        return sum(_fit(self.bundles()[-1], node) for node in nodes)

    def each(self) -> str:
        """The resources of one bundle that is not empty, in words: `1 CPU and 0.5 GPU`."""
        return " and ".join(f"{amount:g} {name}" for name, amount in self.bundles()[-1].items())


def _fit(bundle: Mapping[str, float], node: Mapping[str, float]) -> int:
    """How many times a bundle fits on a node."""
    fit = math.floor(node.get("CPU", 0.0) / bundle["CPU"] + 1e-9)
    if "GPU" in bundle:
        each, there = bundle["GPU"], node.get("GPU", 0.0)
        # A fraction of a GPU must lie on one GPU: 0.4 GPU fits twice on each.
        fit = min(fit, int(there // each) if each >= 1 else int(there) * math.floor(1 / each + 1e-9))
    return fit


def resources_of(experiment: Options, nodes: Sequence[Mapping[str, float]]) -> Resources:
    """The resources of a trial on these nodes; `auto` gives each worker one CPU, and one GPU if a node has a GPU.

    With `auto`, strategies that use several devices in one process get two GPUs if a node has two. RequestError refuses
    a trial that does not fit, which Ray would silently leave pending. With --address and --max-concurrent-trials
    nothing is refused, because an autoscaler may add nodes of unknown size.

    Args:
        nodes: the resources (name -> amount) of each node that exists or that the autoscaler may add.
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
        text = _too_many_workers(trial, nodes) if ddp else _too_much(experiment, trial, most)
        raise RequestError(text + (SCALED if experiment.address else ""))
    return replace(trial, concurrent=min(fit, experiment.max_concurrent_trials or fit))


def _too_much(experiment: Options, trial: Resources, most: dict[str, float]) -> str:
    """An error text: which resource exceeds every node, and what to request instead."""
    pairs = (("CPU", "--cpus-per-trial", trial.cpus), ("GPU", "--gpus-per-trial", trial.gpus))
    name, flag, wanted = next((pair for pair in pairs if pair[2] > most[pair[0]]), pairs[1])
    there = f"{most[name]:g} {name}{'' if most[name] == 1 else 's'}"
    if not experiment.address:
        less = f"ask for {most[name]:g} or less" if most[name] else "leave it out"
        why = why_no_gpu() if name == "GPU" and not most[name] else ""
        is_or_are = "is" if most[name] == 1 else "are"
        return f"{flag} {wanted:g}: there {is_or_are} {there} on this machine{f' ({why})' if why else ''}; {less}"
    if wanted > most[name]:
        return f"{flag} {wanted:g}: no node of the cluster has more than {there}; ask for that or less"
    return f"{flag} {wanted:g}: no node of the cluster has {trial.cpus:g} CPUs beside it; ask for fewer of either"


def why_no_gpu() -> str:
    """Why a machine's GPU cannot be used, if that is known; else an empty text."""
    if sys.platform == "darwin":
        return "Apple's GPU is not supported: Ray gives trials no share of it, and it has no float64"
    return trouble()


def _too_many_workers(trial: Resources, nodes: Sequence[Mapping[str, float]]) -> str:
    """An error text: which resource all nodes together lack, or how many of the workers fit on the nodes."""
    workers = trial.workers
    for name, wanted in (("CPU", trial.cpus), ("GPU", trial.gpus)):
        there = sum(float(node.get(name, 0)) for node in nodes)
        if wanted > there:
            return (
                f"--workers-per-trial {workers}: {workers} workers x {wanted / workers:g} {name} per trial, there "
                f"{'is' if there == 1 else 'are'} {there:g}; ask for fewer workers"
                + (", or for --gpus-per-trial 0" if name == "GPU" else "")
            )
    return (
        f"--workers-per-trial {workers}: each of the {workers} workers of a trial needs {trial.each()} on one node; "
        f"only {trial.num_bundles(nodes)} fit; ask for fewer workers, or for less for each"
    )
