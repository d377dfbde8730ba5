"""Reads an experiment's `audit.json` and estimates the share of false prunes among its pruned trials. Never writes.

An audit trains a sample of pruned trials to the end. Such a trial is a false prune if its best value beats the
winner's.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.errors import RequestError
from tuner.record.records import TrialRecord, finite, sign_of
from tuner.record.results import ExperimentRecord
from tuner.record.storage.files import json_in
from tuner.record.texts import counted

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
    trials that would beat the winner; `estimate` has these bounds in words, empty before the first audited trial.
    `matching` of the `done` trials have the search's values in all epochs that the audit repeated. `stale`: the winner
    has changed since the audit last ran.
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
    estimate: str = ""


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
    # Only trials that are still pruned and not the winner count: an extended search may have changed both.
    pruned = {trial.id for trial in prunable(record)}
    counted = {trial.trial: trial for trial in trials if trial.trial in pruned}
    beat = sum(trial.beats for trial in counted.values())
    fewest, most = false_prunes(beat, len(counted), len(pruned), CONFIDENCE)
    return AuditResult(
        winner=winner[0].id,
        winner_value=value,
        metric=record.experiment.metric,
        pruned=len(pruned),
        asked=len(saved["sample"]),
        seed=saved["seed"],
        done=len(counted),
        beat=beat,
        low=fewest / max(1, len(pruned)),
        high=most / max(1, len(pruned)),
        matching=sum(not trial.differs for trial in counted.values()),
        stale=saved["winner"] != winner[0].id,
        trials=trials,
        estimate=_in_words(fewest, most, len(pruned)) if counted else "",
    )


def _in_words(fewest: int, most: int, pruned: int) -> str:
    """Returns the bounds as a sentence: both as numbers of trials and as shares."""
    number, shares = f"{most}", f"{100 * most / pruned:.3g} %"
    if fewest != most:
        number = f"{fewest} to {most}"
        shares = f"{100 * fewest / pruned:.3g} % to {shares}, with {100 * CONFIDENCE:.0f} % confidence"
    return f"Of all {counted(pruned, 'trial')} that were pruned, {number} would beat it ({shares})."


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
            raise ValueError("fields are missing or unknown")
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
    """Returns whether the fields of a saved trial have the types of `AuditedTrial`."""
    texts, counts = (trial["trial"], trial["differs"]), (trial["stopped"], trial["epochs"])
    numbers = (trial["best"], trial["best_epoch"])
    return (
        all(isinstance(text, str) and len(text) <= MOST_TEXT for text in texts)
        and all(type(count) is int for count in counts)
        and all(number is None or finite(number) is not None for number in numbers)
        and finite(trial["seconds"]) is not None
        and isinstance(trial["beats"], bool)
    )


def false_prunes(beat: int, audited: int, pruned: int, confidence: float) -> tuple[int, int]:
    """Returns the fewest and the most false prunes among all pruned trials, as an audit of a part of them shows.

    The interval is exact: the audited trials are drawn without replacement, so it inverts the tails of the
    hypergeometric distribution (Buonaccorsi, The American Statistician 1987). Each tail changes monotonically with the
    number of false prunes, so bisection finds each bound. If all pruned trials are audited, both are `beat`.
    """
    tail = (1 - confidence) / 2 * (1 + 1e-9)  # a share that is exactly the tail must not count as more than it
    possible = range(beat, pruned - (audited - beat) + 1)
    fewest = bisect_left(
        possible, True, key=lambda wrong: _share(range(beat, audited + 1), audited, wrong, pruned) > tail
    )
    above = bisect_left(possible, True, key=lambda wrong: _share(range(beat + 1), audited, wrong, pruned) <= tail)
    return possible[fewest], possible[above - 1]


def _share(hits: range, audited: int, wrong: int, pruned: int) -> float:
    """Returns the probability that the number of false prunes in a sample is in `hits`, if `wrong` of all are false."""
    least, most = max(0, audited - (pruned - wrong)), min(audited, wrong)
    ways = (_ways(wrong, k) + _ways(pruned - wrong, audited - k) for k in hits if least <= k <= most)
    whole = _ways(pruned, audited)
    return math.fsum(math.exp(each - whole) for each in ways)


def _ways(count: int, drawn: int) -> float:
    """Returns the logarithm of a binomial coefficient; the coefficient overflows a float from about 1,000 trials on."""
    return math.lgamma(count + 1) - math.lgamma(drawn + 1) - math.lgamma(count - drawn + 1)
