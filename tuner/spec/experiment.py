"""Options and Experiment: the options of one search over a space. Their constructors check the values.

`tuner.run` generates the command-line options from the fields of `Options`. There, the searcher, scheduler, grace
period and reduction factor may be `auto`; `Experiment` has the chosen values instead.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tuner.errors import RequestError, nearest
from tuner.spec.domains import literal, nested

SearcherName = Literal["random", "grid", "refine", "forest", "hyperopt", "bohb", "optuna"]
Table = Literal["fit", "wide", "off"]  # how the table of trials is printed
SchedulerName = Literal["asha", "asha-promotion", "bohb", "hyperband", "median", "pbt", "fifo"]
Auto = Literal["auto"]  # `tuner.spec.auto` chooses the value when the search begins
AUTO: Auto = "auto"

# Searcher -> the schedulers that work with it. pbt changes settings during training, so no searcher can learn from it.
# refine waits until the first half of its trials has ended; hyperband and asha-promotion would leave some paused.
PAIRS: dict[str, tuple[str, ...]] = {
    "random": ("asha", "asha-promotion", "hyperband", "median", "pbt", "fifo"),
    "grid": ("asha", "asha-promotion", "hyperband", "median", "pbt", "fifo"),
    "refine": ("asha", "median", "fifo"),
    "forest": ("asha", "asha-promotion", "hyperband", "median", "fifo"),
    "hyperopt": ("asha", "asha-promotion", "hyperband", "median", "fifo"),
    "optuna": ("asha", "asha-promotion", "hyperband", "median", "fifo"),
    "bohb": ("bohb",),
}
# Options that --resume may change: the search's length, cluster, folders, resources, limits, priority and W&B log.
EXTENDABLE = frozenset(
    {"num_samples", "max_epochs", "time_budget", "max_concurrent_trials", "results", "address", "data_dir"}
    | {"wandb", "wandb_project", "cpus_per_trial", "gpus_per_trial"}
    | {"trial_timeout", "max_failures", "priority"}
)
LATEST = "latest"  # --resume latest means the newest experiment, so no new experiment may have this name
NAMES = {  # option -> the pattern that its value must match, and what the error text asks for
    "name": (r"|[A-Za-z0-9][\w.-]{0,99}", "letters, digits, '.', '_' and '-', a letter or digit first, at most 100"),
    "metric": (r".+", "give the name of a reported metric"),
    "results": (r".+", "give a folder, or an object store such as s3://bucket/folder"),
    "wandb_project": (r"[^/\\#?%:]{1,128}", "W&B takes 1 to 128 characters, none of / \\ # ? % :"),
}
# Allowed ranges of options. Values may come from an HTTP request or a stranger's file; huge ones would slow the checks.
MOST_EPOCHS = 1_000_000
MOST_RUNGS = 100  # --reduction-factor 1.1 gives 100 rungs at 12,500 epochs; a rung costs memory, and time per report
BOUNDS = {
    "num_samples": (1, 1_000_000),
    "max_epochs": (1, MOST_EPOCHS),
    "grace_period": (1, MOST_EPOCHS),
    "brackets": (1, MOST_RUNGS),
    "perturbation_interval": (0, MOST_EPOCHS),
    "workers_per_trial": (1, 10_000),
    "max_failures": (0, 1_000_000),
    "max_concurrent_trials": (0, 1_000_000),
    "seed": (0, 2**32 - 1),
    "priority": (-100, 100),
}
MOST_SECONDS = 1e9  # maximum of an option that is a time, in seconds: 31 years
MOST_CHARS = 4096  # maximum length of an option's text, in characters
MOST_NUMBER = 1e6  # maximum number of CPUs, and of GPUs, of a trial; maximum reduction factor
MOST_WORDS = 1000  # maximum number of points, of words (name=value) in one point, and of words in --stop
KINDS = {  # class of an option's value -> how an error text names it
    int: "a whole number",
    float: "a number",
    str: f"a text of {MOST_CHARS} characters at most",
    bool: "yes or no",
    tuple: f"at most {MOST_WORDS} texts of {MOST_CHARS} characters at most",
}
TIMES = ("time_budget", "trial_timeout")
BY_CALL = ("resume", "trust", "table")  # arguments of `tuner.search` beside `Options` that `with_fields` renames
BEST_RULE = (
    "the best trial is the one with the best finite value of the metric in any epoch that has a checkpoint (in any "
    "epoch at all if no trial saved a checkpoint); of equal values, the earlier report wins"
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of one search as requested. A wrong value raises a RequestError that says what is allowed."""

    space: str = ""
    """Space to search: a name in search_spaces/ (see --list), a path to a .py file, or package.module[:attribute]."""
    num_samples: int = 10
    """Number of trials, 1 or more. grid may have fewer; random runs this many for each point of tune.grid_search."""
    max_epochs: int = 10
    """Maximum epochs (reports) per trial; ASHA's max_t."""
    grace_period: int | Auto = AUTO
    """Epochs (reports) that every trial trains before asha, asha-promotion or median may stop it. auto = 1, unless
    --scheduler auto chooses another."""
    reduction_factor: float | Auto = AUTO
    """Keep 1 in this many trials at each rung; above 1. auto = 2."""
    brackets: int = 1
    """Number of brackets of asha-promotion, at most the number of rungs; each further one has its first rung later."""
    perturbation_interval: int = 0
    """Epochs (reports) after which pbt compares trials and changes parameters. 0 = --grace-period."""
    searcher: Literal[Auto, SearcherName] = AUTO
    """How to propose settings; auto chooses. refine: half of the trials random, then neighbours of the best trial."""
    scheduler: Literal[Auto, SchedulerName] = AUTO
    """Which rule stops, pauses and resumes trials; auto chooses by trials, epochs and checkpoints, and says why."""
    metric: str = "loss"
    """Reported metric to optimize; the space's own value takes precedence over the default."""
    mode: Literal["min", "max"] = "min"
    """Minimize or maximize the metric; the space's own value takes precedence over the default."""
    cpus_per_trial: float | Literal["auto"] = "auto"
    """CPUs per trial, also its number of torch threads; auto = 1 for each of --workers-per-trial."""
    gpus_per_trial: float | Literal["auto"] = "auto"
    """GPUs per trial, or a fraction; auto = 1 (ddp: 1 per worker; dp, model, pipeline: up to 2), 0 without GPUs."""
    workers_per_trial: int = 1
    """Processes that train one trial; more than 1 only with --strategy ddp."""
    strategy: Literal["single", "dp", "ddp", "model", "pipeline"] = "single"
    """How a trial uses its devices: ddp = one process per device; model, pipeline = a part of the model on each."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of the forward and backward pass. A searched parameter named `precision` takes precedence."""
    on_oom: Literal["shrink", "fail"] = "shrink"
    """If GPU or CPU memory runs out: shrink = compute a batch in parts, halved until they fit; fail = end the trial."""
    max_concurrent_trials: int = 0
    """How many trials may run at once; on an autoscaling cluster, also how many are requested. 0 = as many as fit."""
    priority: int = 0
    """Rank among searches on one cluster or in the service's queue, -100..100; a higher rank starts trials first."""
    point: tuple[tuple[str, ...], ...] = ()
    """Try these values first, in one trial: name=value ...; missing parameters are random. Give one per trial."""
    stop: tuple[str, ...] = ()
    """End a trial when a metric is at or above a value (searched metric, --mode min: at or below): metric=value."""
    time_budget: str = ""
    """Stop the search after this time in all its sessions together: 90s, 30m, 2h. Empty = no limit."""
    trial_timeout: str = ""
    """Fail a trial that sends no report for this time, even if it waits for a disk: 90s, 30m, 2h. Empty = no limit."""
    max_failures: int = 2
    """How often to retry a trial from its last checkpoint after its worker was lost (killed, node gone). 0 = never."""
    seed: int = 0
    """Seed. The same seed repeats the settings of random and grid; with one trial at a time on a CPU, all results."""
    name: str = ""
    """Name of the experiment's folder under --results. Empty = the space's name and the time."""
    results: str = "results"
    """Folder for new and resumed experiments, or an object store: s3://bucket/folder, gs://bucket/folder."""
    address: str = ""
    """Run on a Ray cluster that is already running: auto or host:port. Empty = run on this machine."""
    data_dir: str = ""
    """Folder of the data set. Empty = the space finds or downloads its data itself."""
    wandb: Literal["auto", "online", "offline", "disabled"] = "auto"
    """Log to Weights & Biases; auto = WANDB_MODE if it is set, else online if there is an API key, else offline."""
    wandb_project: str = "tuner"
    """W&B project to log to."""
    tensorboard: bool = False
    """Also write TensorBoard files, with Ray's own logger."""

    def __post_init__(self) -> None:
        for name in ("point", "stop"):
            object.__setattr__(self, name, _tuples(getattr(self, name)))  # JSON has lists, but no tuples
        for field in dataclasses.fields(self):
            self._check_value(field.name)
        for name, (least, most) in BOUNDS.items():
            value = getattr(self, name)
            if value != AUTO and not least <= value <= most:
                raise RequestError(f"{option(name)} {value}: must be {least:,} or more, at most {most:,}")
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
        self._check_names()
        self.time_budget_s, self.trial_timeout_s, self.points, self.limits  # noqa: B018  (raise for a wrong value)

    @property
    def time_budget_s(self) -> float | None:
        return self._seconds("time_budget")

    @property
    def trial_timeout_s(self) -> float | None:
        """The longest time in seconds that a trial may go without a report; None = no limit."""
        return self._seconds("trial_timeout")

    @property
    def points(self) -> list[dict[str, Any]]:
        """The settings to try first, nested as in a config; parameters may be missing."""
        return [nested(dict(self._pair("point", word) for word in words)) for words in self.point]

    @property
    def limits(self) -> dict[str, float]:
        """Metric -> the value at which a trial ends."""
        limits = dict(self._pair("stop", word) for word in self.stop)
        for name, value in limits.items():
            if isinstance(value, (str, bool, type(None))) or math.isnan(value):
                raise RequestError(f"--stop {name}={value}: must be a number")
        return limits

    @property
    def folder(self) -> Path:
        """`<results>/<name>`, or its working copy on this machine if the results are in an object store."""
        return local_root(self.results) / self.name

    def _check_value(self, name: str) -> None:
        """Checks the class, length and choice of an option's value, because a value from a file may be anything."""
        allowed, value = allowed_in(type(self))[name], getattr(self, name)  # type: ignore[arg-type]
        choices = [each for each in allowed if isinstance(each, str)]
        is_huge = isinstance(value, int) and abs(value) >= 10**18  # Python refuses to print more than 4300 digits
        fits = not is_huge and (type(value) in allowed or (float in allowed and type(value) is int))
        if isinstance(value, str):
            fits = value in choices or (fits and len(value) <= MOST_CHARS)
        elif isinstance(value, tuple):
            fits = fits and _are_words(value, depth=2 if name == "point" else 1)
        if fits:
            return
        short = isinstance(value, (str, float, int, type(None))) and not is_huge
        shown = (repr if str in allowed else str)(value)[:50] if short else f"({type(value).__name__})"
        texts = ["a text such as 90s, 30m or 2h" if name in TIMES else KINDS[each] for each in allowed if each in KINDS]
        if choices:
            listed = ", ".join(choices) + (nearest(value, choices) if isinstance(value, str) else "")
            texts += [f"one of {listed}" if len(choices) > 1 else listed]
        raise RequestError(f"{option(name)} {shown}: must be {' or '.join(texts)}")

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

    def _check_names(self) -> None:
        for name, (pattern, allowed) in NAMES.items():
            if not re.fullmatch(pattern, getattr(self, name), re.ASCII):
                raise RequestError(f"{option(name)} {getattr(self, name)!r}: {allowed}")
        if is_uri(self.results) and self.address:
            raise RequestError(
                f"--results {self.results}: does not work with --address, where all nodes need a shared folder; mount "
                f"the object store on each node, and give its path"
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
    searcher: SearcherName = "random"
    scheduler: SchedulerName = "asha"
    auto_grace: bool = False
    """Whether --scheduler auto chose the grace period, which shrinks if trials end by themselves before max_epochs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # These checks need the final --max-epochs; plain `Options` may be made before the space's own value is known.
        if self.grace_period > self.max_epochs:
            raise RequestError(
                f"--grace-period {self.grace_period} is above --max-epochs {self.max_epochs}: no trial could be "
                f"stopped; lower it to {self.max_epochs} or less, or raise --max-epochs"
            )
        factor = self.reduction_factor
        grace = 1 if self.scheduler in ("hyperband", "bohb") else self.grace_period  # their rungs may begin at epoch 1
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


def values_of(options: Options) -> dict[str, Any]:
    """Returns option -> value, from which `Options` or `Experiment` can be built."""
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(Options)}


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


def _are_words(value: Any, depth: int) -> bool:
    if depth == 0:
        return isinstance(value, str) and len(value) <= MOST_CHARS
    return isinstance(value, tuple) and len(value) <= MOST_WORDS and all(_are_words(each, depth - 1) for each in value)


def fixed_epochs(scheduler: str, max_epochs: int) -> str:
    """Returns why a resume cannot change --max-epochs; an empty text if it can."""
    built = f"the brackets of --scheduler {scheduler} were built for {max_epochs} epochs"
    return built if scheduler in ("hyperband", "bohb") else ""


def option(field: str) -> str:
    """The command-line option of a field: `--num-samples` for `num_samples`."""
    return "--" + field.replace("_", "-")


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
    cache = Path(os.environ.get("TUNER_CACHE") or "~/.cache/tuner").expanduser()
    return cache / "results" / hashlib.sha256(results.rstrip("/").encode()).hexdigest()[:16]


def milestones(max_epochs: int, grace_period: int, factor: float, bracket: int = 0) -> list[float]:
    """The epochs of a bracket's rungs, in ascending order; bracket n lacks the n lowest rungs of bracket 0.

    A milestone may lie between two epochs. Trials then reach the rung at the later epoch.
    """
    num = int(math.log(max_epochs / grace_period) / math.log(factor) - bracket + 1)
    return [grace_period * factor ** (k + bracket) for k in range(num)]


@functools.cache
def allowed_in(options: type[Any]) -> dict[str, tuple[Any, ...]]:
    """Returns, for each field of `Options` or a subclass, its allowed classes and texts, such as `(float, "auto")`."""
    return {name: _allowed(kind) for name, kind in get_type_hints(options).items()}


def _allowed(kind: Any) -> tuple[Any, ...]:
    parts = () if get_origin(kind) is tuple else get_args(kind)
    return tuple(each for part in parts for each in _allowed(part)) or (get_origin(kind) or kind,)


CHOICES = {
    name: tuple(each for each in allowed if isinstance(each, str)) for name, allowed in allowed_in(Experiment).items()
}
