"""Combines an experiment's files with the state of its search, if this service was asked to run the search."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Annotated

from fastapi import Query

from tuner.errors import RequestError
from tuner.record.results import ExperimentRecord
from tuner.serve.access.own_spaces import NO_SPACES, OwnSpaces
from tuner.serve.answers import Refused
from tuner.serve.jobs.requests import Resume, resume_arguments
from tuner.serve.jobs.searches import WAITS_OR_RUNS, Search, Searches
from tuner.serve.reading.results_reader import NotThere, ResultsReader, View
from tuner.serve.reading.summary import UNRECORDED, Summary, options_summary
from tuner.spec.command import shown_name
from tuner.spec.experiment import fixed_epochs
from tuner.tuning.resume.trust import recorded_path
from tuner.views.figures import values as value_choices
from tuner.views.progress import progress_of

Values = Annotated[str, Query(pattern=value_choices.PATTERN, description=value_choices.ABOUT)]
REFUSED_AGAIN = "the search would be refused again; start a new one"


class ServedExperiments:
    """All experiments of the service.

    `asked` has the searches that the service was asked to run; None if it cannot start any, and `problem` says why.
    """

    def __init__(self, reader: ResultsReader, asked: Searches | None, problem: str = "") -> None:
        self.reader, self.asked, self.problem = reader, asked, problem

    @property
    def searches(self) -> Searches:
        """The searches that the service was asked to run; raises Refused if the service cannot start searches."""
        if self.asked is None:
            raise Refused(503, self.problem)
        return self.asked

    @property
    def spaces(self) -> OwnSpaces:
        return self.asked.spaces if self.asked else NO_SPACES

    def search(self, name: str) -> Search | None:
        return self.asked.get(name) if self.asked else None

    def rows(self, offset: int, limit: int) -> tuple[int, Iterable[Summary]]:
        """Returns the total and, lazily, the requested rows: searches without folders, then others, newest first."""
        asked = {search.name: search for search in (self.asked.all() if self.asked else [])}
        there = self.reader.summaries()
        names = {summary.name for summary in there}
        waiting = [_pending(each) for each in reversed(asked.values()) if _is_shown(each) and each.name not in names]
        rows = islice(chain(waiting, there), offset, offset + limit)
        return len(waiting) + len(there), (with_job(row, asked.get(row.name), self.spaces) for row in rows)

    def folder(self, name: str) -> Path | None:
        """Returns an experiment's folder; None if its search has no folder yet; raises NotThere for unknown names."""
        try:
            return self.reader.folder(name)
        except NotThere:
            search = self.search(name)
            if search is None or not _is_shown(search):
                raise
            return None

    def view(self, name: str, until: float | None = None) -> View:
        """Returns a view as `ResultsReader.view` does; the record is empty if the search has no folder yet."""
        search = self.search(name)
        if search is None or self.folder(name):
            return self.reader.view(name, until)
        summary = _pending(search)
        return View(ExperimentRecord(search.experiment, {}, (), summary.state), summary)

    def one(self, name: str) -> Summary:
        """Returns an experiment's summary with the state of its job; raises the errors of `view`."""
        return self.summary(self.view(name), self.search(name))

    def summary(self, view: View, search: Search | None) -> Summary:
        """Returns a view's summary with the state of its search's job."""
        return with_job(view.summary, search, self.spaces, recorded_path(view.record.facts))

    def idle(self, name: str) -> AbstractContextManager[None]:
        return self.asked.reserved(name) if self.asked else nullcontext()


def with_job(summary: Summary, search: Search | None, spaces: OwnSpaces, path: str = "") -> Summary:
    """Returns an experiment's summary, corrected and completed by the state of its search's job.

    `path` is the absolute path of its space's file, as experiment.json records it. The list does not know it, and takes
    a relative path for a file of that name in `spaces`.
    """
    state, message, waits_for, waits_since = summary.state, "", "", None
    phase = search.phase if search else ""
    if search and phase == "queued":
        state, message = "queued", search.message or "waiting for free resources"
        waits_for, waits_since = message, search.since
    elif phase == "stopping":
        state = "stopping"
    elif search and phase == "submitted":
        # The search has started if its journal is newer than the request. It stays "running" until its job ends,
        # because the job prints its result after the journal's last line.
        state = "running" if (summary.updated or 0) > search.since else "starting"
        if state == "starting":
            waits_for, waits_since = search.message, search.submitted or search.since
    elif search and phase in ("stopped", "failed"):
        # If the journal says running, the job ended without recording its end, so that state is out of date.
        if state in ("running", "queued") or summary.killed:
            state = "interrupted" if phase == "stopped" else "failed"
        message = search.message if phase == "failed" else ""
    there = summary.started is not None or summary.lines > 0
    if phase in WAITS_OR_RUNS:
        actions = ["stop"] if state != "stopping" else []
    else:
        actions = ["resume"] if there and summary.outcome != "refused" else []
    return replace(
        summary,
        space=shown_name(summary.space),
        state=state,
        message=message,
        resume="" if phase in WAITS_OR_RUNS else summary.resume,
        actions=actions,
        waits_for=waits_for,
        waits_since=waits_since,
        not_resumed=_not_resumed(summary, path, spaces) if there else "",
        same_epochs=fixed_epochs(summary.scheduler, summary.max_epochs),
    )


def _not_resumed(summary: Summary, path: str, spaces: OwnSpaces) -> str:
    if summary.space == UNRECORDED["space"]:
        return "plain Ray Tune wrote this folder, so tuner has no journal to resume it from"
    if summary.outcome == "refused":
        return REFUSED_AGAIN
    try:
        resume_arguments(summary.name, summary.space, path, Resume(), spaces)
    except RequestError as error:
        return str(error)
    return ""


def _is_shown(search: Search) -> bool:
    """Whether a search without a folder is listed: its folder is to come, or it failed. Else somebody deleted it."""
    return search.phase in (*WAITS_OR_RUNS, "failed")


def _pending(search: Search) -> Summary:
    e = search.experiment
    progress = progress_of(ExperimentRecord(e, {}, (), "running"))
    return replace(options_summary(e), name=search.name, state="queued", **progress._asdict())
