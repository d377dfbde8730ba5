"""Experiment: one search over a space, with every choice made; validated when built, saved, loaded, compared.

Its fields are the command line's options: `tuner.run` makes them from this class, and the service checks its
requests by building one.
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tuner.errors import RequestError, nearest
from tuner.spec.places import is_uri, local_root

SearcherName = Literal["random", "grid", "refine", "hyperopt", "bohb", "optuna"]
SchedulerName = Literal["asha", "bohb", "hyperband", "median", "pbt", "fifo"]

# Which scheduler can judge what which searcher proposes. Model-based searchers and refine learn from settings as
# proposed, so not with pbt, which changes them; refine waits for its first half to end, while hyperband holds that
# half paused until its bracket is full; TuneBOHB and HyperBandForBOHB are written for each other alone.
PAIRS: dict[str, tuple[str, ...]] = {
    "random": ("asha", "hyperband", "median", "pbt", "fifo"),
    "grid": ("asha", "hyperband", "median", "pbt", "fifo"),
    "refine": ("asha", "median", "fifo"),
    "hyperopt": ("asha", "hyperband", "median", "fifo"),
    "optuna": ("asha", "hyperband", "median", "fifo"),
    "bohb": ("bohb",),
}
# What --resume may change: how far the search goes and where it runs, never what is searched or how it is judged.
EXTENDABLE = frozenset(
    {"num_samples", "max_epochs", "time_budget", "max_concurrent_trials", "results", "address", "data_dir"}
    | {"wandb", "wandb_project", "cpus_per_trial", "gpus_per_trial"}
    | {"trial_timeout", "max_failures", "priority"}
)
LATEST = "latest"  # what --resume takes for the newest experiment: no new one may have this name
NAMES = {  # option -> what it must match, and that in words
    "name": (r"|[A-Za-z0-9][\w.-]{0,99}", "letters, digits, '.', '_' and '-', a letter or digit first, at most 100"),
    "metric": (r".+", "give a name that is in the reports"),
    "results": (r".+", "give a folder, or an object store such as s3://bucket/folder"),
    "wandb_project": (r"[^/\\#?%:]{1,128}", "W&B takes 1 to 128 characters, none of / \\ # ? % :"),
}
# Bounds on what a search costs before it runs: the command line, a request and a file that somebody wrote give options.
MOST_EPOCHS = 1_000_000
BOUNDS = {
    "num_samples": (1, 1_000_000),
    "max_epochs": (1, MOST_EPOCHS),
    "grace_period": (1, MOST_EPOCHS),
    "workers_per_trial": (1, 10_000),
    "max_failures": (0, 1_000_000),
    "max_concurrent_trials": (0, 1_000_000),
    "seed": (0, 2**32 - 1),
    "priority": (-100, 100),
}
MOST_RUNGS = 100  # 1.1 gives 100 at 12,500 epochs; each is a list in memory and a comparison of each report
MOST_SECONDS = 1e9  # 31 years
MOST_CHARS = 4096  # of a text
MOST_NUMBER = 1e6  # of a resource or factor
KINDS = {int: "a whole number", float: "a number", str: f"a text of {MOST_CHARS} characters at most", bool: "yes or no"}
BEST_RULE = (
    "the best trial is the one whose best epoch has the best finite value of the metric, among epochs that a "
    "checkpoint exists for (among all epochs where no trial saved one); ties go to the earlier report"
)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One search, every choice made. A wrong value cannot be built: RequestError names it and what is allowed."""

    space: str = ""
    """a name in search_spaces/ (see --list), a path to a .py file, or package.module[:attribute]"""
    num_samples: int = 10
    """settings to try, 1 or more"""
    max_epochs: int = 10
    """reports that a trial makes at most (ASHA's max_t)"""
    grace_period: int = 1
    """epochs that every trial gets before it may be stopped"""
    reduction_factor: float = 2
    """of the trials at a rung, 1 in this many goes on; above 1"""
    searcher: SearcherName = "random"
    """proposes settings; refine is random for the first half, then a grid around the best"""
    scheduler: SchedulerName = "asha"
    """stops, pauses and resumes trials"""
    metric: str = "loss"
    """the name in the reports that the search goes by"""
    mode: Literal["min", "max"] = "min"
    """whether a smaller or a larger metric is better"""
    cpus_per_trial: float | Literal["auto"] = "auto"
    """CPUs of one trial, which are its torch threads; auto = 1"""
    gpus_per_trial: float | Literal["auto"] = "auto"
    """GPUs of one trial, fractions too; auto = 1 where there is a GPU, else 0"""
    workers_per_trial: int = 1
    """processes that train one trial; above 1 with --strategy ddp"""
    strategy: Literal["single", "dp", "ddp", "model", "pipeline"] = "single"
    """how a trial uses its workers and devices; ddp = a process a device, model and pipeline = a part of it each"""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """arithmetic of the forward and backward pass; a searched parameter `precision` goes first"""
    on_oom: Literal["shrink", "fail"] = "shrink"
    """out of memory: compute the batch in parts, halved until one fits, or fail the trial"""
    max_concurrent_trials: int = 0
    """trials at a time at most, on a cluster asked for even if fewer fit yet; 0 = as many as fit"""
    priority: int = 0
    """-100..100; where searches share a cluster or wait in the service's queue, the highest gets its trials first"""
    time_budget: str = ""
    """stop the search after this long: 90s, 30m, 2h; empty = no limit"""
    trial_timeout: str = ""
    """fail a trial that reports nothing for this long, waiting for a disk too: 90s, 30m, 2h; empty = no limit"""
    max_failures: int = 2
    """lost workers (killed, node gone) that a trial survives, going on from its last checkpoint; 0 = none"""
    seed: int = 0
    """every random stream comes from it: same seed, same settings, same figures"""
    name: str = ""
    """the experiment's folder under --results; empty = the space's name and the time"""
    results: str = "results"
    """the folder that experiments are written to, or an object store: s3://bucket/folder, gs://bucket/folder"""
    address: str = ""
    """a running Ray cluster: auto or host:port; empty = this machine alone"""
    data_dir: str = ""
    """where the data set lies; empty = the space's own way of getting it"""
    wandb: Literal["auto", "online", "offline", "disabled"] = "auto"
    """Weights & Biases; auto = online with a key, else offline"""
    wandb_project: str = "tuner"
    """the W&B project that the runs go to"""
    tensorboard: bool = False
    """also write TensorBoard files, by Ray's own logger"""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            self._check_kind(field.name)
            self._check_choice(field.name)
        for name, (least, most) in BOUNDS.items():
            if not least <= getattr(self, name) <= most:
                raise RequestError(f"{option(name)} {getattr(self, name)}: {_bounds(name, least, most)}")
        if self.grace_period > self.max_epochs:
            raise RequestError(
                f"--grace-period {self.grace_period} is above --max-epochs {self.max_epochs}: no trial could be "
                f"stopped; lower it to {self.max_epochs} or less, or raise --max-epochs"
            )
        self._check_rungs()
        self._check_resources()
        self._check_workers()
        self._check_pair()
        self._check_names()
        self.time_budget_s, self.trial_timeout_s  # noqa: B018  (raise for a bad one)

    @property
    def time_budget_s(self) -> float | None:
        """The time budget in seconds; None = no limit."""
        return self._seconds("time_budget")

    @property
    def trial_timeout_s(self) -> float | None:
        """Seconds that a trial may be without a report; None = no limit."""
        return self._seconds("trial_timeout")

    @property
    def folder(self) -> Path:
        """`<results>/<name>`; of results in an object store, the working copy on this machine."""
        return local_root(self.results) / self.name

    def rungs(self) -> list[int]:
        """The epochs at which asha compares trials, as Ray's AsyncHyperBandScheduler lays them (its `_Bracket`)."""
        num = int(math.log(self.max_epochs / self.grace_period) / math.log(self.reduction_factor) + 1)
        # Between two epochs a rung is met at the later one; close ones may share it.
        return list(dict.fromkeys(math.ceil(self.grace_period * self.reduction_factor**k) for k in range(num)))

    def _check_kind(self, name: str) -> None:
        """Options come from files too, where anything may stand."""
        kinds, value = ALLOWED_KINDS[name], getattr(self, name)
        fits = type(value) in kinds or (float in kinds and type(value) is int)
        if not fits or (isinstance(value, str) and len(value) > MOST_CHARS):
            shown = repr(value)[:50] if isinstance(value, (str, float, bool, type(None))) else type(value).__name__
            raise RequestError(f"{option(name)} {shown}: must be {' or '.join(KINDS[kind] for kind in kinds)}")

    def _check_rungs(self) -> None:
        """Before any list of them is made."""
        factor = self.reduction_factor
        if not 1 < factor <= MOST_NUMBER:
            raise RequestError(f"--reduction-factor {factor:g}: must be above 1")
        grace = 1 if self.scheduler in ("hyperband", "bohb") else self.grace_period  # these two begin at one epoch
        rungs = math.log(self.max_epochs / grace) / math.log(factor) + 1
        if rungs > MOST_RUNGS:
            least = (self.max_epochs / grace) ** (1 / (MOST_RUNGS - 1))
            raise RequestError(
                f"--reduction-factor {factor:.10g} gives {rungs:,.0f} rungs up to --max-epochs {self.max_epochs}: at "
                f"most {MOST_RUNGS} are laid; give {math.ceil(least * 1000) / 1000:g} or more"
            )

    def _check_choice(self, name: str) -> None:
        allowed, value = CHOICES[name], getattr(self, name)
        if allowed and isinstance(value, str) and value not in allowed:
            raise RequestError(f"{option(name)} {value}: must be one of {', '.join(allowed)}{nearest(value, allowed)}")

    def _check_resources(self) -> None:
        for name, zero in (("cpus_per_trial", False), ("gpus_per_trial", True)):
            value = getattr(self, name)
            if value == "auto":
                continue
            if not (value <= MOST_NUMBER and (value > 0 or (zero and value == 0))):
                raise RequestError(f"{option(name)} {value:g}: must be {'0 or more' if zero else 'above 0'}, or auto")
            if value > 1 and value != int(value):
                raise RequestError(f"{option(name)} {value}: must be whole above 1 (Ray places no 1.5 of a device)")

    def _check_workers(self) -> None:
        workers = self.workers_per_trial
        if self.strategy != "ddp":
            if workers != 1:
                raise RequestError(
                    f"--workers-per-trial {workers} with --strategy {self.strategy}, which is one process; "
                    f"give --strategy ddp, or leave the workers out"
                )
            return
        for name in ("cpus_per_trial", "gpus_per_trial"):
            value = getattr(self, name)
            if value != "auto" and value % workers:
                raise RequestError(
                    f"{option(name)} {value:g}: is split evenly over --workers-per-trial {workers}, in whole devices; "
                    f"give a multiple of {workers}, or auto"
                )

    def _check_pair(self) -> None:
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
                f"--results {self.results} with --address: the nodes of a cluster share a folder; mount the store on "
                f"each, and give its path"
            )

    def _seconds(self, name: str) -> float | None:
        text = getattr(self, name)
        if not text:
            return None
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text, re.ASCII)
        seconds = float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]] if found else 0.0
        if not 0 < seconds <= MOST_SECONDS:
            raise RequestError(f"{option(name)} {text[:50]}: write it as 90s, 30m or 2h, above zero, below 31 years")
        return seconds

    def differences(self, other: Experiment) -> dict[str, tuple[Any, Any]]:
        """Field -> (here, there), for the fields that differ."""
        pairs = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in dataclasses.fields(self)}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def option(field: str) -> str:
    """The command line's spelling of a field: `--num-samples`."""
    return "--" + field.replace("_", "-")


def _literals(kind: Any) -> tuple[str, ...]:
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(name for part in get_args(kind) for name in _literals(part))


def _kinds(kind: Any) -> tuple[type, ...]:
    """The classes of Python that its values have."""
    if get_origin(kind) is Literal:
        return (str,)
    return tuple(each for part in get_args(kind) for each in _kinds(part)) or (kind,)


def _bounds(name: str, least: int, most: int) -> str:
    if name in ("seed", "priority"):
        return f"must be {least}..{most}"
    if name == "max_concurrent_trials":
        return f"must be 1 or more, or 0 = all; at most {most:,}"
    return f"must be {least} or more, at most {most:,}"


CHOICES = {name: _literals(kind) for name, kind in get_type_hints(Experiment).items()}
ALLOWED_KINDS = {name: _kinds(kind) for name, kind in get_type_hints(Experiment).items()}
