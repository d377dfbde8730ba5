"""Reads an experiment's `audit.json` and estimates the share of false prunes among its pruned trials. Never writes.

An audit trains a sample of pruned trials to the end. Such a trial is a false prune if its best value beats the
winner's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.errors import RequestError
from tuner.record.files import json_in
from tuner.record.records import TrialRecord, finite, sign_of
from tuner.record.results import ExperimentRecord

FILE = "audit.json"
CONFIDENCE = 0.95
MOST_TRIALS, MOST_TEXT = 10_000, 2000  # limits of audit.json: number of trials, characters per text


@dataclass(frozen=True)
class AuditedTrial:
    """One pruned trial that the audit trained to the end.

    `stopped` is the epoch at which the search stopped it. `best` is its best value over all epochs, reached at
    `best_epoch`. `differs` says where the audit's values first differ from the search's; it is empty if none does.
    """

    trial: str
    stopped: int
    epochs: int
    best: float | None
    best_epoch: int | None
    beats: bool
    differs: str
    seconds: float


@dataclass(frozen=True)
class AuditResult:
    """The result of an audit so far.

    The audit sampled `asked` of the `pruned` trials. It has trained `done` of them to the end, and `beat` of these
    are better than the winner's `winner_value`. `low` and `high` bound, with CONFIDENCE, the share of all pruned
    trials that would beat the winner. `matching` trials have no difference from the search in the epochs that the
    audit repeated. `stale`: the winner has changed since the audit last ran.
    """

    winner: str
    winner_value: float
    metric: str
    pruned: int
    asked: int
    seed: int
    done: int
    beat: int
    low: float
    high: float
    matching: int
    stale: bool
    trials: list[AuditedTrial]


def result_of(record: ExperimentRecord) -> AuditResult | None:
    """Returns the audit of an experiment so far; None if there is no audit or no winner.

    Raises:
        RequestError: audit.json is damaged.
    """
    saved = read_audit(record.experiment.folder)
    winner = record.best()
    if saved is None or winner is None:
        return None
    value = winner[1].metrics[record.experiment.metric]
    sign = sign_of(record.experiment.mode)
    trials = [
        AuditedTrial(**{**t, "beats": t["best"] is not None and sign * t["best"] < sign * value})
        for t in saved["trials"]
    ]
    beat = sum(trial.beats for trial in trials)
    low, high = clopper_pearson(beat, len(trials), CONFIDENCE)
    return AuditResult(
        winner=winner[0].id,
        winner_value=value,
        metric=record.experiment.metric,
        pruned=len(prunable(record)),
        asked=len(saved["sample"]),
        seed=saved["seed"],
        done=len(trials),
        beat=beat,
        low=low,
        high=high,
        matching=sum(not trial.differs for trial in trials),
        stale=saved["winner"] != winner[0].id,
        trials=trials,
    )


def prunable(record: ExperimentRecord) -> list[TrialRecord]:
    """Returns the trials that a stopping rule pruned, except the winner.

    hyperband stops the winner too, when its bracket ends. Trials that diverged are left out: no rule compared them.
    """
    winner = record.best()
    others = [trial for trial in record.trials if winner is None or trial is not winner[0]]
    return [t for t in others if t.status == "pruned" and t.decisions and t.decisions[-1].rung is not None]


def read_audit(folder: Path) -> dict[str, Any] | None:
    """Returns the content of audit.json; None if the file does not exist.

    Raises:
        RequestError: the file is damaged.
    """
    path = folder / FILE
    try:
        saved = json_in(folder, FILE)
        known = set(AuditedTrial.__dataclass_fields__)
        if not {"winner", "seed", "sample", "trials"} <= set(saved) or any(set(t) != known for t in saved["trials"]):
            raise ValueError("fields are missing")
        if not (isinstance(saved["sample"], list) and isinstance(saved["trials"], list)):
            raise ValueError("fields `sample` and `trials` must be lists")
        if len(saved["trials"]) > MOST_TRIALS or not all(map(_is_audited, saved["trials"])):
            raise ValueError(f"a trial's field has a wrong type, or there are more than {MOST_TRIALS} trials")
        return dict(saved)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise RequestError(f"{path} is damaged ({error}); remove it to begin the audit anew") from None


def _is_audited(trial: dict[str, Any]) -> bool:
    """Whether the fields have the types of `AuditedTrial`."""
    texts, counts = (trial["trial"], trial["differs"]), (trial["stopped"], trial["epochs"])
    numbers = (trial["best"], trial["best_epoch"])
    return (
        all(isinstance(text, str) and len(text) <= MOST_TEXT for text in texts)
        and all(type(count) is int for count in counts)
        and all(number is None or finite(number) is not None for number in numbers)
        and finite(trial["seconds"]) is not None
        and isinstance(trial["beats"], bool)
    )


def clopper_pearson(hits: int, count: int, confidence: float) -> tuple[float, float]:
    """Returns the exact confidence interval of a binomial share (Clopper and Pearson, Biometrika 1934).

    The interval is 0..1 if `count` is 0. The binomial tail changes monotonically with the share, so bisection finds
    each bound; after 60 steps the error is below the precision of a double.
    """
    tail = (1 - confidence) / 2
    low = 0.0 if hits == 0 else _share_where(lambda share: 1 - _at_most(hits - 1, count, share) < tail)
    high = 1.0 if hits == count else _share_where(lambda share: _at_most(hits, count, share) > tail)
    return low, high


def _share_where(below: Callable[[float], bool]) -> float:
    """Finds, by bisection in 0..1, the share up to which `below` returns True."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return (low + high) / 2


def _at_most(hits: int, count: int, share: float) -> float:
    # Logarithms, because the binomial coefficients of about 1,000 trials overflow a float.
    whole, odds = math.lgamma(count + 1) + count * math.log1p(-share), math.log(share) - math.log1p(-share)
    ways = (k * odds - math.lgamma(k + 1) - math.lgamma(count - k + 1) for k in range(hits + 1))
    return min(1.0, math.fsum(math.exp(whole + each) for each in ways))
