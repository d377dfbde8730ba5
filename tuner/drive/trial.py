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

from tuner.engine.reports import begin_reports, own_exits
from tuner.record.checkpoints import STATE
from tuner.record.columns import WAITS
from tuner.record.records import sign_of
from tuner.training.share import hold_to_share
from tuner.training.task import Task
from tuner.training.trial_spec import TrialSpec, trial_seed


@dataclass(frozen=True)
class Goal:
    """What every trial of a search is given beside its setting.

    Args:
        spec: how trials are trained; its setting and its seed are those of a trial only after `spec_of`.
        metric, mode: what the search goes by.
    """

    spec: TrialSpec
    metric: str
    mode: str

    def spec_of(self, config: dict[str, Any]) -> TrialSpec:
        """The spec of the trial that this process runs."""
        return replace(self.spec, config=config, seed=trial_seed(self.spec.seed, tune.get_context().get_trial_id()))


def train_task(config: dict[str, Any], *, task: Task, splits: Any, goal: Goal) -> None:
    """Trains one setting of a Task space from its checkpoint, if any; a report and a checkpoint an epoch."""
    import torch

    from tuner.training.loop import Training

    spec = goal.spec_of(config)
    start_clean(spec.num_threads, spec.gpus)
    begin_reports()
    training = Training.of(task, splits, spec)
    best = math.inf
    with checkpointed() as path:
        if path:
            saved = torch.load(path, weights_only=True, map_location=training.device)
            training.load_state_dict(saved["training"], keep=spec.mutable)
            best = saved["best"]

    def save(best: float, path: Path) -> None:
        write_state({"training": training.state_dict(), "best": best}, path)

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

    spec = goal.spec_of(config)
    start_clean(num_threads=1, gpus=0)  # this process waits; what the trial has, its workers have
    begin_reports()
    state, best = None, math.inf
    with checkpointed() as path:
        if path:
            state = path.read_bytes()
            best = torch.load(path, weights_only=True, map_location="cpu", mmap=True)["best"]
    group = workers_for(shared[0], spec.num_workers, spec.cpus / spec.num_workers, spec.gpus / spec.num_workers)

    def save(best: float, path: Path) -> None:
        path.write_bytes(group.state(best=best))

    try:
        group.begin(spec, state)
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
    sign = sign_of(goal.mode)
    while training.epoch < goal.spec.max_epochs:
        report: dict[str, Any] = training.run_epoch()
        value = sign * report[goal.metric]
        improved = value < best
        best = min(best, value) if math.isfinite(value) else best
        report |= {"training_iteration": training.epoch, "improved": training.epoch if improved else 0}
        patiently(report_of, report, partial(save, best) if math.isfinite(value) else None)


def train_function(config: dict[str, Any], *, function: Callable[[dict[str, Any]], Any], goal: Goal) -> Any:
    """Runs a function written for Ray Tune as it is: it may report, yield or return its metrics."""
    spec = goal.spec_of(config)
    start_clean(spec.num_threads, spec.gpus)
    reporter = begin_reports()
    random.seed(spec.seed)
    np.random.seed(spec.seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(spec.seed)
    with own_exits(reporter):
        output = function(config)
        if not inspect.isgenerator(output):
            return output
        for metrics in output:
            tune.report(metrics if isinstance(metrics, dict) else {DEFAULT_METRIC: metrics})
    return None


def start_clean(num_threads: int, gpus: float) -> None:
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
        torch.set_num_threads(num_threads)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    if gpus:
        hold_to_share(gpus)  # before the model is built


def report_of(report: dict[str, Any], save: Callable[[Path], None] | None) -> None:
    """Reports an epoch; with a checkpoint, if there is something to save."""
    with saved_state(save) if save else contextlib.nullcontext() as saving:
        tune.report(report, checkpoint=saving)


def patiently(action: Callable[..., None], *args: Any, **options: Any) -> None:
    """Repeats an action each second while the disk refuses a checkpoint for a reason that may pass.

    Ray hands a report to the driver after it has copied the checkpoint, so a report that failed was not delivered.
    Before each attempt the driver gets the reason: it prints it, and can stop the trial. Waiting counts towards
    `--trial-timeout`. Any other error is raised.
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
    """Whether waiting may help: the disk is full or read-only, or the experiment's folder is gone."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE)
    return "Unable to set up cluster storage" in str(error)  # Ray's words where the folder is gone


def write_state(state: dict[str, Any], path: Path) -> None:
    """Writes a training's state; raises the disk's own OSError where that fails."""
    import torch

    try:
        # Given a path, torch writes it itself and raises one RuntimeError for a full disk and for one that never
        # takes the file. Given a file, it keeps the reason as the error's context. Both take the same time.
        with open(path, "wb") as file:
            torch.save(state, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


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
