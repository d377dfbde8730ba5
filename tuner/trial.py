"""The functions that Ray runs as a trial: config in, reports out. The only file where Ray meets `tuner.training`."""

from __future__ import annotations

import contextlib
import errno
import gc
import inspect
import logging
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from ray import tune
from ray.tune.result import DEFAULT_METRIC

from tuner.checkpoints import STATE
from tuner.reports import begin_reports, own_exits
from tuner.space import Task
from tuner.training.share import hold_to_share

if TYPE_CHECKING:
    from tuner.training.loop import Training


@dataclass(frozen=True)
class Goal:
    """What every trial of an experiment is told."""

    metric: str
    mode: str
    max_epochs: int
    seed: int
    cpus: float
    gpus: float
    precision: str = "fp32"
    on_oom: str = "shrink"
    mutable: tuple[str, ...] = ()


def trial_seed(seed: int, trial_id: str) -> int:
    """A trial's own seed, a function of the experiment's and its number; every stream of the trial comes from it."""
    return int(np.random.SeedSequence((seed, int(trial_id))).generate_state(1)[0])


def train_task(config: dict[str, Any], *, task: Task, splits: Any, goal: Goal) -> None:
    """Trains one setting of a Task space from its checkpoint, if any; a report and a checkpoint an epoch."""
    from tuner.training.loop import Training

    start_clean(goal)
    begin_reports()
    seed = trial_seed(goal.seed, tune.get_context().get_trial_id())
    device = "cuda" if goal.gpus else "cpu"
    training = Training(
        task,
        config,
        splits,
        seed=seed,
        max_epochs=goal.max_epochs,
        device=device,
        precision=goal.precision,
        on_oom=goal.on_oom,
    )
    # A trial that is told to stop ends by a SystemExit in `tune.report`; its loader must not outlive it.
    with contextlib.closing(training):
        run_epochs(training, goal)


def run_epochs(training: Training, goal: Goal) -> None:
    """Goes on from the trial's checkpoint, if any, to its last epoch; a report and a checkpoint an epoch."""
    import torch

    best = math.inf
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder) / STATE, weights_only=True, map_location=training.device)
        training.load_state_dict(saved["training"], keep=goal.mutable)
        best = saved["best"]
    sign = 1 if goal.mode == "min" else -1
    while training.epoch < goal.max_epochs:
        report: dict[str, Any] = training.run_epoch()
        value = sign * report[goal.metric]
        improved = value < best
        best = min(best, value) if math.isfinite(value) else best
        report |= {"training_iteration": training.epoch, "improved": training.epoch if improved else 0}
        patiently(report_of, training, best, report, save=math.isfinite(value))


def train_function(config: dict[str, Any], *, function: Callable[[dict[str, Any]], Any], goal: Goal) -> Any:
    """Runs a function written for Ray Tune as it is: it may report, yield or return its metrics."""
    start_clean(goal)
    reporter = begin_reports()
    seed = trial_seed(goal.seed, tune.get_context().get_trial_id())
    random.seed(seed)
    np.random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
    with own_exits(reporter):
        output = function(config)
        if not inspect.isgenerator(output):
            return output
        for metrics in output:
            tune.report(metrics if isinstance(metrics, dict) else {DEFAULT_METRIC: metrics})
    return None


def start_clean(goal: Goal) -> None:
    """A worker trains many trials: what the last one left is collected, and torch's threads are the trial's CPUs.

    None of them failed: Ray's controller keeps the worker of a trial only if it ended without an exception
    (`not exception and self._maybe_cache_trial_actor` in `TuneController._schedule_trial_stop`, also on the way of
    a retry), so a CUDA context that an error has poisoned ends with its process.
    """
    logging.getLogger("ray.train._internal.storage").setLevel(logging.WARNING)  # two lines a checkpoint
    gc.collect()
    if not gc.get_freeze_count():
        gc.freeze()  # the modules: walking them again takes 0.1 s a trial
    torch = sys.modules.get("torch")
    if torch is not None:  # a function without torch is not made to wait for its import
        torch.set_num_threads(max(1, int(goal.cpus)))
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    if goal.gpus:
        hold_to_share(goal.gpus)  # before the model is built


def report_of(training: Any, best: float, report: dict[str, Any], *, save: bool) -> None:
    """Reports an epoch, with a checkpoint where `save`."""
    with saved_state(training, best) if save else contextlib.nullcontext() as saving:
        tune.report(report, checkpoint=saving)


def patiently(action: Callable[..., None], *args: Any, **options: Any) -> None:
    """Tries again while there is no room for a checkpoint, or no folder: its epoch need not be lost for that.

    Ray hands a report to its driver when the checkpoint has been copied, so what failed was not reported.
    """
    while True:
        try:
            return action(*args, **options)
        except (OSError, RuntimeError) as error:
            if not storage_trouble(error):
                raise
            with contextlib.suppress(OSError):  # its log may lie on the same disk
                print(f"cannot save a checkpoint ({error}); trying again", file=sys.stderr, flush=True)
            time.sleep(1)


def storage_trouble(error: OSError | RuntimeError) -> bool:
    """Whether it is the disk, not the trial: full, read-only, or without the experiment's folder."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE):
        return True
    # torch tells of a full disk by its writer's name, Ray of a folder that is gone by the file that it looks for.
    said = str(error)
    return "PytorchStreamWriter failed" in said or "Unable to set up cluster storage" in said


@contextlib.contextmanager
def saved_state(training: Training, best: float) -> Iterator[tune.Checkpoint]:
    """The trial's state in a folder that lives until Ray has copied it to the experiment's."""
    import torch

    with tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        torch.save({"training": training.state_dict(), "best": best}, Path(folder) / STATE)
        yield tune.Checkpoint.from_directory(folder)
