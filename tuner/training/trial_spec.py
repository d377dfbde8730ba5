"""TrialSpec: what a process needs to know to train one trial, apart from its task and data."""

from __future__ import annotations

from dataclasses import dataclass, field

from tuner.training.task import Config


@dataclass(frozen=True)
class TrialSpec:
    """A trial's setting, and how to train it.

    Args:
        config: the setting.
        seed: the trial's own seed (`trial_seed`), at least 0.
        max_epochs: the number of epochs to train; the task's schedule gets it.
        precision: fp32, bf16 or fp16.
        on_oom: shrink or fail.
        strategy: single, ddp, dp, model or pipeline.
        num_workers: number of processes that train the trial; more than 1 only with ddp.
        cpus, gpus: CPUs and GPUs of the whole trial.
        mutable: optimizer options for which `config` takes precedence over a checkpoint, in population-based training.
        constants: the space's constants; the config of a trial contains them, too.
    """

    config: Config
    seed: int
    max_epochs: int
    precision: str = "fp32"
    on_oom: str = "shrink"
    strategy: str = "single"
    num_workers: int = 1
    cpus: float = 1
    gpus: float = 0
    mutable: tuple[str, ...] = ()
    constants: Config = field(default_factory=dict)

    @property
    def device(self) -> str:
        """The torch device type: cuda or cpu."""
        return "cuda" if self.gpus else "cpu"

    @property
    def num_threads(self) -> int:
        """The number of torch threads in each process."""
        return max(1, int(self.cpus / self.num_workers))


def trial_seed(seed: int, trial_id: str) -> int:
    """The seed of a trial's random streams, computed from the experiment's seed and `trial_id`, a number as text."""
    import numpy as np

    return int(np.random.SeedSequence((seed, int(trial_id))).generate_state(1)[0])
