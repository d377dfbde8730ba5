"""Experiment: one search over a space, with every choice made; validated when built, saved, loaded, compared.

Its fields are the command line's options: `tuner.run` makes them from this class, and the service checks its
requests by building one.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import logging
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tuner.errors import RequestError, nearest
from tuner.files import write_atomically
from tuner.resume.storage import is_uri, local_root

logger = logging.getLogger(__name__)
FILE, COPY = "experiment.json", ".experiment.json.copy"  # the same; the copy is read where the first is damaged
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
NAMES = {  # option -> what it must match, and that in words
    "name": (r"|[A-Za-z0-9][\w.-]{0,99}", "letters, digits, '.', '_' and '-', a letter or digit first, at most 100"),
    "metric": (r".+", "give a name that is in the reports"),
    "results": (r".+", "give a folder, or an object store such as s3://bucket/folder"),
    "wandb_project": (r"[^/\\#?%:]{1,128}", "W&B takes 1 to 128 characters, none of / \\ # ? % :"),
}
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RequestError)
AT_LEAST_ONE = ("num_samples", "max_epochs", "grace_period", "workers_per_trial")
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
    """fail a trial that reports nothing for this long: 90s, 30m, 2h; empty = no limit"""
    max_failures: int = 2
    """lost workers (killed, node gone) that a trial survives, going on from its last checkpoint; 0 = none"""
    seed: int = 0
    """every random stream comes from it: same seed, same settings, same figures"""
    name: str = ""
    """the experiment's folder under --results; empty = the space's name and the time"""
    results: str = "results"
    """the folder that experiments are written to, or an object store: s3://bucket/folder, gs://bucket/folder"""
    address: str = ""
    """a running Ray cluster: auto, host:port or ray://host:port; empty = this machine alone"""
    data_dir: str = ""
    """where the data set lies; empty = the space's own way of getting it"""
    wandb: Literal["auto", "online", "offline", "disabled"] = "auto"
    """Weights & Biases; auto = online with a key, else offline"""
    wandb_project: str = "tuner"
    """the W&B project that the runs go to"""
    tensorboard: bool = False
    """also write TensorBoard files, by Ray's own logger"""

    def __post_init__(self) -> None:
        for name, least in (*((name, 1) for name in AT_LEAST_ONE), ("max_failures", 0)):
            if getattr(self, name) < least:
                raise RequestError(f"{option(name)} {getattr(self, name)}: must be {least} or more")
        for field in dataclasses.fields(self):
            self._check_choice(field.name)
        if self.grace_period > self.max_epochs:
            raise RequestError(
                f"--grace-period {self.grace_period} is above --max-epochs {self.max_epochs}: no trial could be "
                f"stopped; lower it to {self.max_epochs} or less, or raise --max-epochs"
            )
        if not (self.reduction_factor > 1 and math.isfinite(self.reduction_factor)):
            raise RequestError(f"--reduction-factor {self.reduction_factor:g}: must be above 1")
        if self.max_concurrent_trials < 0:
            raise RequestError(f"--max-concurrent-trials {self.max_concurrent_trials}: must be 1 or more, or 0 = all")
        for name, low, high in (("seed", 0, 2**32 - 1), ("priority", -100, 100)):
            if not low <= getattr(self, name) <= high:
                raise RequestError(f"{option(name)} {getattr(self, name)}: must be {low}..{high}")
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

    def _check_choice(self, name: str) -> None:
        allowed, value = CHOICES[name], getattr(self, name)
        if allowed and isinstance(value, str) and value not in allowed:
            raise RequestError(f"{option(name)} {value}: must be one of {', '.join(allowed)}{nearest(value, allowed)}")

    def _check_resources(self) -> None:
        for name, zero in (("cpus_per_trial", False), ("gpus_per_trial", True)):
            value = getattr(self, name)
            if value == "auto":
                continue
            if not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
                raise RequestError(f"{option(name)} {value}: must be {'0 or more' if zero else 'above 0'}, or auto")
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
        if not found or float(found[1]) == 0:
            raise RequestError(f"{option(name)} {text}: write it as 90s, 30m or 2h, above zero")
        return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]

    def differences(self, other: Experiment) -> dict[str, tuple[Any, Any]]:
        """Field -> (here, there), for the fields that differ."""
        pairs = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in dataclasses.fields(self)}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def save(self, folder: Path, facts: dict[str, Any]) -> None:
        """Writes experiment.json, and a copy: every option, and the facts that the caller knows (space, data)."""
        document = {"options": dataclasses.asdict(self), **facts}
        text = json.dumps({**document, "sha256": digest(document)}, indent=2) + "\n"
        for name in (FILE, COPY):
            write_atomically(folder / name, text)


def option(field: str) -> str:
    """The command line's spelling of a field: `--num-samples`."""
    return "--" + field.replace("_", "-")


def load_experiment(folder: Path) -> tuple[Experiment, dict[str, Any]]:
    """Reads experiment.json: the experiment and the facts saved beside its options.

    Raises:
        RequestError: there is none, or it is not one that this version wrote.
    """
    path, copy = folder / FILE, folder / COPY
    try:
        return _read(path)
    except (FileNotFoundError, NotADirectoryError):
        if not copy.exists():
            raise RequestError(_no_experiment(folder)) from None
        what = "is gone"
    except UNREADABLE as error:
        what = f"is damaged ({error})"
    try:
        found = _read(copy)
    except UNREADABLE:
        wanted = "restore it from a copy, or start anew with --name"
        raise RequestError(f"{path} {what}, and so is its copy {copy.name}; {wanted}") from None
    logger.warning("%s %s; its copy %s is used", path, what, copy.name)
    return found


def digest(document: dict[str, Any]) -> str:
    """sha256 of a document's content, whatever its layout."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _read(path: Path) -> tuple[Experiment, dict[str, Any]]:
    document = json.loads(path.read_text())
    written = document.pop("sha256", None)
    if written != digest(document) and (written or path.with_name(COPY).exists()):  # older ones have neither
        raise ValueError("its content is not what was written")
    options = document.pop("options")
    known = {field.name for field in dataclasses.fields(Experiment)}
    return Experiment(**{name: value for name, value in options.items() if name in known}), document


def _no_experiment(folder: Path) -> str:
    others = sorted(path.parent.name for path in folder.parent.glob(f"*/{FILE}"))
    close = difflib.get_close_matches(folder.name, others, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; there: {', '.join(others[-5:])}" if others else ""
    return f"no experiment {folder.name!r} in {folder.parent}{hint}"


def latest_experiment(results: Path) -> str:
    """The name of the experiment whose journal was written to last; RequestError where there is none."""
    journals = sorted(results.glob("*/journal.jsonl"), key=lambda path: path.stat().st_mtime)
    if not journals:
        raise RequestError(f"no experiment in {results}; start one with --space")
    return journals[-1].parent.name


def _literals(kind: Any) -> tuple[str, ...]:
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(name for part in get_args(kind) for name in _literals(part))


CHOICES = {name: _literals(kind) for name, kind in get_type_hints(Experiment).items()}
