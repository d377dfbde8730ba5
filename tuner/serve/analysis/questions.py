"""The child process that computes expensive responses: `python -m tuner.serve.analysis.questions`.

It reads requests from stdin, one JSON line each. For each it writes to stdout a line `STATUS LENGTH` and then LENGTH
bytes of JSON. The service (`tuner.serve.analysis.costly`) kills it if a response takes too long or its client
disconnects. It exits by itself if the service ends, if its memory is used up, or if a response takes twice the time
limit.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO
from weakref import WeakKeyDictionary

from tuner.errors import RequestError
from tuner.record.results import ExperimentRecord, Following
from tuner.record.standing import Standing
from tuner.record.storage.files import share
from tuner.serve.answers import text_of
from tuner.views.figures.contour import contour_of, draw_contour
from tuner.views.figures.importance import draw_importance, importance_of
from tuner.views.figures.whatif import cuts_of, draw_whatif
from tuner.views.whatif import WhatIf, what_if

MOST_FATES = 20_000  # trials whose outcomes a replay lists one by one: 3 MB
MOST_FOLLOWED = 2  # experiments whose records stay in memory; a page requests only one


@dataclass(frozen=True)
class WhatIfAnswer:
    """The result of a replay, and its figure in Plotly's schema."""

    outcome: WhatIf
    figure: dict[str, Any]


@dataclass(frozen=True)
class FigureAnswer:
    """A figure in Plotly's schema."""

    figure: dict[str, Any]


def replayed(
    record: ExperimentRecord, scheduler: str, grace_period: int, reduction_factor: float, brackets: int
) -> WhatIfAnswer:
    """Replays a search under other rules; an empty `scheduler` means the search's own scheduler."""
    rules = scheduler or record.experiment.scheduler
    outcome = what_if(record, rules, grace_period, reduction_factor, brackets)
    figure = draw_whatif(cuts_of(record, outcome), outcome, record.experiment.metric)
    if more := len(outcome.fates[MOST_FATES:]):
        notes = [*outcome.notes, f"The table leaves out {more:,} more trials; the sums include them."]
        outcome = replace(outcome, fates=outcome.fates[:MOST_FATES], notes=notes)
    return WhatIfAnswer(outcome, figure)


def smoothed(record: ExperimentRecord, x: str, y: str, values: str = "") -> FigureAnswer:
    """Draws the metric over two parameters, smoothed between the trials."""
    experiment = record.experiment
    return FigureAnswer(draw_contour(contour_of(record, x, y, values), experiment.metric, experiment.mode))


# The cache of importance figures: their forests take seconds, and a page requests the figure again.
_forests: WeakKeyDictionary[Standing, dict[str, FigureAnswer]] = WeakKeyDictionary()


def weighed(record: ExperimentRecord, values: str = "") -> FigureAnswer:
    """Draws the importance of each parameter; reuses the figure until the record or the choice of values changes."""
    figures = _forests.setdefault(record.standing, {})
    if values not in figures:
        figures.clear()
        figures[values] = FigureAnswer(draw_importance(importance_of(record, values)))
    return figures[values]


QUESTIONS: dict[str, Callable[..., Any]] = {"what-if": replayed, "contour": smoothed, "importance": weighed}


class Answers:
    """Computes responses about experiments' folders and keeps the records of the last MOST_FOLLOWED experiments.

    Args:
        most_bytes: the largest journal, in bytes, that is read.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._followed: OrderedDict[str, Following] = OrderedDict()
        self._records: dict[str, ExperimentRecord] = {}

    def answer(self, folder: str, question: str, choices: dict[str, Any]) -> tuple[int, str]:
        """Computes one response; returns its HTTP status and JSON: 200 with the result, or 422 with an error."""
        try:
            return 200, text_of(QUESTIONS[question](self._record(folder), **choices))
        except RequestError as error:
            return 422, _refused(str(error))
        except MemoryError:
            raise
        except Exception as error:  # any other error counts as caused by the folder's content
            return 422, _refused(f"{Path(folder).name}: this cannot be answered ({type(error).__name__}: {error})")

    def _record(self, folder: str) -> ExperimentRecord:
        """Reads the folder's record; returns the previous object, with its cached results, if nothing changed."""
        share(Path(folder).parent)
        followed = self._followed.setdefault(folder, Following(Path(folder), self._most_bytes))
        self._followed.move_to_end(folder)
        while len(self._followed) > MOST_FOLLOWED:
            self._records.pop(self._followed.popitem(last=False)[0], None)
        record, before = followed.load(), self._records.get(folder)
        # The two records share the objects of unchanged trials, so the comparison is fast.
        self._records[folder] = before if before == record else record
        return self._records[folder]


def _refused(message: str) -> str:
    return json.dumps({"error": message[:2000]})


def answer_requests(requests: BinaryIO, responses: BinaryIO, answers: Answers, most_s: float, most_memory: int) -> int:
    """Answers requests until the input ends; returns the exit code: 0, or 1 if the memory is used up."""
    for line in requests:
        signal.setitimer(signal.ITIMER_REAL, 2 * most_s)  # SIGALRM ends this process if the service did not kill it
        try:
            status, text = answers.answer(*json.loads(line))
        except MemoryError:
            message = f"this analysis needs more than {most_memory >> 20} MiB of memory, which is the limit"
            status, text = 503, _refused(message)
        content = text.encode()
        responses.write(b"%d %d\n" % (status, len(content)))
        responses.write(content)
        responses.flush()
        signal.setitimer(signal.ITIMER_REAL, 0)
        if status == 503:
            return 1
    return 0


def main(argv: list[str]) -> int:
    """Answers the requests on stdin; returns the exit code.

    Args:
        argv: three limits: seconds per response, bytes of memory, and bytes of the largest journal that is read.
    """
    most_s, most_memory, most_journal = float(argv[0]), int(argv[1]), int(argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (most_memory, most_memory))
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print goes to stderr, so that it does not mix with responses
    return answer_requests(sys.stdin.buffer, responses, Answers(most_journal), most_s, most_memory)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
