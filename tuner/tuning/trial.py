"""The functions that Ray runs as a trial: they get a config and send reports."""

from __future__ import annotations

import contextlib
import inspect
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np
from ray import tune
from ray.tune.result import DEFAULT_METRIC
from wrapt import when_imported

from tuner.engine.processes.child import program
from tuner.engine.processes.client import Shared
from tuner.engine.processes.forked import starter, tell_service
from tuner.engine.processes.threads import limit_threads
from tuner.engine.workers.own_folder import own_folder
from tuner.engine.workers.reports import CHILD, Reporter, begin_reports, begin_saves, explained
from tuner.engine.workers.retried import patiently
from tuner.engine.workers.trainable import run_class, session_folder
from tuner.errors.users_code import place_of
from tuner.record.checkpoints import STATE
from tuner.record.records import finite
from tuner.record.report_keys import DOUBT, EPOCH, FINAL, IMPROVED, WAITS
from tuner.spec.arrived import by_path, look
from tuner.spec.command import Command
from tuner.spec.experiment import Experiment
from tuner.spec.metrics import reached
from tuner.spec.script import Ended, Script, in_trial
from tuner.spec.space import takes_config
from tuner.training.devices import accelerator
from tuner.training.task import Task, TrialSpec, trial_seed, whole_config


@dataclass(frozen=True)
class TrialSetup:
    """What all trials of a search share."""

    spec: TrialSpec  # the training options and the search's seed; `spec_of` sets the trial's config and seed
    experiment: Experiment
    folder: Path  # absolute; has the trials' folders
    constants: dict[str, Any] = field(default_factory=dict)  # of the space
    seeded: bool = False  # whether the function gets the trial's seed as config["seed"]
    length: str = ""  # the name by which it gets the number of epochs, if any

    def spec_of(self, config: dict[str, Any]) -> TrialSpec:
        """Returns the `TrialSpec` of the trial in this process: its config, with constants, its seed and options."""
        seed = trial_seed(self.spec.seed, tune.get_context().get_trial_id())
        given, length, most = seed if self.seeded else None, self.length, self.spec.max_epochs
        whole = whole_config(config, self.constants, seed=given, length=length, max_epochs=most)
        return replace(self.spec, config=whole, seed=seed)

    def own_folder(self, function: Any = None) -> contextlib.AbstractContextManager[None]:
        """Return the context in which the trial in this process runs in a folder of its own."""
        folder, is_new = self.folder / tune.get_context().get_trial_id(), tune.get_checkpoint() is None
        script = Path(function.path) if isinstance(function, Script) else None
        if self.experiment.address:  # another node may have no folder of results; on this one, it may be moved away
            folder.mkdir(parents=True, exist_ok=True)
        return own_folder(folder, is_new=is_new, script=script, ignored=self.experiment.data_dir)


def train_task(config: dict[str, Any], material: tuple[Task, Any], *, setup: TrialSetup) -> None:
    """Trains one setting of a Task, from the trial's checkpoint if any; sends a report per epoch (`run_epochs`)."""
    from tuner.training.loop import Training

    spec = setup.spec_of(config)
    begin_process(spec)
    state, reporter = begin_task()
    with setup.own_folder(), program():
        own = dict(by_path(config))  # of functions that may change the dictionaries of the config
        training = Training(*material, spec)
        held = {"config": training.config, "optimizer": training.optimizer}
        reporter.look = lambda: look(own, held)
        best = math.inf if state is None else training.restore(state)
        run_epochs(training, best, setup)


def train_in_workers(config: dict[str, Any], *, shared: Shared, setup: TrialSetup) -> None:
    """Does what `train_task` does, in a process for each rank, which this process directs without the user's code."""
    from tuner.engine.processes.ranks import keep_warm, workers_for

    spec = setup.spec_of(config)
    begin_saves()
    state, _ = begin_task()
    with setup.own_folder():
        own = setup.folder / tune.get_context().get_trial_id()
        group = workers_for(shared, spec.num_workers, spec.cpus / spec.num_workers, spec.gpus / spec.num_workers, own)
        try:
            best = group.begin(spec, state)
            run_epochs(group, math.inf if state is None else best, setup)
        except Exception:
            group.close()
            raise
        except SystemExit:  # Ray stops the trial in `tune.report`: the workers are idle and can be reused
            keep_warm(group)
            raise
        keep_warm(group)


def begin_task() -> tuple[bytes | None, Reporter]:
    """Returns the state from which a trial of a Task resumes, None without a checkpoint, and the trial's reporter."""
    reporter = begin_reports()
    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        return None, reporter
    with checkpoint.as_directory() as folder:
        return (Path(folder) / STATE).read_bytes(), reporter


def run_epochs(training: Any, best: Any, setup: TrialSetup) -> None:
    """Trains and reports the remaining epochs by a `Training` or workers; `best` is that of `Aim.improved` so far."""
    aim, compared, most = setup.experiment.aim, setup.experiment.compared, setup.spec.max_epochs
    while training.epoch < most:
        report: dict[str, Any] = training.run_epoch()
        report[EPOCH] = training.epoch
        if "doubt" in report:
            report[DOUBT] = report.pop("doubt")
        if training.epoch < most and reached(setup.experiment.limits, (*aim.goals, compared), report):
            report |= training.final_metrics()
        improved, best = aim.improved(best, report)
        report[IMPROVED] = training.epoch if improved else 0
        if all(finite(goal.value(report)) is not None for goal in (aim.goals if aim.several else (compared,))):
            saved = partial(report_with, report, training.state(best))
            patiently(saved, lambda why: tune.report({WAITS: why}))
        else:
            tune.report(report)


NOT_REACHED = (
    "the function has no argument, and neither parsed its command line nor called wandb.init, so the parameters did "
    "not reach it; take the config as its argument"
)


def train_function(config: dict[str, Any], function: Any, *, setup: TrialSetup) -> None:
    """Runs a space's `train`, a function, class or script; a function may report, yield or return its metrics."""
    spec = setup.spec_of(config)
    if isinstance(function, Command):
        limit_threads(spec.num_threads)
        start = starter(function.words[0])
    else:
        begin_process(spec)
    experiment = setup.experiment
    names = [goal.metric for goal in experiment.aim.goals]
    limited = [constraint.metric for constraint in experiment.aim.constraints]
    reporter = begin_reports(names[0], {*names, experiment.compared.metric, *limited})
    seed_streams(spec.seed)
    passed = dict(spec.config), *experiment.wanted, experiment.compared.metric, names[1:]
    with explained(reporter), in_trial(*passed) as trial:
        reporter.look, trial.num_reports = trial.look, lambda: reporter.num_reports
        trial.stack.enter_context(setup.own_folder(function))
        if isinstance(function, Script):
            trial.stack.enter_context(must_report(reporter, names[0]))
        trial.stack.enter_context(program())
        given = dict(spec.config)
        if takes_config(function) and not isinstance(function, Script):  # a script gets its parameters by other ways
            trial.held["config"] = given
        if inspect.isclass(function):
            return run_class(function, given)
        try:
            if isinstance(function, Command):
                reporter.is_measured = False  # the command's own processes train
                trial.held["the command"] = given  # its words have the values
                own = {"cpus": spec.cpus, "gpus": spec.gpus}
                with session_folder() as folder:

                    def look() -> dict[str, Any]:
                        tell_service(Path(folder))
                        return trial.look()

                    reporter.look = look
                    try:
                        return function(given, [experiment.compared.metric, *names], Path(folder), own, start)
                    finally:
                        tell_service(Path(folder))  # a program that prints its reports has written it at its end
            output = function(given) if takes_config(function) else function()
        except Ended as ended:
            output = ended.value
        except SystemExit as error:  # many scripts end with `sys.exit(main())`
            if reporter.stopped_by_ray or error.code not in (None, 0):
                raise
            output = None
        if not (takes_config(function) or trial.read):
            raise ValueError(NOT_REACHED)
        if trial.at_end:
            trial.at_end()
        if inspect.isgenerator(output):
            for metrics in output:
                if metrics is not None:
                    tune.report(metrics_of(metrics, function, names))
        elif output is not None:
            tune.report({**metrics_of(output, function, names), FINAL: True})


@contextlib.contextmanager
def must_report(reporter: Reporter, metric: str) -> Iterator[None]:
    """Raises ValueError if the script in a `with` block has reported nothing, and resumed from no checkpoint.

    A thread of the script may report after its last line, so the block includes the wait for threads.
    """
    yield
    if not reporter.num_reports and tune.get_checkpoint() is None:
        raise ValueError(
            f'the script ended without a report: write tune.report({{"{metric}": value}}) where an epoch has its '
            f"value; if a process that it starts has the value, {CHILD}"
        )


def seed_streams(seed: int) -> None:
    """Seeds the global random streams of Python, numpy and torch, which a function may import later."""
    random.seed(seed)
    np.random.seed(seed)
    when_imported("torch")(lambda torch: torch.manual_seed(seed))


def metrics_of(output: Any, function: Any, names: Sequence[str] = ()) -> dict[str, Any]:
    """Converts what a function has returned or yielded to a dict of metrics; a single number is the search's metric.

    If there are several metrics, `names`, a tuple or list has one number for each.
    """
    if isinstance(output, dict):
        return output
    if isinstance(output, (tuple, list)) and len(output) == len(names) > 1:
        return dict(zip(names, output, strict=True))
    if isinstance(output, Number) or getattr(output, "numel", int)() == 1:  # a number or a one-element tensor
        return {DEFAULT_METRIC: output}
    raise ValueError(
        f"the function{place_of(function)} returns a {type(output).__name__}: return one number, the metric, or a dict "
        f"of metrics"
    )


def begin_process(spec: TrialSpec) -> None:
    """Gives a trial's process as many threads as the trial has CPUs, and its share of the GPU's memory."""
    limit_threads(spec.num_threads)
    if spec.gpus:
        accelerator.here.limit(spec.gpus)  # the limit must be set before the model takes GPU memory


def report_with(report: dict[str, Any], state: bytes) -> None:
    with session_folder() as folder:
        (Path(folder) / STATE).write_bytes(state)
        tune.report(report, checkpoint=tune.Checkpoint.from_directory(folder))
