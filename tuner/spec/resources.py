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
    """The CPUs and GPUs (or fractions) of one trial, split evenly over its workers, and how many trials run at once."""

    cpus: float
    gpus: float
    concurrent: int
    workers: int = 1
    split: bool = False  # whether separate worker processes train, and the trial's own process waits for them

    def bundles(self) -> list[dict[str, float]]:
        """The bundles of a trial's placement group; the first is empty if the trial's own process waits for workers."""
        amounts = {"CPU": self.cpus / self.workers, "GPU": self.gpus / self.workers}
        bundle = {name: amount for name, amount in amounts.items() if amount}
        return [{}, *[bundle] * self.workers] if self.split else [bundle]

    def num_processes(self) -> int:
        return self.concurrent * (self.workers + 1 if self.split else 1)

    def whole_gpus(self) -> int:
        """How many GPUs the concurrent trials need, which share a GPU with each other at most."""
        num_bundles = self.concurrent * (self.workers if self.split else 1)
        each = self.bundles()[-1].get("GPU", 0.0)
        return int(num_bundles * each if each >= 1 or not each else math.ceil(num_bundles / _per_gpu(each)))

    def fit(self, nodes: Sequence[Mapping[str, float]]) -> int:
        """How many trials fit on the nodes (resource -> amount) at once; a trial's workers may be on several nodes."""
        return self.num_bundles(nodes) // (self.workers if self.split else 1)

    def num_bundles(self, nodes: Sequence[Mapping[str, float]]) -> int:
        """How many bundles of trials with these resources fit on the nodes at once; empty bundles are not counted."""
        return sum(_fit(self.bundles()[-1], node) for node in nodes)

    def each(self) -> str:
        """The resources of one bundle that is not empty, in words: `1 CPU and 0.5 GPU`."""
        return " and ".join(f"{amount:g} {name}" for name, amount in self.bundles()[-1].items())


def _fit(bundle: Mapping[str, float], node: Mapping[str, float]) -> int:
    fit = math.floor(node.get("CPU", 0.0) / bundle["CPU"] + 1e-9)
    if "GPU" in bundle:
        each, there = bundle["GPU"], node.get("GPU", 0.0)
        fit = min(fit, int(there // each) if each >= 1 else int(there) * _per_gpu(each))
    return fit


def _per_gpu(fraction: float) -> int:
    return math.floor(1 / fraction + 1e-9)  # a fraction of a GPU must lie on one GPU: 0.4 GPU fits twice on each


def resources_of(experiment: Options, nodes: Sequence[Mapping[str, float]]) -> Resources:
    """The resources of a trial on `nodes` (resource -> amount): nodes that run, and nodes that an autoscaler may add.

    Raises RequestError for a trial that does not fit: Ray would silently leave it pending. With --address and
    --max-concurrent-trials no trial is refused, because an autoscaler may add nodes of unknown size. Also raises it for
    --gpu-hours if a trial uses no GPU.
    """
    workers, ddp = experiment.workers_per_trial, experiment.strategy == "ddp"
    most_gpus = max((float(node.get("GPU", 0)) for node in nodes), default=0.0)
    cpus = float(workers) if experiment.cpus_per_trial == "auto" else float(experiment.cpus_per_trial)
    if experiment.gpus_per_trial != "auto":
        gpus = float(experiment.gpus_per_trial)
    elif ddp:
        gpus = float(workers) if most_gpus else 0.0
    else:
        gpus = min(1.0 if experiment.strategy == "single" else 2.0, most_gpus)
    if experiment.gpu_hours and not gpus:
        never = "a trial uses no GPU here, so this never ends the search"
        other = "give --cpu-hours or --time-budget (and with --resume, --gpu-hours 0)"
        raise RequestError(f"--gpu-hours {experiment.gpu_hours:g}: {never}; {other}")
    trial = Resources(cpus, gpus, experiment.max_concurrent_trials, workers, ddp)
    if experiment.address and experiment.max_concurrent_trials:
        return trial
    fit = trial.fit(nodes)
    if not fit:
        raise RequestError(_refusal(experiment, trial, nodes) + (SCALED if experiment.address else ""))
    return replace(trial, concurrent=min(fit, experiment.max_concurrent_trials or fit))


def _refusal(experiment: Options, trial: Resources, nodes: Sequence[Mapping[str, float]]) -> str:
    n, amounts = trial.workers, {"CPU": trial.cpus, "GPU": trial.gpus}
    for name, wanted in amounts.items():
        each = [float(node.get(name, 0)) for node in nodes]
        there = sum(each) if trial.split else max(each, default=0.0)
        if wanted <= there:
            continue
        are = f"there {'is' if there == 1 else 'are'} {there:g}"
        if trial.split:
            less = "ask for fewer workers" + (", or for --gpus-per-trial 0" if name == "GPU" else "")
            return f"--workers-per-trial {n}: {n} workers x {wanted / n:g} {name} per trial, {are}; {less}"
        flag, s = f"--{name.lower()}s-per-trial {wanted:g}", "" if there == 1 else "s"
        if experiment.address:
            return f"{flag}: no node of the cluster has more than {there:g} {name}{s}; ask for that or less"
        why = f" ({why_no_gpu()})" if name == "GPU" and not there and why_no_gpu() else ""
        less = f"ask for {there:g} or less" if there else "leave it out"
        return f"{flag}: {are} {name}{s} on this machine{why}; {less}"
    if not trial.split:
        flag = f"--gpus-per-trial {trial.gpus:g}"
        return f"{flag}: no node with that many GPUs has {trial.cpus:g} CPUs; ask for fewer CPUs or GPUs"
    return (
        f"--workers-per-trial {n}: each of the {n} workers of a trial needs {trial.each()} on one node; only "
        f"{trial.num_bundles(nodes)} fit; ask for fewer workers, or for less for each"
    )


def why_no_gpu() -> str:
    """Why this machine's GPU cannot be used, if that is known; else an empty text."""
    if sys.platform == "darwin":
        return "Apple's GPU is not supported: Ray gives trials no share of it, and it has no float64"
    return trouble()
