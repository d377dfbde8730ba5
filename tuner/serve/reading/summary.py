"""The summary of an experiment, which is one row of the dashboard's list."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tuner.errors import RequestError
from tuner.record.notes import read_notes
from tuner.record.results import KILLED, ExperimentRecord
from tuner.serve.answers import text_of
from tuner.spec.experiment import Experiment
from tuner.views import tables
from tuner.views.commands import audit_command, extend_command, retrain_command
from tuner.views.progress import progress_of
from tuner.views.tables import BestRow
from tuner.views.verdict import outcome_of

MOST_SUMMARY = 64 << 10  # bytes of one summary as JSON; the list may have thousands of summaries


@dataclass(frozen=True)
class Summary:
    """The summary of one experiment; times are unix seconds.

    `outcome` is the state, or refused if the request was wrong, failed if a finished search has only failed trials or
    no finite value, out of time if a budget ended it, or killed. `killed`: its process recorded no end.
    `length` is the maximum epochs of a trial: `max_epochs`, or fewer if the trials end earlier by themselves.
    `ended` of `asked` trials have ended (0 = only a budget limits them); `rate` and `left_s` are those of
    `tuner.views.progress`.
    `grace_period` and `brackets` describe the current rungs. `epochs` counts the epochs of all trials, and
    `repeated_epochs` the epochs trained again. `took_s` is the search's seconds without pauses between sessions.
    `lines` counts the journal's lines in this summary; an event stream can start after them. `resume`, `retrain` and
    `audit` are commands (`resume` may be a Python call); those that do not apply are empty. If the experiment's files
    cannot be read, `error` says why, and `state` is damaged. The state `reading` means that they are not read yet.

    The service adds the fields from `message` on. If it was asked to run the search, `state` may also be queued,
    starting or stopping. `message` says why the search waits or failed. `actions` lists the allowed requests: stop,
    resume. `waits_for` says what a queued or starting search waits for. `not_resumed` says why this service cannot
    resume or extend the search; `same_epochs` says why its epochs per trial cannot change.
    """

    name: str
    error: str = ""
    space: str = ""
    state: str = ""
    killed: bool = False
    searcher: str = ""
    scheduler: str = ""
    metric: str = ""
    mode: str = ""
    prune_by: str = ""
    prune_mode: str = ""
    num_samples: int = 0
    max_epochs: int = 0
    length: int = 0
    grace_period: int = 1
    reduction_factor: float = 2
    brackets: int = 1
    seed: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    ended: int = 0
    asked: int = 0
    rate: float | None = None
    left_s: float | None = None
    best: BestRow | None = None
    started: float | None = None
    updated: float | None = None
    epochs: int = 0
    repeated_epochs: int = 0
    took_s: float = 0
    lines: int = 0
    notice: str = ""
    resume: str = ""
    retrain: str = ""
    outcome: str = ""
    audit: str = ""
    tags: tuple[str, ...] = ()
    notes: str = ""
    archived: bool = False
    notes_error: str = ""
    message: str = ""
    actions: list[str] = field(default_factory=list)
    waits_for: str = ""
    waits_since: float | None = None
    not_resumed: str = ""
    same_epochs: str = ""


UNRECORDED: dict[str, Any] = {"space": "Ray Tune folder", "searcher": "not recorded", "scheduler": "not recorded"}


def options_summary(experiment: Experiment) -> Summary:
    """Returns a summary with an experiment's options only, without its progress or results."""
    shared = {each.name for each in fields(Experiment)} & {each.name for each in fields(Summary)}
    own = {name: getattr(experiment, name) for name in shared} | experiment.wanted._asdict()  # of several, the first
    return Summary(**own, length=experiment.max_epochs)


def with_notes(summary: Summary, folder: Path) -> Summary:
    """Adds the tags, notes and archive mark of an experiment's folder, or why they cannot be read."""
    try:
        notes = read_notes(folder)
    except RequestError as error:
        return replace(summary, notes_error=str(error))
    return replace(summary, tags=notes.tags, notes=notes.notes, archived=notes.archived)


def summary_of(record: ExperimentRecord) -> Summary:
    """Returns the summary of a record; raises RequestError if it is longer than MOST_SUMMARY."""
    e, facts = record.experiment, record.facts
    summary = replace(
        options_summary(e),
        length=record.rules.max_epochs,
        grace_period=record.rules.grace_period,
        brackets=record.rules.brackets,
        **(UNRECORDED if facts.get("foreign") else {}),
        state=record.state,
        killed=record.reason == KILLED,
        counts=record.stats.counts,
        **progress_of(record)._asdict(),
        best=tables.best_row(record),
        started=facts.get("created"),
        updated=record.updated,
        epochs=record.stats.epochs,
        repeated_epochs=record.stats.repeated,
        took_s=round(record.took_s, 1),
        lines=record.lines,
        notice=" · ".join(filter(None, (record.reason, *tables.notices(record)))),
        resume=extend_command(record),
        retrain=retrain_command(record),
        outcome=outcome_of(record),
        audit=audit_command(record),
    )
    if len(text_of(summary)) > MOST_SUMMARY:
        raise RequestError(f"{e.folder}: names and values make a summary of more than {MOST_SUMMARY:,} bytes")
    return summary
