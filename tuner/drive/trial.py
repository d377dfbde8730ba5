"""The functions that Ray runs as a trial: a configuration comes in, reports go out."""

from __future__ import annotations

import contextlib
import errno
import gc
import inspect
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from ray import tune
from ray.tune.result import DEFAULT_METRIC
from tuner.training.task import Task

from tuner.engine.reports import begin_reports, own_exits
from tuner.record.checkpoints import STATE
from tuner.record.columns import WAITS
from tuner.training.share import hold_to_share


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
    strategy: str = "single"
    num_workers: int = 1


def trial_seed(seed: int, trial_id: str) -> int:
    """A trial's own seed, a function of the experiment's and its number; every stream of the trial comes from it."""
    return int(np.random.SeedSequence((seed, int(trial_id))).generate_state(1)[0])


def train_task(config: dict[str, Any], *, task: Task, splits: Any, goal: Goal) -> None:
    """Trains one setting of a Task space from its checkpoint, if any; a report and a checkpoint an epoch."""
    import torch

    from tuner.training.loop import Training
    from tuner.training.parallel import Worker

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
        worker=Worker(goal.strategy, num_devices=max(1, int(goal.gpus))),
    )
    best = math.inf
    with checkpointed() as path:
        if path:
            saved = torch.load(path, weights_only=True, map_location=training.device)
            training.load_state_dict(saved["training"], keep=goal.mutable)
            best = saved["best"]

    def save(best: float, path: Path) -> None:
        torch.save({"training": training.state_dict(), "best": best}, path)

    # A trial that is told to stop ends by a SystemExit in `tune.report`; its loader must not outlive it.
    with contextlib.closing(training):
        run_epochs(training, save, best, goal)


def train_in_workers(config: dict[str, Any], *, shared: tuple[Any], goal: Goal) -> None:
    """As `train_task`, in worker processes; this one waits for them and reports.

    Args:
        shared: a reference to (task, splits), in a tuple that keeps Ray from following it.
    """
    import torch

    from tuner.engine.workers import keep, workers_for
    from tuner.training.group import Setting

    start_clean(replace(goal, cpus=1, gpus=0))  # this process waits; what the trial has, its workers have
    begin_reports()
    seed = trial_seed(goal.seed, tune.get_context().get_trial_id())
    setting = Setting(config, seed, goal.max_epochs, goal.precision, goal.on_oom, keep=goal.mutable)
    best = math.inf
    with checkpointed() as path:
        if path:
            setting = replace(setting, state=path.read_bytes())
            best = torch.load(path, weights_only=True, map_location="cpu", mmap=True)["best"]
    group = workers_for(shared[0], goal.num_workers, goal.cpus / goal.num_workers, goal.gpus / goal.num_workers)

    def save(best: float, path: Path) -> None:
        path.write_bytes(group.state(best=best))

    try:
        group.begin(setting)
        run_epochs(group, save, best, goal)
    except Exception:
        group.close()
        raise
    except SystemExit:  # told to stop, in `tune.report`: the workers wait for the next epoch
        keep(group)
        raise
    keep(group)


class Epochs(Protocol):
    """What trains a setting: in this process, or in others."""

    epoch: int

    def run_epoch(self) -> dict[str, Any]: ...


def run_epochs(training: Epochs, save: Callable[[float, Path], None], best: float, goal: Goal) -> None:
    """Goes on to the last epoch; a report and a checkpoint an epoch.

    Args:
        save: `save(best, path)` writes the state and the best value so far to a file.
        best: the best value so far, smaller is better whatever the mode.
    """
    sign = 1 if goal.mode == "min" else -1
    while training.epoch < goal.max_epochs:
        report: dict[str, Any] = training.run_epoch()
        value = sign * report[goal.metric]
        improved = value < best
        best = min(best, value) if math.isfinite(value) else best
        report |= {"training_iteration": training.epoch, "improved": training.epoch if improved else 0}
        patiently(report_of, report, partial(save, best) if math.isfinite(value) else None)


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


def report_of(report: dict[str, Any], save: Callable[[Path], None] | None) -> None:
    """Reports an epoch; with a checkpoint, if there is something to save."""
    with saved_state(save) if save else contextlib.nullcontext() as saving:
        tune.report(report, checkpoint=saving)


def patiently(action: Callable[..., None], *args: Any, **options: Any) -> None:
    """Tries again while there is no room for a checkpoint, or no folder: its epoch need not be lost for that.

    Ray hands a report to its driver when the checkpoint has been copied, so what failed was not reported. The driver is
    told why it waits, each second: it says so, and can stop the trial.
    """
    while True:
        try:
            return action(*args, **options)
        except (OSError, RuntimeError) as error:
            if not storage_trouble(error):
                raise
            with contextlib.suppress(OSError):  # its log may lie on the same disk
                print(f"cannot save a checkpoint ({error}); trying again", file=sys.stderr, flush=True)
            tune.report({WAITS: f"a checkpoint cannot be saved ({error})"})
            time.sleep(1)


def storage_trouble(error: OSError | RuntimeError) -> bool:
    """Whether it is the disk, not the trial: full, read-only, or without the experiment's folder."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE):
        return True
    # torch tells of a full disk by its writer's name, Ray of a folder that is gone by the file that it looks for.
    said = str(error)
    return "PytorchStreamWriter failed" in said or "Unable to set up cluster storage" in said


@contextlib.contextmanager
def checkpointed() -> Iterator[Path | None]:
    """The file with the state that the trial goes on from; None where it begins."""
    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        yield None
        return
    with checkpoint.as_directory() as folder:
        yield Path(folder) / STATE


@contextlib.contextmanager
def saved_state(save: Callable[[Path], None]) -> Iterator[tune.Checkpoint]:
    """The trial's state in a folder that lives until Ray has copied it to the experiment's."""
    with tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        save(Path(folder) / STATE)
        yield tune.Checkpoint.from_directory(folder)
