"""The expensive analyses, and the child process that computes them: `python -m tuner.serve.analysis.analyses`.

It exits by itself if the service ends, its memory is used up, or a response takes twice the time limit.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tuner.errors import RequestError
from tuner.record.results import ExperimentRecord, Following
from tuner.record.storage.files import share
from tuner.serve.answers import text_of
from tuner.serve.reading.results_reader import MOST_JOURNAL_BYTES
from tuner.views.figures.importance import draw_importance, importance_of
from tuner.views.figures.parameters import draw_contour
from tuner.views.figures.whatif import draw_whatif
from tuner.views.whatif import WhatIf, what_if

MOST_FATES = 20_000  # trials whose outcomes a replay lists one by one: 3 MB


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
    figure = draw_whatif(record, outcome)
    if more := len(outcome.fates[MOST_FATES:]):
        notes = [*outcome.notes, f"The table leaves out {more:,} more trials; the sums include them."]
        outcome = replace(outcome, fates=outcome.fates[:MOST_FATES], notes=notes)
    return WhatIfAnswer(outcome, figure)


def smoothed(record: ExperimentRecord, x: str, y: str, values: str = "") -> FigureAnswer:
    """Draws the metric over two parameters, smoothed between the trials."""
    return FigureAnswer(draw_contour(record, x, y, values))


def weighed(record: ExperimentRecord, values: str = "") -> FigureAnswer:
    """Draws the importance of each parameter."""
    return FigureAnswer(draw_importance(importance_of(record, values)))


ANALYSES: dict[str, Callable[..., Any]] = {"what-if": replayed, "contour": smoothed, "importance": weighed}


class Analyser:
    """Computes responses about experiments' folders; keeps the records of the last folder.

    It also keeps the last importance, because its forests take seconds and a page requests it again.
    """

    def __init__(self) -> None:
        self._folder, self._following = "", Following(Path())
        self._weighed: tuple[ExperimentRecord | None, dict[str, Any], bytes] = None, {}, b""

    def answer(self, folder: str, analysis: str, choices: dict[str, Any]) -> tuple[int, bytes]:
        """Computes one response; returns its HTTP status and JSON: 200 with the result, or 422 with an error."""
        try:
            if folder != self._folder:
                share(Path(folder).parent)
                self._folder, self._following = folder, Following(Path(folder), MOST_JOURNAL_BYTES)
            record = self._following.load()
            # Two records share the objects of unchanged trials, so the comparison is fast.
            if analysis == "importance" and self._weighed[1] == choices and self._weighed[0] == record:
                return 200, self._weighed[2]
            text = text_of(ANALYSES[analysis](record, **choices))
            if analysis == "importance":
                self._weighed = record, choices, text
            return 200, text
        except RequestError as error:
            return 422, _error_text(str(error))
        except MemoryError:
            raise
        except Exception as error:  # any other error counts as caused by the folder's content
            return 422, _error_text(f"{Path(folder).name}: this cannot be answered ({type(error).__name__}: {error})")


def _error_text(message: str) -> bytes:
    return json.dumps({"error": message[:2000]}).encode()


def main(argv: list[str]) -> int:
    """Answers requests from a pipe until it is closed (exit code 0), or until the memory is used up (1).

    `argv`: the pipe's file descriptor, and the limits: seconds per response, bytes of memory.
    """
    pipe, most_s, most_memory = Connection(int(argv[0])), float(argv[1]), int(argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (most_memory, most_memory))
    analyser = Analyser()
    while True:
        try:
            asked = pipe.recv()
            signal.setitimer(signal.ITIMER_REAL, 2 * most_s)  # SIGALRM ends this process if no service is left
            pipe.send(analyser.answer(*asked))
            signal.setitimer(signal.ITIMER_REAL, 0)
        except EOFError:
            return 0
        except MemoryError:
            message = f"this analysis needs more than {most_memory >> 20} MiB of memory, which is the limit"
            pipe.send((503, _error_text(message)))
            return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
