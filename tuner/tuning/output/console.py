"""Writes the texts that a search prints: the plan for `--dry-run`, and a heading at its start."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.core.events import SchedulerChanged
from tuner.core.rules.hyperband import ADVICE, band_of
from tuner.core.state import State
from tuner.engine.workers.surroundings import ABOVE, INSIDE, IS_EXPERIMENT, surroundings_of
from tuner.record.texts import counted, domain_text, setting
from tuner.spec import domains, parameters
from tuner.spec.command import Command, masked, shown_name
from tuner.spec.experiment import AUTO, Experiment, is_uri, milestones
from tuner.spec.methods import SCHEDULERS, SEARCHERS
from tuner.spec.metrics import wrong_mode
from tuner.spec.option_values import option
from tuner.spec.resources import Resources
from tuner.spec.script import Script
from tuner.spec.script_text import MOST_REPORTS
from tuner.spec.space_objects import saves_checkpoints
from tuner.training.task import whole_config
from tuner.tuning.budget import Budget, mean_epochs
from tuner.tuning.call import Request
from tuner.tuning.searchers.forest import NUM_RANDOM
from tuner.tuning.searchers.named import first_num_samples, num_settings
from tuner.tuning.searchers.sampling import GridSearcher, num_random, variants

if TYPE_CHECKING:
    from tuner.spec.space import Space

UNSEEDED = (
    "gets no seed, so --confirm repeats it unseeded: only what it draws from the global random streams of Python, "
    "numpy and torch differs;"
)
NO_SEED: tuple[tuple[type, str], ...] = (  # by the class of `train`
    (Script, f"the script {UNSEEDED} script(..., seeded=True) sets its option or constant of the name seed"),
    (
        Command,
        "the command gets no seed, so --confirm repeats the same words: only what it draws unseeded differs; write "
        "{seed} where the command takes a seed",
    ),
    (object, f"the function {UNSEEDED} Space(seeded=True) gives it config['seed']"),
)
MAX_NAMED = 3  # files that a line of the plan or answer names
MAX_QUICK = 2_500  # links that a trial makes in about 0.1 s; a copy counts as two
EPOCHS = ((1.0, "1 s"), (10.0, "10 s"), (60.0, "1 min"))  # seconds of an epoch for which a dry run counts settings


def plan(request: Request) -> list[str]:
    """Returns the lines of a search's plan, which `--dry-run` prints."""
    e, space, r = request.experiment, request.loaded_space.space, request.resources
    each, leaves = f"{e.max_epochs} per trial", domains.leaves(space.searched)
    epochs = f"{num_settings(e, space) * e.max_epochs} ({each})" if e.num_samples else each
    source = e.data_dir or ("from the space" if space.task else "none; the function loads its own")
    return [
        f"space       {shown_name(e.space)}: {', '.join(f'{n} {domain(d)}' for n, d in leaves)}",
        *([f"constants   {setting(space.constants)}"] if space.constants else []),
        f"settings    {settings(request)}",
        f"scheduler   {schedule(request)}",
        f"epochs      at most {epochs}",
        *budgeted(request),
        f"resources   {per_trial(r) if r else f'those of the cluster at {e.address}'}",
        *([f"confirm     {confirming(e)}"] if e.confirm else []),
        *notes(request),
        f"seed        {e.seed}",
        f"data        {source}",
        f"results     {place(e)}",
        f"W&B         {request.wandb_mode}",
    ]


def budgeted(request: Request) -> list[str]:
    """Returns a line on what the budget pays for; after a resume, with what an epoch has cost so far."""
    e, r = request.experiment, request.resources
    if not e.budgets:
        return []
    budget = budget_of(request)
    if request.history:
        return [f"budget      {budget.line().removeprefix('budget: ')}"]
    workers = f" on {counted(r.concurrent, 'worker')}" if r else ", for each worker"
    some, most = counted(e.max_epochs, "epoch"), f"{mean_epochs(e):.3g} epochs on average"
    trains = f"a setting trains {most if SCHEDULERS[e.scheduler].has_rungs else f'at most {some}'}"
    each = f"{budget.name}{workers * ('time_budget' in e.budgets)}; {trains}"
    if set(e.budgets) == {"epoch_budget"}:
        return [f"budget      {each}: about {counted(budget.num_settings(1.0), 'setting')} (an estimate)"]
    numbers = ", ".join(f"{budget.num_settings(s):,} if an epoch takes {text}" for s, text in EPOCHS)
    return [f"budget      {each}: about {numbers} (an estimate)"]


def budget_of(request: Request) -> Budget:
    """Returns a search's budget; if the cluster's resources are not known yet, that of one worker."""
    e, space = request.experiment, request.loaded_space.space
    cpus, gpus = (1.0 if each == AUTO else float(each) for each in (e.cpus_per_trial, e.gpus_per_trial))
    return Budget(e, request.resources or Resources(cpus, gpus, 1), State(e, request.history), num_settings(e, space))


def notes(request: Request) -> list[str]:
    """Returns the notes of both plan and heading: `auto`'s choice, a script's parameters, options that work badly."""
    e, resources, space, texts = request.experiment, request.resources, request.loaded_space.space, []
    is_new = not request.history
    lines = [f"chosen      automatically: {request.facts['auto']}"] if is_new and "auto" in request.facts else []
    if is_new:
        lines += [f"known       {source['note']}" for source in request.past.get("sources", ())]
    if is_new and e.prior:
        share = "up to half of its random settings" if SEARCHERS[e.searcher].draws_prior else "no other settings"
        guess = " ".join(domains.words(e.guess))
        lines += [f"known       --prior {guess}: 1 setting first; {e.searcher} draws {share} around it"]
    if e.compared != e.wanted:
        compared = "no trials" if e.scheduler == "fifo" else f"{e.prune_by} ({e.prune_mode})"
        answer = f"the answer and the searcher use {e.wanted.metric} ({e.wanted.mode})"
        lines += [f"metrics     {e.scheduler} compares {compared}; {answer}"]
    if e.aim.several:
        goals = ", ".join(f"{goal.metric} ({goal.mode})" for goal in e.aim.goals)
        lines += [f"metrics     {goals}; the answer is their Pareto front, and best/ has its knee"]
    if e.aim.constraints:
        lines += [f"constraints {', '.join(map(str, e.aim.constraints))}"]
    if isinstance(space.train, Command):
        with contextlib.suppress(Exception):  # of a function of tune.sample_from, which the first trial tells
            drawn = variants(space.searched, e.seed, 0)[0]
            whole = whole_config(drawn, space.constants, length=space.length, max_epochs=e.max_epochs)
            words = space.train.filled(whole)
            lines += [f"command     {shlex.join(masked(words))} (example)"]
    if targets := space.train.targets(space.names) if isinstance(space.train, Script) else {}:
        lines += [f"script      {'; '.join(f'{name}: {target}' for name, target in targets.items())}"]
    lines += [] if e.address else shown(e, space)
    if request.splits:
        from tuner.training.sources import kinds_read_anew  # imports torch, which the data function has done

        if kinds := kinds_read_anew(request.splits):
            lines += [
                f"data        loader processes read {listed(kinds)} anew in each epoch, because this may draw random "
                "numbers; if it draws none, Splits(..., fixed=True) is faster"
            ]
    texts += [*space.notes] if is_new else []
    few = resources is not None and resources.gpus < 2
    if e.strategy == "dp":
        alone = "; with one device, as here, it equals --strategy single" if few else ""
        faster = "--strategy ddp with one worker per GPU is faster"
        texts += [f"--strategy dp copies the model to each GPU for each batch; {faster}{alone}"]
    if e.budgets:
        budget = budget_of(request)
        texts += filter(None, [budget.too_long()])
        if name := budget.spent():
            over = f"earlier sessions have used up {budget.named(name)}, so no trial continues"
            texts += [f"{over}; give a larger {option(name)}"]
    if e.strategy in ("model", "pipeline") and few:
        texts += [f"--strategy {e.strategy} has only one device here, so its stages run on it one after another"]
    if e.scheduler == "asha-promotion" and not saves_checkpoints(space):
        texts += [
            "the trials seem to save no checkpoints, so they cannot pause; without one at the first rung, the search "
            "stops trials by the rule of asha"
        ]
    if space.task and 0 < e.epoch_budget < 2 * (needed := e.confirm * e.confirm_seeds * e.max_epochs):
        half = f"half of it is too little for the {needed} epochs of --confirm"
        texts += [f"--epoch-budget {e.epoch_budget}: {half}; give {2 * needed} or more, or confirm fewer settings"]
    if e.confirm and space.train and not space.seeded:
        texts += [f"--confirm {e.confirm}: {next(text for kind, text in NO_SEED if isinstance(space.train, kind))}"]
    is_program = isinstance(space.train, (Command, Script))
    if SCHEDULERS[e.scheduler].has_bands and is_program and e.max_epochs == MOST_REPORTS:
        texts += [f"{e.scheduler} compares trials up to epoch {MOST_REPORTS}; give --max-epochs its number of reports"]
    brackets = notes_on_brackets(e, resources.concurrent) if resources else []
    return [*lines, *(notes_on_metric(e) if is_new else []), *(f"NOTE: {text}" for text in texts), *brackets]


def shown(e: Experiment, space: Space) -> list[str]:
    """Return a line that names what all trials share, and a note on a start folder that is slow to show.

    Raises UnshowableError if the start folder cannot be shown to trials.
    """
    start, script = Path.cwd(), Path(space.train.path) if isinstance(space.train, Script) else None
    found = surroundings_of(start, script, e.folder.absolute())
    by_reason: dict[str, list[str]] = {"the folders above": ["..", "../.."]}
    for path, why in sorted({**found.links, **found.opened}.items()):
        if why not in (ABOVE, INSIDE, IS_EXPERIMENT):
            by_reason.setdefault(why, []).append(os.path.relpath(path, start))
    shared = "; ".join(f"{listed(names)} ({why})" for why, names in by_reason.items())
    lines = [f"shared      {shared}: trials have links to what is there, and may change your files by them"]
    if found.not_shown:
        why = "cannot be read or has too many entries"
        lines += [f"NOTE: {found.not_shown[0]} {why}: trials find none of them by a path with `..`"]
    if (num := len(found.links) + 2 * len(found.copies)) > MAX_QUICK:
        lines += [
            f"NOTE: {start} and the two folders above it have many entries to show ({len(found.links):,} links, "
            f"{len(found.copies):,} copies), so each trial starts about "
            f"{num * 40e-6:.1f} s later; start the search in a folder with less"
        ]
    return lines


def listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return f"{', '.join(names[:MAX_NAMED])}{more}"


def notes_on_metric(e: Experiment) -> list[str]:
    """Returns a note if the metric's name contradicts the mode: such a search would choose its worst trial."""
    texts = [
        *(wrong_mode(*goal) for goal in e.aim.goals),
        wrong_mode(*e.compared, "--prune-mode") if e.prune_by else "",
    ]
    return [f"NOTE: {text}" for text in texts if text]


def notes_on_brackets(e: Experiment, concurrent: int) -> list[str]:
    """Returns a note if HyperBand would prune few trials or none, because too few run at once to fill its brackets."""
    first, *sizes = bracket_sizes(e)
    if e.scheduler != "hyperband" or not sizes or concurrent >= max(sizes):
        return []
    number = counted(concurrent, "trial")
    if concurrent <= first:
        at_once = f"{number} at once stay in its first bracket, which has room for {first} and prunes none"
        return [f"NOTE: hyperband will prune no trial: {at_once}. {ADVICE.format(more=first + 1)}"]
    return [
        f"NOTE: hyperband compares the trials of a bracket that run at once; with {number} at once, brackets "
        f"of {', '.join(map(str, sizes))} stop few trials or none. Use asha, or more trials at once (--cpus-per-trial)"
    ]


def heading(request: Request) -> list[str]:
    """Returns the lines that a search prints at its start."""
    e, r, splits, history = request.experiment, request.resources, request.splits, request.history
    resources = f"; {per_trial(r)}" if r else ""
    lines = [f"{e.name}: {settings(request)}; {schedule(request)}{resources}"]
    lines += [f"confirm: {confirming(e)}"] * (e.confirm > 0) + notes(request)
    if splits:
        sizes = ", ".join(f"{len(part):,} {name}" for name, part in splits.parts.items())
        lines += [f"data: {splits.source or 'from the space'} ({sizes})"]
        lines += [banner(splits.notice)] if splits.notice else []
    if request.wandb_mode == "offline" and e.wandb == "auto":
        lines += ["W&B: offline, as there is no API key (`wandb login` stores one; --wandb disabled turns W&B off)"]
    if history:
        lines += [f"NOTE: {event.reason}" for event in history if isinstance(event, SchedulerChanged)][:1]
    return lines


def confirming(e: Experiment) -> str:
    most = f"at most {e.confirm * e.confirm_seeds * e.max_epochs} more epochs"
    most += ", for which up to half of the budget is kept back" * bool(e.budgets)
    return f"the best {counted(e.confirm, 'setting')} again, each with {e.confirm_seeds} other seeds ({most})"


def place(e: Experiment) -> str:
    """Returns where the experiment's folder is; for an object store, also where its working copy is."""
    return f"{e.results.rstrip('/')}/{e.name}, working copy {e.folder}" if is_uri(e.results) else str(e.folder)


def settings(request: Request) -> str:
    """Says how many settings the search tries, and how they are proposed."""
    e, space = request.experiment, request.loaded_space.space
    given = f"; the first {len(e.point)} from the given points" if e.point else ""
    if e.searcher == "grid":
        grid = GridSearcher(e, space, e.most_samples)
        if grid.num_settings == grid.size:
            return f"all of a grid of {grid.size}{given}"
        part = f"{grid.num_settings}, drawn by the seed, of a grid of {grid.size}"
        return f"{part} (--num-samples {grid.size} tries all){given}"
    if e.searcher == "refine":
        half = num_random(first_num_samples(e, request.history))
        return f"{half} random, then {e.num_samples - half} neighbours of the best one{given}"
    if not e.num_samples:
        return f"as many as the budget pays for, by {e.searcher}{given}"
    points = num_settings(e, space) // e.num_samples
    times = f" x {points} grid points" if points > 1 else ""
    is_random = e.searcher == "forest" and e.num_samples <= NUM_RANDOM
    all_random = f", all random: its model needs reports of {NUM_RANDOM} trials" if is_random else ""
    return f"{e.num_samples}{times} by {e.searcher}{all_random}{given}"


def schedule(request: Request) -> str:
    """Says which scheduler compares trials, when it does so, and which trials it stops."""
    e, space, row = request.experiment, request.loaded_space.space, SCHEDULERS[request.experiment.scheduler]
    most = counted(e.max_epochs, "epoch")
    trains = f"every trial trains {'at most ' if space.train else ''}{most}"
    rules = State(e, request.history).options if row.has_rungs else e
    rungs, sizes = rules.rungs_before_end(), bracket_sizes(e)
    if row.has_rungs and not rungs:
        return f"{e.scheduler}: {trains}, because no rung is before the last epoch"
    has_moved = (rules.max_epochs, rules.grace_period) != (e.max_epochs, e.grace_period)
    is_known = has_moved or not space.train or space.length
    until = "" if is_known else " (until a trial ends by itself: its length places them)"
    after = f"after epoch{'s' if len(rungs) > 1 else ''} {', '.join(map(str, rungs))}{until}"
    ends = f"a trial trains at most {most}{_brackets(rules)}"
    parts = {"after": after, "ends": ends, "sizes": sizes, "band": sum(sizes), "trains": trains}
    return f"{e.scheduler}: {row.plan.format(e=e, interval=e.perturbation_interval or e.grace_period, **parts)}"


def _brackets(e: Experiment) -> str:
    """Says where the rungs of each bracket begin; empty if there is one bracket."""
    if e.brackets == 1:
        return ""
    shape = e.max_epochs, e.grace_period, e.reduction_factor
    firsts = [math.ceil(milestones(*shape, bracket)[0]) for bracket in range(e.brackets)]
    shown = ", ".join(f"{first}" if first < e.max_epochs else "none" for first in firsts)
    return f"; {e.brackets} brackets, with the first rung after epoch {shown}"


def bracket_sizes(e: Experiment) -> list[int]:
    """Returns the number of trials in each bracket of a HyperBand band; the first bracket never compares its trials."""
    return [shape.size for shape in band_of(e.max_epochs, e.reduction_factor)]


def domain(declared: Any) -> str:
    """Formats the domain of a parameter: `{4, 8, 16}`, `loguniform(0.0001, 0.1)`."""
    if values := parameters.branches(declared):
        return "{" + " | ".join(domain(each) if parameters.is_nested(each) else str(each) for each in values) + "}"
    if parameters.is_nested(declared):
        return ", ".join(f"{name}={domain(each)}" for name, each in domains.leaves(declared))
    if domains.is_constant(declared):
        return str(declared)
    return domain_text(domains.describe(declared))


def per_trial(r: Resources) -> str:
    """Returns `1 CPU, 0.5 GPU per trial, 2 trials at once`; in `2 CPU per trial in 2 workers`, a worker has 1."""
    gpus = f", {r.gpus:g} GPU" if r.gpus else ""
    workers = f" in {r.workers} workers" if r.workers > 1 else ""
    return f"{r.cpus:g} CPU{gpus} per trial{workers}, {counted(r.concurrent, 'trial')} at once"


def banner(notice: str) -> str:
    return f"!!! {notice} !!!"
