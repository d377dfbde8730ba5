"""TrialSpec: one trial as it is to be trained, in whatever process trains it."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.training.task import Config


@dataclass(frozen=True)
class TrialSpec:
    """A trial's setting, and how it is trained.

    Args:
        config: the setting.
        seed: the trial's own (`trial_seed`), at least 0.
        max_epochs: epochs in all; the task's schedule is laid over them.
        precision: fp32, bf16 or fp16.
        on_oom: shrink or fail.
        strategy: single, ddp, dp, model or pipeline.
        num_workers: processes that train it; above 1 with ddp alone.
        cpus, gpus: of the whole trial.
        mutable: parameters whose value in `config` takes precedence over the one in a checkpoint, as pbt needs.
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

    @property
    def device(self) -> str:
        """The kind of device, as torch names it."""
        return "cuda" if self.gpus else "cpu"

    @property
    def num_threads(self) -> int:
        """Torch's threads in each process."""
        return max(1, int(self.cpus / self.num_workers))


def trial_seed(seed: int, trial_id: str) -> int:
    """A trial's own seed, a function of the experiment's and its number; every stream of the trial comes from it."""
    import numpy as np

    return int(np.random.SeedSequence((seed, int(trial_id))).generate_state(1)[0])
