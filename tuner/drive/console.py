"""What a person reads of a search before and after it: the plan, the first lines, the answer."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tuner.drive.sampling import GridSearcher, num_random
from tuner.record.columns import GROWTH
from tuner.record.records import TrialRecord
from tuner.spec import domains
from tuner.spec.experiment import Experiment
from tuner.spec.places import is_uri
from tuner.views.labels import figures, setting

if TYPE_CHECKING:
    from tuner.drive.session import Done, Request
    from tuner.spec.resources import Resources


def plan(request: Request) -> list[str]:
    """What a search will do: printed by `--dry-run`."""
    e, space, resources = request.experiment, request.found.space, request.resources
    lines = [f"space       {e.space}: {', '.join(f'{n} {domain(d)}' for n, d in domains.leaves(space.params))}"]
    lines += [f"settings    {settings(request)}"]
    lines += [f"scheduler   {schedule(e)}"]
    lines += [f"epochs      {e.num_samples * e.max_epochs} at most ({e.max_epochs} a trial)"]
    if e.time_budget:
        lines[-1] += f", and {e.time_budget} at most"
    if resources:
        lines += [f"resources   {per_trial(resources)}; {resources.concurrent} at a time"]
    else:
        lines += [f"resources   those of the cluster at {e.address}"]
    lines += [f"seed        {e.seed}"]
    lines += [f"data        {e.data_dir or ('from the space' if space.task else 'none of its own')}"]
    lines += [f"results     {place(e)}", f"W&B         {request.wandb_mode}"]
    return lines


DP = "--strategy dp copies the model to each GPU for each batch: --strategy ddp with as many workers is faster"


def notes_on_strategy(e: Experiment, resources: Resources | None) -> list[str]:
    """What is to be known of the strategy before it starts."""
    gpus = resources.gpus if resources else None
    if e.strategy == "dp":
        alone = "; with one device, as here, it trains as single does" if gpus is not None and gpus < 2 else ""
        return [f"NOTE: {DP}{alone}"]
    if e.strategy in ("model", "pipeline") and gpus is not None and gpus < 2:
        return [f"NOTE: --strategy {e.strategy} has one device here: its stages take turns on it"]
    return []


def heading(request: Request) -> list[str]:
    """The first lines of a search."""
    e = request.experiment
    r = request.resources
    resources = f"; {per_trial(r)}, {r.concurrent} at a time" if r else ""
    lines = [f"{e.name}: {settings(request)}; {schedule(e)}{resources}"]
    lines += notes_on_strategy(e, r)
    if request.splits:
        sizes = ", ".join(
            f"{len(part):,} {name}"
            for name in ("train", "validation", "test")
            if (part := getattr(request.splits, name)) is not None
        )
        lines += [f"data: {request.splits.source or 'from the space'} ({sizes})"]
        lines += [banner(request.splits.notice)] if request.splits.notice else []
    if request.wandb_mode == "offline" and e.wandb == "auto":
        lines += ["W&B: offline, because there is no key (`wandb login` makes one; --wandb disabled turns it off)"]
    if request.history:
        done = sum(event["event"] == "trial_ended" and event["status"] != "interrupted" for event in request.history)
        lines += [f"resumed: {done} trials are done and not run again"]
    return lines


def place(e: Experiment) -> str:
    """Where the experiment's folder is."""
    return f"{e.results.rstrip('/')}/{e.name}, working copy {e.folder}" if is_uri(e.results) else str(e.folder)


def ending(done: Done) -> list[str]:
    """The answer, or why there is none, and what to do next."""
    e, lines = done.request.experiment, [""]
    failed = [trial for trial in done.record.trials if trial.status == "failed"]
    for trial in failed[:5]:
        lines += [f"failed: trial {trial.id}: {trial.reason}"]
    lines += [f"... and {len(failed) - 5} more, in trials.csv"] if len(failed) > 5 else []
    lines += growing(done.record.trials)
    lines += [f"NOTE: {done.outcome.reason}"] if done.outcome.reason else []
    if done.answer:
        report, trial = done.answer.report, done.answer.trial
        lines += [f"best        trial {trial.id}, epoch {report.epoch}: {setting(trial.config)}"]
        lines += [f"validation  {figures(report.metrics, e.metric)}"]
        if done.answer.test:
            lines += [f"test        {figures(done.answer.test)}"]
        elif done.request.splits is None:
            lines += ["test        none: the space is a function, so it has no test set of its own"]
        elif done.outcome.state == "interrupted":
            lines += ["test        not yet: the test part is read once, when the search has ended"]
        if done.request.splits and done.request.splits.notice:
            lines += [banner(done.request.splits.notice)]
    elif done.outcome.state == "interrupted":
        lines += ["no answer yet"]
    else:
        lines += [f"no answer: no trial has a finite {e.metric}; see {e.folder}/trials.csv"]
    lines += [f"folder      {place(e)}"]
    if done.answer and done.answer.report.checkpoint:
        lines += [f"retrain     python -m tuner.train {shlex.quote(str(e.folder / 'best' / 'config.json'))}"]
    results = "" if e.results == "results" else f" --results {shlex.quote(e.results)}"
    lines += [f"dashboard   python -m tuner.serve --results {shlex.quote(str(e.folder.parent))}"]
    more = "" if done.outcome.state == "interrupted" else f" --num-samples {e.num_samples * 2}"
    goes_on = "resume     " if done.outcome.state == "interrupted" else "extend     "
    return [*lines, f"{goes_on} python -m tuner.run --resume {e.name}{results}{more}"]


def growing(trials: Iterable[TrialRecord]) -> list[str]:
    """A line for each kind of memory that grew from epoch to epoch: in how many trials, and the fastest of them."""
    lines = []
    for name, memory in GROWTH.items():
        grown = [
            (most, trial.id)
            for trial in trials
            if (most := max((r.metrics.get(name, 0) for r in trial.reports), default=0))
        ]
        if grown:
            most, trial = max(grown)
            lines += [
                f"NOTE: {memory} grew from epoch to epoch in {len(grown)} trials, by {most / 2**20:.1f} MiB an epoch "
                f"in trial {trial} ({name} in the journal); usually losses kept with their graphs: .item() or .detach()"
            ]
    return lines


def settings(request: Request) -> str:
    """How many settings, and how they are proposed."""
    e, space = request.experiment, request.found.space
    if e.searcher == "grid":
        grid = GridSearcher(e, space)
        part = "all" if grid.num_settings == grid.size else f"{grid.num_settings}, drawn by the seed,"
        return f"{part} of a grid of {grid.size}" + ("" if part == "all" else f" (--num-samples {grid.size} tries all)")
    if e.searcher == "refine":
        half = num_random(e)
        return f"{half} at random, then {e.num_samples - half} neighbours of the best of them"
    points = math.prod(len(domains.values_of(d)) for _, d in domains.leaves(space.params) if domains.is_grid(d))
    times = f" x {points} grid points" if points > 1 else ""
    return f"{e.num_samples}{times} by {e.searcher}"


def schedule(e: Experiment) -> str:
    """The scheduler and its rungs."""
    if e.scheduler == "asha":
        rungs = ", ".join(map(str, e.rungs()))
        return f"asha: at epochs {rungs} the best 1/{e.reduction_factor:g} go on, to {e.max_epochs} at most"
    return {
        "fifo": f"fifo: every trial trains its {e.max_epochs} epochs",
        "median": f"median: from epoch {e.grace_period} on, stops a trial below the others' median",
        "hyperband": f"hyperband: brackets of trials that wait for each other, reduced by {e.reduction_factor:g}; the "
        f"first {num_unstopped(e)} trials are never stopped",
        "bohb": f"bohb: hyperband's brackets, reduced by {e.reduction_factor:g}, settings from a model",
        "pbt": f"pbt: every {e.grace_period} epochs the worst quarter takes over from the best and changes",
    }[e.scheduler]


def num_unstopped(e: Experiment) -> int:
    """Trials of Ray's first HyperBand bracket, the one that trains all to the end: a search of fewer prunes nothing."""
    return round(math.log(e.max_epochs) / math.log(e.reduction_factor)) + 1


def domain(declared: Any) -> str:
    """`{4, 8, 16}`, `loguniform(0.0001, 0.1)`"""
    told = domains.describe(declared)
    if "values" in told:
        values = [str(value) for value in told["values"]]
        return "{" + ", ".join(values if len(values) <= 10 else [*values[:9], "..."]) + "}"
    bounds = ", ".join(f"{told[end]:g}" for end in ("lower", "upper") if end in told)
    return f"{told['kind']}({bounds})"


def per_trial(resources: Resources) -> str:
    """`1 CPU, 0.5 GPU a trial`, `2 CPU a trial in 2 workers`"""
    gpus = f", {resources.gpus:g} GPU" if resources.gpus else ""
    workers = f" in {resources.workers} workers" if resources.workers > 1 else ""
    return f"{resources.cpus:g} CPU{gpus} a trial{workers}"


def banner(notice: str) -> str:
    """A notice that is not overlooked."""
    return f"!!! {notice} !!!"
