"""Reads `audit.json` and estimates how many pruned trials would have beaten the winner: the false prunes."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import FailFast, TypeAdapter, ValidationError

from tuner.errors import RequestError
from tuner.record.columns import column
from tuner.record.records import TrialRecord
from tuner.record.results import ExperimentRecord
from tuner.record.storage.files import bytes_in
from tuner.record.texts import counted

FILE = "audit.json"
CONFIDENCE = 0.95
MAX_AUDIT_BYTES = 4 << 20  # maximum bytes of audit.json; 10,000 audited trials take 2.5 MB


@dataclass(frozen=True)
class AuditedTrial:
    """One pruned trial that the audit trained to the end."""

    __pydantic_config__: ClassVar = {"allow_inf_nan": False}
    trial: str = column("", "", "trial")
    stopped: int = column("pruned at epoch")
    best: float | None = column("best value")
    best_epoch: int | None = column()
    beats: bool = column("false prune", "whether its best value beats that of the best trial", "flag")
    seconds: float = column("duration", "", "duration")
    differs: str = column("note", "where the values first differ from the search's", "text")
    epochs: int = column(shown="")


@dataclass(frozen=True)
class Audit:
    """The content of audit.json. `beats` is always False there; `result_of` sets it, because the winner may change."""

    winner: str
    seed: int
    sample: Annotated[list[str], FailFast()]
    trials: Annotated[list[AuditedTrial], FailFast()]


@dataclass(frozen=True)
class AuditResult:
    """The result of an audit so far.

    The audit sampled `asked` pruned trials and trained `done` to the end. `beat` of the `done` trials beat the winner.
    With CONFIDENCE, a share from `low` to `high` of all `pruned` trials would beat it; `estimate` says so in words.
    `matching` of the `done` trials repeat the search's values. `stale`: the winner has changed since the last audit.
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
    """Returns the audit so far; None without an audit or a winner. A damaged audit.json raises a RequestError."""
    saved, winner, metric = read_audit(record.experiment.folder), record.best(), record.experiment.wanted.metric
    if saved is None or winner is None:
        return None
    value, sign, is_broken = winner[1].metrics[metric], record.experiment.wanted.sign, bool(record.broken())
    trials = [replace(t, beats=t.best is not None and (is_broken or sign * (t.best - value) < 0)) for t in saved.trials]
    # Counts only trials that are still pruned and are not the winner, because an extended search may have changed both.
    pruned = {trial.id for trial in prunable(record)}
    done = {trial.trial: trial for trial in trials if trial.trial in pruned}.values()
    beat = sum(trial.beats for trial in done)
    fewest, most = false_prunes(beat, len(done), len(pruned), CONFIDENCE)
    return AuditResult(
        winner=winner[0].id,
        winner_value=value,
        metric=metric,
        pruned=len(pruned),
        asked=len(saved.sample),
        seed=saved.seed,
        done=len(done),
        beat=beat,
        low=fewest / max(1, len(pruned)),
        high=most / max(1, len(pruned)),
        matching=sum(not trial.differs for trial in done),
        stale=saved.winner != winner[0].id,
        trials=trials,
        estimate=_in_words(fewest, most, len(pruned)) if done else "",
    )


def _in_words(fewest: int, most: int, pruned: int) -> str:
    number, shares = f"{most}", f"{100 * most / pruned:.3g} %"
    if fewest != most:
        number = f"{fewest} to {most}"
        shares = f"{100 * fewest / pruned:.3g} % to {shares}, with {100 * CONFIDENCE:.0f} % confidence"
    return f"Of the {counted(pruned, 'trial')} that a rule pruned, {number} would beat it ({shares})."


def prunable(record: ExperimentRecord) -> list[TrialRecord]:
    """Returns the trials that a rule pruned, except the winner, which a rule may prune for a later, worse value."""
    winner = record.best()
    return [trial for trial in record.stats.stopped if winner is None or trial is not winner[0]]


def read_audit(folder: Path) -> Audit | None:
    """Returns the content of audit.json; None if the file does not exist. A damaged one raises a RequestError."""
    try:
        return TypeAdapter(Audit).validate_json(bytes_in(folder, FILE, MAX_AUDIT_BYTES), strict=True)
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        wrong = ": ".join(map(str, (*first["loc"], first["msg"])))
    except (OSError, ValueError) as error:
        wrong = str(error)
    raise RequestError(f"{folder / FILE} is damaged ({wrong}); remove it to begin the audit anew") from None


def false_prunes(beat: int, audited: int, pruned: int, confidence: float) -> tuple[int, int]:
    """Bounds the number of false prunes in all `pruned` trials if `beat` of `audited` sampled ones are false prunes.

    The interval is exact: it inverts the tails of the hypergeometric distribution (Buonaccorsi, The American
    Statistician 1987), each by bisection.
    """
    tail = (1 - confidence) / 2 * (1 + 1e-9)  # 1e-9 absorbs rounding: a probability equal to the tail is not above it
    possible = range(beat, pruned - (audited - beat) + 1)
    at_least, at_most = range(beat, audited + 1), range(beat + 1)
    fewest = bisect_left(possible, True, key=lambda wrong: _share(at_least, audited, wrong, pruned) > tail)
    above = bisect_left(possible, True, key=lambda wrong: _share(at_most, audited, wrong, pruned) <= tail)
    return possible[fewest], possible[above - 1]


def _share(hits: range, audited: int, wrong: int, pruned: int) -> float:
    """Returns the probability of k false prunes, k in `hits`, in `audited` trials if all `pruned` ones have `wrong`."""
    least, most = max(0, audited - (pruned - wrong)), min(audited, wrong)
    ways = (_ways(wrong, k) + _ways(pruned - wrong, audited - k) for k in hits if least <= k <= most)
    whole = _ways(pruned, audited)
    return math.fsum(math.exp(each - whole) for each in ways)


def _ways(count: int, drawn: int) -> float:
    """Returns the logarithm of a binomial coefficient, because the coefficient overflows from about 1,000 trials on."""
    return math.lgamma(count + 1) - math.lgamma(drawn + 1) - math.lgamma(count - drawn + 1)
