"""Checks a request to run a search, new or resumed, and then reads its data; does not join a cluster."""

from __future__ import annotations

import logging
import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.core.events import Event, first_start
from tuner.core.rules.hyperband import last_rungs
from tuner.engine.cluster.joining import check_head
from tuner.engine.local.alone import local_cluster
from tuner.errors import RequestError, nearest
from tuner.errors.users_code import place_of, place_raised
from tuner.record.report_keys import EPOCH, REFUSED, SPEED, USAGE
from tuner.record.saved_experiment import COPY, FILE
from tuner.record.storage.made import temporary_folder
from tuner.record.storage.object_store import ObjectStore
from tuner.spec import domains
from tuner.spec.auto import SpaceTraits, choose
from tuner.spec.experiment import LATEST, Experiment, Options, is_uri, local_root
from tuner.spec.facts import facts_of
from tuner.spec.methods import SCHEDULERS, SEARCHERS
from tuner.spec.resources import resources_of
from tuner.spec.space import check_unchecked
from tuner.spec.space_objects import saves_checkpoints
from tuner.spec.spaces import LoadedSpace, compared_option, find_space, metric_option, with_place
from tuner.training.data import DataError
from tuner.training.task import METRICS
from tuner.tuning.call import Request, Resumed, SearchCall
from tuner.tuning.checks.failed import advice_on
from tuner.tuning.checks.known import past_of
from tuner.tuning.output.wandb_mirror import wandb_mode
from tuner.tuning.resume.loading import continued
from tuner.tuning.searchers.named import check_searcher
from tuner.tuning.searchers.sampling import grid_size

if TYPE_CHECKING:
    from tuner.engine.cluster.probe import OnPath

logger = logging.getLogger(__name__)


def checked(call: SearchCall, resumed: Resumed | None, here: bool = True) -> Request:
    """Loads the space and checks the request; with `here`, and without --address, a trial must fit on this machine."""
    history: list[Event] = []
    if resumed:
        experiment, loaded_space, facts, history = continued(call, resumed)
    else:
        loaded_space = call.space or find_space(call.given["space"])
        experiment, why = _new(call.options_over(loaded_space.options), loaded_space)
        facts = facts_of(loaded_space, call.command) | ({"auto": why} if why else {})
    space = loaded_space.space
    if "confirm_seeds" in call.given and not experiment.confirm:
        given = f"--confirm-seeds {experiment.confirm_seeds}"
        raise RequestError(f"{given}: does nothing without --confirm; add --confirm 3, or leave it out")
    _check_names(experiment, loaded_space)
    try:
        check_unchecked(experiment.unchecked, space.searched, of="--unchecked")
    except ValueError as error:
        raise RequestError(str(error)) from None
    if space.task is None and experiment.strategy != "single":
        what = f"needs a Space(task=...), but {loaded_space.name} is a Space(train=...); leave it out"
        raise RequestError(f"--strategy {experiment.strategy}: {what}")
    if space.task is not None and space.task.compile and experiment.strategy == "dp":
        raise RequestError("--strategy dp: does not work with Task(compile=True); give --strategy ddp")
    if experiment.address:
        check_head(experiment.address)
    check_searcher(experiment, space)
    _check_writable(local_root(experiment.results))
    resources = resources_of(experiment, [local_cluster()]) if here and not experiment.address else None
    past = past_of(experiment, space) if not history else (first := first_start(history)) and first.past or {}
    return Request(
        experiment, loaded_space, facts, history, resources, wandb_mode(experiment.wandb), past=past, trusted=call.trust
    )


def load_data(request: Request, *, trusted: bool = False) -> Request:
    """Reads, decodes and splits a request's data.

    RequestError if data is missing, if the data function fails, or, unless `trusted`, if a resumed search had others.
    """
    task, experiment = request.loaded_space.space.task, request.experiment
    if task is None:
        return request
    from tuner.training.data_sums import refuse_other_data, sums_of
    from tuner.training.sources import UnsuitableData, splits_of

    function, folder = f"--space {experiment.space}: its data function", experiment.data_dir
    try:
        splits = splits_of(task, folder, experiment.seed)
    except UnsuitableData as error:
        place = place_raised(error.__cause__ and error.__cause__.__cause__) or place_of(task.data)
        raise RequestError(f"{function}{place} {error}") from error
    except DataError as error:
        raise RequestError(str(error)) from error
    except (Exception, SystemExit) as error:
        # Without --data-dir, data_dir is None. The error then mentions 'NoneType', or a path such as None/train.csv.
        without = "NoneType" in str(error) and isinstance(error, (TypeError, AttributeError)) or "None/" in str(error)
        if without and not folder:
            raise RequestError(f"{function} needs a folder: give --data-dir DIR ({with_place(error)})") from error
        advice = advice_on(error) or "correct the function"
        if isinstance(error, (OSError, SystemExit)) and "--data-dir" not in advice:
            advice += f"; correct --data-dir {folder}" if folder else "; if it needs a folder, give --data-dir DIR"
        raise RequestError(f"{function} raises {with_place(error)}; {advice}") from error
    sums, before = sums_of(splits), (request.facts.get("data") or {}).get("sums")
    if before and not trusted:
        refuse_other_data(before, sums, f"{function}{place_of(task.data)}")
    facts = {**request.facts, "data": {"source": splits.source, "notice": splits.notice, "sums": before or sums}}
    return replace(request, splits=splits, facts=facts)


def material(request: Request) -> OnPath:
    """Returns what all trials share: the train function, or the task and its data."""
    from tuner.engine.cluster.probe import OnPath, by_value
    from tuner.engine.processes.client import resolved

    space = request.loaded_space.space
    by_value(request.loaded_space)
    return OnPath(resolved(space.train) if space.train is not None else (space.task, request.splits))


def _new(options: Options, loaded_space: LoadedSpace) -> tuple[Experiment, str]:
    """Returns a new search's experiment, whose name must be free, and why `auto` chose its searcher and scheduler."""
    name = options.name or f"{loaded_space.label}-{time.strftime('%Y%m%d-%H%M%S')}"
    if name == LATEST:
        raise RequestError(f"--name {name}: --resume {name} means the newest experiment; give another name")
    space = loaded_space.space
    grids = [domain for _, domain in domains.leaves(space.searched) if domains.is_grid(domain)]
    kinds = {domains.kind(domain) for _, domain in domains.leaves(space.encoded)}
    searchers = tuple(name for name, row in SEARCHERS.items() if kinds.isdisjoint(row.refuses))
    traits = SpaceTraits(
        saves_checkpoints=saves_checkpoints(space),
        searchers=searchers,
        grid_points=math.prod(len(domains.values_of(domain)) for domain in grids),
        grid_size=grid_size(space.searched) if "grid" in searchers else None,
    )
    experiment, why = choose(replace(options, name=name.replace(":", "-")), traits)
    if os.path.lexists(experiment.folder):
        # A power failure may have left no more than the folder.
        is_one = any((experiment.folder / each).exists() for each in (FILE, COPY))
        instead = f"continue it with --resume {name}" if is_one else f"it has no {FILE}: remove it"
        raise RequestError(f"--name {name}: {experiment.folder} already exists; {instead}, or give another name")
    if is_uri(experiment.results):
        ObjectStore(experiment.results).check(experiment.name)
    return experiment, why


def _check_names(experiment: Experiment, loaded_space: LoadedSpace) -> None:
    """Raises a RequestError if the task does not report the metric of --metric or --stop, or one has a taken name."""
    metric, task = experiment.wanted.metric, loaded_space.space.task
    if task is None or (reported := loaded_space.space.reported()) is None:
        return
    for part in METRICS:
        for name in [each for each in getattr(task, part) if each in {*REFUSED, *SPEED, *USAGE}]:
            why = REFUSED.get(name, "each report has tuner's own value of this name; rename the metric")
            raise RequestError(f"--space {experiment.space}: Task({part}=...) has {name!r}: {why}")
    known, given = ", ".join(sorted(reported)), compared_option(loaded_space, experiment)
    if (compared := experiment.compared.metric) in task.final_metrics:
        why = f"{given}: only a trial's last report has {compared!r}, a final metric"
        raise RequestError(f"{why}; add --prune-by with a metric that every report has: {known}")
    if compared not in reported and experiment.prune_by:
        hint = nearest(compared, reported) or "; give one of these"
        raise RequestError(f"{given}: every report of space {experiment.space!r} has {known}{hint}")
    if metric in task.final_metrics:
        _check_comes(experiment)
    elif metric not in reported:
        reported = {*reported, *task.final_metrics}
        known = ", ".join(sorted(reported))
        hint = nearest(metric, reported) or f"; give one of these, or add it to the Task: metrics={{{metric!r}: ...}}"
        more = (
            " (with mode max if larger is better)" if experiment.wanted.mode == "min" and "loss" not in metric else ""
        )
        given = metric_option(loaded_space, metric)
        raise RequestError(f"{given}: space {experiment.space!r} reports {known}{hint}{more}")
    for goal in experiment.aim.goals[1:]:
        if goal.metric not in reported - task.final_metrics.keys():
            given = metric_option(loaded_space, goal.metric)
            raise RequestError(f"{given}: every report of space {experiment.space!r} has {known}; give one of these")
    for constraint in experiment.aim.constraints:
        if constraint.metric not in {*reported, *task.final_metrics, *USAGE}:
            hint = nearest(constraint.metric, sorted(reported)) or "; give one of these"
            raise RequestError(f"--constraint {str(constraint)!r}: the space reports {known}{hint}")
    for name, limit in experiment.limits.items():
        if name in task.final_metrics:
            raise RequestError(f"--stop {name}={limit:g}: only a trial's last report has {name!r}; leave it out")
        if name not in {*reported, *USAGE, EPOCH}:
            hint = nearest(name, sorted(reported))
            raise RequestError(f"--stop {name}={limit:g}: the space reports {known}{hint}")


def _check_comes(experiment: Experiment) -> None:
    """Raises a RequestError if a final metric comes too late for the searcher, or for some trials of the scheduler."""
    if experiment.searcher == "bohb":
        why = "learns from the values at rungs, which a final metric lacks; use forest, optuna or hyperopt"
        raise RequestError(f"--searcher bohb --metric {experiment.wanted.metric}: bohb {why}")
    most = experiment.max_epochs
    has_bands = SCHEDULERS[experiment.scheduler].has_bands
    if has_bands and (last := min(last_rungs(most, experiment.reduction_factor))) < most:
        metric = experiment.wanted.metric
        why = f"brackets of hyperband end at epoch {last}, before a trial's last epoch, which has {metric!r}"
        raise RequestError(f"--max-epochs {most}: {why}; give --max-epochs {last}, or another scheduler")


def _check_writable(results: Path) -> None:
    """Raises a RequestError if no folder can be created in `results`."""
    existing = next(folder for folder in (results, *results.absolute().parents) if os.path.lexists(folder))
    try:  # permissions alone do not tell: a read-only file system refuses even root
        temporary_folder(".tuner-", existing).remove()
    except OSError as error:
        what = "is a file" if results.is_file() else f"cannot be written to ({error.strerror})"
        raise RequestError(f"--results {results}: {what}; give another folder") from None
