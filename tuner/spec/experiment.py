"""Options and Experiment: the options of one search over a space. Their constructors check the values.

`tuner.run` generates the command-line options from the fields of `Options`. There, the searcher, scheduler, grace
period and reduction factor may be `auto`; `Experiment` has the chosen values instead.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tuner.errors import RequestError
from tuner.spec.constraints import Aim, aim_of, check_aim
from tuner.spec.domains import literal, nested
from tuner.spec.methods import NEED_NUMBER, PAIRS, SCHEDULERS, SEARCHERS
from tuner.spec.metrics import Goal
from tuner.spec.option_values import (
    LIMITS,
    MOST_EPOCHS,
    MOST_NUMBER,
    MOST_RUNGS,
    MOST_SAMPLES,
    MOST_SECONDS,
    MOST_USED,
    OUTPUT,
    PLACES,
    RULE,
    SETTINGS,
    TRIAL,
    allowed_in,
    check_value,
    option,
    row,
    tuples,
)

Table = Literal["fit", "wide", "off"]  # how the table of trials is printed
Auto = Literal["auto"]  # `tuner.spec.auto` chooses the value when the search begins
AUTO: Auto = "auto"
BUDGETS = ("time_budget", "gpu_hours", "cpu_hours", "epoch_budget")  # what may end a search before its last trial
LATEST = "latest"  # --resume latest means the newest experiment, so no new experiment may have this name
BY_CALL = ("resume", "trust", "table")  # arguments of `tuner.search` beside `Options` that `with_fields` renames
BEST_RULE = (
    "the best trial is the one with the best finite value of the metric in any epoch that has a checkpoint (in any "
    "epoch at all if no trial saved a checkpoint); of equal values, the earlier report wins"
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of one search as requested. A wrong value raises a RequestError that says what is allowed."""

    space: str = row("", MOST_USED)
    """Space to search: a name in search_spaces/ (see --list), a path to a .py file or a W&B sweep.yaml, or
    package.module[:attribute]."""
    num_samples: int = row(10, MOST_USED, bounds=(0, MOST_SAMPLES), on_resume=True, http="always")
    """Number of trials; 0 = as many as a budget pays for, the default with a budget except for $counted. grid
    may have fewer; random runs this many for each point of tune.grid_search."""
    max_epochs: int = row(10, MOST_USED, bounds=(1, MOST_EPOCHS), on_resume=True, http="always")
    """Maximum epochs (reports) per trial; ASHA's max_t."""
    searcher: Literal[Auto, *SEARCHERS] = row(  # type: ignore[valid-type]
        AUTO, SETTINGS, http="start", several=tuple(name for name, row in SEARCHERS.items() if row.several)
    )
    """How to propose settings; auto chooses. refine: half of the trials random, then neighbours of the best trial."""
    scheduler: Literal[Auto, *SCHEDULERS] = row(  # type: ignore[valid-type]
        AUTO, RULE, http="start", several=tuple(name for name, row in SCHEDULERS.items() if row.several)
    )
    """Which rule stops, pauses and resumes trials; auto chooses by trials, epochs and checkpoints, and says why."""
    grace_period: int | Auto = row(AUTO, RULE, bounds=(1, MOST_EPOCHS), http="start")
    """Epochs (reports) that every trial trains before $graced may stop it. auto = 1, unless --scheduler
    auto chooses another."""
    reduction_factor: float | Auto = row(AUTO, RULE, http="start")
    """Keep 1 in this many trials at each rung; above 1. auto = 2."""
    brackets: int = row(1, RULE, bounds=(1, MOST_RUNGS), http="start")
    """Number of brackets of asha-promotion, at most the number of rungs; each further one has its first rung later."""
    perturbation_interval: int = row(0, RULE, bounds=(0, MOST_EPOCHS), http="start")
    """Epochs (reports) after which pbt compares trials and changes parameters. 0 = --grace-period."""
    metric: str | tuple[str, ...] = row("loss", MOST_USED, metavar="NAME", http="start")
    """Reported metric to optimize, or several: the answer is then their Pareto front. The space's own value takes
    precedence over the default."""
    mode: Literal["min", "max"] | tuple[str, ...] = row("min", MOST_USED, metavar="{min,max}", http="start")
    """Minimize or maximize the metric, for each metric; the space's own value takes precedence over the default."""
    constraint: tuple[str, ...] = row((), RULE, metavar="'NAME <= VALUE'")
    """Limit of a reported metric that the answer must keep: 'size_mb <= 10', 'accuracy >= 0.9'. With 'at start' after
    it, the first report that breaks it ends the trial."""
    prune_by: str = row("", RULE, http="start", several=())
    """Reported metric that the scheduler compares, if --metric comes rarely or last. Empty = --metric."""
    prune_mode: Literal["min", "max"] = row("min", RULE, http="start")
    """Whether smaller (min) or larger (max) values of --prune-by are better."""
    cpus_per_trial: float | Literal["auto"] = row("auto", TRIAL, on_resume=True, http="start")
    """CPUs per trial, also its number of torch threads; auto = 1 for each of --workers-per-trial."""
    gpus_per_trial: float | Literal["auto"] = row("auto", MOST_USED, on_resume=True, http="start")
    """GPUs per trial, or a fraction; auto = 1 (ddp: 1 per worker; dp, model, pipeline: up to 2), 0 without GPUs."""
    workers_per_trial: int = row(1, TRIAL, bounds=(1, 10_000), http="start")
    """Processes that train one trial; more than 1 only with --strategy ddp."""
    strategy: Literal["single", "dp", "ddp", "model", "pipeline"] = row("single", TRIAL, http="start")
    """How a trial uses its devices: ddp = one process per device; model, pipeline = a part of the model on each."""
    precision: Literal["fp32", "bf16", "fp16"] = row("fp32", TRIAL, http="start")
    """Number format of the forward and backward pass. A searched parameter named `precision` takes precedence."""
    on_oom: Literal["shrink", "fail"] = row("shrink", TRIAL, http="start")
    """If GPU or CPU memory runs out: shrink = compute a batch in parts, halved until they fit; fail = end the trial."""
    max_concurrent_trials: int = row(0, MOST_USED, bounds=(0, 1_000_000), on_resume=True, http="start")
    """How many trials may run at once; on an autoscaling cluster, also how many are requested. 0 = as many as fit."""
    priority: int = row(0, PLACES, bounds=(-100, 100), on_resume=True, http="start")
    """Rank among searches on one cluster or in the service's queue, -100..100; a higher rank starts trials first."""
    point: tuple[tuple[str, ...], ...] = row((), SETTINGS)
    """Try these values first, in one trial: name=value ...; missing parameters are random. Give one per trial."""
    start_from: tuple[str, ...] = row((), SETTINGS, metavar="SOURCE", several=())
    """Start from what is known: a past experiment (name, folder or latest), a best/config.json, or a table of settings
    (.csv). The best settings run first; $learning also learn from all trials."""
    prior: tuple[str, ...] = row((), SETTINGS, several=())
    """Guess of good values, name=value ... It runs after the points; $drawing draw up to half of their random
    settings around it, as long as these win."""
    unchecked: tuple[str, ...] = row((), SETTINGS, metavar="NAME", on_resume=True)
    """Parameters that need not reach the training under their own names. For the others, the search ends if two trials
    with different values train with the same."""
    stop: tuple[str, ...] = row((), RULE)
    """End a trial when a metric is at or above a value (with mode or prune mode min: at or below): metric=value."""
    time_budget: str = row("", MOST_USED, is_time=True, on_resume=True, http="always")
    """Stop the search after this time in all its sessions: 90s, 30m, 2h; its last part finishes the best trials.
    Empty = no limit."""
    gpu_hours: float = row(0.0, LIMITS, bounds=(0, 1_000_000_000), on_resume=True, http="always")
    """Stop the search after this many GPU-hours: the GPUs of each trial times its hours on them. 0 = no limit."""
    cpu_hours: float = row(0.0, LIMITS, bounds=(0, 1_000_000_000), on_resume=True, http="always")
    """Stop the search after this many CPU-hours: the CPUs of each trial times its hours on them. 0 = no limit."""
    epoch_budget: int = row(0, LIMITS, bounds=(0, 1_000_000_000), on_resume=True, http="always")
    """Stop the search after this many epochs (reports) of all its trials together. 0 = no limit."""
    confirm: int = row(0, LIMITS, bounds=(0, 100), on_resume=True, http="always", several=())
    """After the search's trials, train this many of its best settings again with other seeds; the best mean wins."""
    confirm_seeds: int = row(3, LIMITS, bounds=(2, 100), on_resume=True, http="always")
    """Number of other seeds with which --confirm trains each setting, to the last epoch and without pruning."""
    trial_timeout: str = row("", TRIAL, is_time=True, on_resume=True, http="start")
    """Fail a trial that sends no report for this time, even if it waits for a disk: 90s, 30m, 2h. Empty = no limit."""
    max_failures: int = row(2, TRIAL, bounds=(0, 1_000_000), on_resume=True, http="start")
    """How often to retry a trial from its last checkpoint after its worker was lost (killed, node gone). 0 = never."""
    keep_checkpoints: int = row(0, TRIAL, bounds=(0, 1), on_resume=True, http="start")
    """Which checkpoints of a trial stay. 1 = the best and the newest, as those of a Task do; 0 = all."""
    seed: int = row(0, SETTINGS, bounds=(0, 2**32 - 1), http="start")
    """Seed. The same seed repeats the settings of grid, and of random without --prior; with one trial at a time on a
    CPU, all results."""
    name: str = row(
        "",
        PLACES,
        pattern=r"|[A-Za-z0-9][\w.-]{0,99}",
        asks="letters, digits, '.', '_' and '-', a letter or digit first, at most 100",
        http="start",
    )
    """Name of the experiment's folder under --results. Empty = the space's name and the time."""
    results: str = row(
        "results",
        PLACES,
        pattern=".+",
        asks="give a folder, or an object store such as s3://bucket/folder",
        on_resume=True,
    )
    """Folder for new and resumed experiments, or an object store: s3://bucket/folder, gs://bucket/folder."""
    address: str = row("", PLACES, on_resume=True)
    """Run on a Ray cluster that is already running: auto or host:port. Empty = run on this machine."""
    data_dir: str = row("", PLACES, on_resume=True)
    """Folder of the data set. Empty = the space finds or downloads its data itself."""
    wandb: Literal["auto", "online", "offline", "disabled"] = row("auto", OUTPUT, on_resume=True)
    """Log to Weights & Biases; auto = WANDB_MODE if it is set, else online if there is an API key, else offline."""
    wandb_project: str = row(
        "tuner",
        OUTPUT,
        pattern=r"[^/\\#?%:]{1,128}",
        asks="W&B takes 1 to 128 characters, none of / \\ # ? % :",
        on_resume=True,
    )
    """W&B project to log to."""
    tensorboard: bool = row(False, OUTPUT, http="start")
    """Also write TensorBoard files, with Ray's own logger."""

    def __post_init__(self) -> None:
        for name in ("metric", "mode", "constraint", "point", "start_from", "prior", "stop", "unchecked"):
            object.__setattr__(self, name, tuples(getattr(self, name)))  # JSON has lists, but no tuples
        for name in ("metric", "mode"):
            if type(value := getattr(self, name)) is tuple and len(value) == 1:
                object.__setattr__(self, name, value[0])
        for field in dataclasses.fields(self):
            check_value(self, field.name)
        if not (self.num_samples or self.budgets):
            given = ", ".join(map(option, BUDGETS))
            raise RequestError(f"--num-samples 0: must be 1 or more; or give what ends the search ({given})")
        factor = self.reduction_factor
        if factor != AUTO and not 1 < factor <= MOST_NUMBER:
            raise RequestError(f"--reduction-factor {factor:g}: must be above 1, at most {MOST_NUMBER:,.0f}")
        if self.brackets > 1 and self.scheduler not in (AUTO, "asha-promotion"):
            raise RequestError(
                f"--brackets {self.brackets}: --scheduler {self.scheduler} has no choice of brackets; leave it out, or "
                f"give --scheduler asha-promotion"
            )
        self._check_resources()
        self._check_pair()
        if is_uri(self.results) and self.address:
            raise RequestError(
                f"--results {self.results}: does not work with --address, where all nodes need a shared folder; mount "
                f"the object store on each node, and give its path"
            )
        # Each of these raises an error for a wrong value.
        self.time_budget_s, self.trial_timeout_s, self.points, self.guess, self.limits, self.aim  # noqa: B018

    @property
    def time_budget_s(self) -> float | None:
        return self._seconds("time_budget")

    @property
    def budgets(self) -> dict[str, float]:
        """The budgets that limit the search, by option: seconds, hours of GPUs or CPUs, epochs."""
        amounts = self.time_budget_s, self.gpu_hours, self.cpu_hours, self.epoch_budget
        return {name: amount for name, amount in zip(BUDGETS, amounts, strict=True) if amount}

    @property
    def most_samples(self) -> int:
        """The maximum number of trials; without --num-samples only a budget limits it."""
        return self.num_samples or MOST_SAMPLES

    @property
    def trial_timeout_s(self) -> float | None:
        """The longest time in seconds that a trial may go without a report; None = no limit."""
        return self._seconds("trial_timeout")

    @property
    def points(self) -> list[dict[str, Any]]:
        """The settings to try first, nested as in a config; parameters may be missing."""
        return [nested(dict(self._pair("point", word) for word in words)) for words in self.point]

    @property
    def guess(self) -> dict[str, Any]:
        """The guess of --prior, nested as in a config; parameters may be missing."""
        return nested(dict(self._pair("prior", word) for word in self.prior))

    @property
    def limits(self) -> dict[str, float]:
        """Metric -> the value at which a trial ends."""
        limits = dict(self._pair("stop", word) for word in self.stop)
        for name, value in limits.items():
            if isinstance(value, (str, bool, type(None))) or math.isnan(value):
                raise RequestError(f"--stop {name}={value}: must be a number")
        return limits

    @property
    def wanted(self) -> Goal:  # what the answer is chosen by, and what the searcher learns; of several, the first one
        return self.aim.goals[0]

    @cached_property
    def aim(self) -> Aim:
        return aim_of(self.metric, self.mode, self.constraint)

    @property
    def compared(self) -> Goal:  # what the scheduler's rule compares
        return Goal(self.prune_by, self.prune_mode) if self.prune_by else self.wanted

    @property
    def folder(self) -> Path:
        """`<results>/<name>`, or its working copy on this machine if the results are in an object store."""
        return local_root(self.results) / self.name

    def _check_resources(self) -> None:
        workers = self.workers_per_trial
        if self.strategy != "ddp" and workers != 1:
            raise RequestError(
                f"--workers-per-trial {workers}: --strategy {self.strategy} trains in one process; give --strategy "
                f"ddp, or leave out --workers-per-trial"
            )
        for name, least in (("cpus_per_trial", "above 0"), ("gpus_per_trial", "0 or more")):
            value = getattr(self, name)
            if value == AUTO:
                continue
            given = f"{option(name)} {value:g}"
            if not 0 <= value <= MOST_NUMBER or (least == "above 0" and not value):
                raise RequestError(f"{given}: must be {least}, at most {MOST_NUMBER:,.0f}, or auto")
            if value > 1 and value != int(value):
                raise RequestError(f"{given}: above 1 it must be a whole number; round it")
            if self.strategy == "ddp" and value % workers:
                raise RequestError(
                    f"{given}: each of --workers-per-trial {workers} needs the same whole number; give a multiple of "
                    f"{workers}, or auto"
                )

    def _check_pair(self) -> None:
        if AUTO in (self.searcher, self.scheduler):
            return
        if self.scheduler not in PAIRS[self.searcher]:
            other = [name for name, schedulers in PAIRS.items() if self.scheduler in schedulers]
            raise RequestError(
                f"--searcher {self.searcher} does not work with --scheduler {self.scheduler}; {self.searcher} works "
                f"with {', '.join(PAIRS[self.searcher])}; {self.scheduler} works with {', '.join(other)}"
            )

    def _pair(self, name: str, word: str) -> tuple[str, Any]:
        key, equals, value = word.partition("=")
        if not (key and equals and value):
            raise RequestError(f"{option(name)} {word[:50]!r}: write it as name=value")
        return key, literal(value)

    def _seconds(self, name: str) -> float | None:
        text = getattr(self, name)
        if not text:
            return None
        matched = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text, re.ASCII)
        seconds = float(matched[1]) * {"s": 1, "m": 60, "h": 3600}[matched[2]] if matched else 0.0
        if not 0 < seconds <= MOST_SECONDS:
            raise RequestError(f"{option(name)} {text[:50]}: write it as 90s, 30m or 2h, above zero, below 31 years")
        return seconds


@dataclass(frozen=True, kw_only=True)
class Experiment(Options):
    """The options of one search, as experiment.json stores them: no option of `tuner.spec.auto.CHOSEN` is `auto`."""

    grace_period: int = 1
    reduction_factor: float = 2
    searcher: Literal[*SEARCHERS] = "random"  # type: ignore[valid-type]
    scheduler: Literal[*SCHEDULERS] = "asha"  # type: ignore[valid-type]
    auto_grace: bool = False
    """Whether --scheduler auto chose the grace period, which shrinks if trials end by themselves before max_epochs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # These checks need the final options; those of `Options` may still lack the space's defaults.
        check_aim(self)
        if self.grace_period > self.max_epochs:
            raise RequestError(
                f"--grace-period {self.grace_period} is above --max-epochs {self.max_epochs}: no trial could be "
                f"stopped; lower it to {self.max_epochs} or less, or raise --max-epochs"
            )
        if self.keep_checkpoints and self.scheduler == "pbt":
            given = f"--keep-checkpoints {self.keep_checkpoints}"
            raise RequestError(f"{given}: --scheduler pbt may copy any checkpoint, so all stay; leave it out")
        for name in ("searcher", "scheduler"):
            if not self.num_samples and (given := getattr(self, name)) in NEED_NUMBER:
                raise RequestError(f"--num-samples 0: --{name} {given} needs the number of trials; give 1 or more")
        factor = self.reduction_factor
        grace = 1 if SCHEDULERS[self.scheduler].has_bands else self.grace_period  # their rungs may begin at epoch 1
        rungs = math.log(self.max_epochs / grace) / math.log(factor) + 1  # without a list, which could be huge
        if rungs > MOST_RUNGS:
            least = (self.max_epochs / grace) ** (1 / (MOST_RUNGS - 1))
            raise RequestError(
                f"--reduction-factor {factor:.10g} gives {rungs:,.0f} rungs up to --max-epochs {self.max_epochs}: at "
                f"most {MOST_RUNGS} are allowed; give {math.ceil(least * 1000) / 1000:g} or more"
            )
        most = len(milestones(self.max_epochs, self.grace_period, factor)) if self.brackets > 1 else 1
        if self.brackets > most:
            raise RequestError(
                f"--brackets {self.brackets}: must be at most {most}, the number of rungs up to --max-epochs "
                f"{self.max_epochs}, itself included; lower it, or lower --grace-period or --reduction-factor"
            )

    def rungs(self) -> list[int]:
        """Returns the epochs of ASHA's rungs, including any rung at --max-epochs, where no trial is compared."""
        # A rung may lie between two epochs: trials reach it at the later epoch, so two close rungs may share an epoch.
        epochs = milestones(self.max_epochs, self.grace_period, self.reduction_factor)
        return list(dict.fromkeys(map(math.ceil, epochs)))

    def rungs_before_end(self) -> list[int]:
        """Returns the epochs of ASHA's rungs before --max-epochs."""
        return [rung for rung in self.rungs() if rung < self.max_epochs]


def values_of(options: Options) -> dict[str, Any]:
    """Returns option -> value, from which `Options` or `Experiment` can be built."""
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(Options)}


def fixed_epochs(scheduler: str, max_epochs: int) -> str:
    """Returns why a resume cannot change --max-epochs; an empty text if it can."""
    built = f"the brackets of --scheduler {scheduler} were built for {max_epochs} epochs"
    return built if scheduler in SCHEDULERS and SCHEDULERS[scheduler].has_bands else ""


def with_fields(text: str) -> str:
    """Writes options as Python names them: `num_samples` in place of `--num-samples`."""
    known = {option(name): name for name in (*BY_CALL, *allowed_in(Options))}
    return re.sub(r"--[a-z][a-z-]*", lambda match: known.get(match[0], match[0]), text)


def is_uri(results: str) -> bool:
    """Whether `--results` names an object store rather than a folder."""
    return re.match(r"[a-z][a-z0-9]*://", results) is not None


def local_root(results: str) -> Path:
    """The local folder in which experiments are written: `results` itself, or the working copy of an object store."""
    if not is_uri(results):
        return Path(results)
    return cache_folder() / "results" / hashlib.sha256(results.rstrip("/").encode()).hexdigest()[:16]


def cache_folder() -> Path:
    return Path(os.environ.get("TUNER_CACHE") or "~/.cache/tuner").expanduser()


def milestones(max_epochs: int, grace_period: int, factor: float, bracket: int = 0) -> list[float]:
    """The epochs of a bracket's rungs, in ascending order; bracket n lacks the n lowest rungs of bracket 0.

    A milestone may lie between two epochs. Trials then reach the rung at the later epoch.
    """
    num = int(math.log(max_epochs / grace_period) / math.log(factor) - bracket + 1)
    return [grace_period * factor ** (k + bracket) for k in range(num)]


CHOICES = {
    name: tuple(each for each in allowed if isinstance(each, str)) for name, allowed in allowed_in(Experiment).items()
}
