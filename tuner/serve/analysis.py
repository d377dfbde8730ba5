"""Analyses of one experiment: what-if (a replay), one trial, contour, importance, the audit, and the report.

One child process, `python -m tuner.serve.analysis`, computes the expensive analyses one at a time, within limits on
time and memory: unlike a thread, a process can be killed. The first request starts it; it keeps the last experiment's
records. It exits if the service ends, its memory is used up, or a response takes twice the time limit.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request
from fastapi import Path as PathParameter
from starlette.responses import Response

from tuner.errors import RequestError, blamed
from tuner.record.results import ExperimentRecord, Following
from tuner.record.storage.files import share
from tuner.record.texts import command
from tuner.serve.answers import MOST_BYTES, BoundedResponse, answer, later, refusal, text_of
from tuner.serve.reading.results_reader import MOST_JOURNAL_BYTES, NotThere
from tuner.serve.served import ServedExperiments, Values
from tuner.views.audit_record import AuditResult, result_of
from tuner.views.commands import audit_command
from tuner.views.figures.curves import draw_whatif
from tuner.views.figures.importance import draw_importance, importance_of
from tuner.views.figures.parameters import draw_contour
from tuner.views.one_trial import OneTrial, one_trial
from tuner.views.report import page
from tuner.views.whatif import MOST_BRACKETS, REPLAYED, WhatIf, what_if

MOST_S = 30.0  # seconds for one request; a replay of 10,000 trials takes 3 s
MOST_MEMORY = 2 << 30  # bytes of the child process's address space; 10,000 trials take 300 MB
MOST_WAITING = 8  # queued requests, including the one that is being computed
MOST_FATES = 20_000  # maximum trials in the table of a replay; they take 3 MB
LOOK_S = 0.1  # seconds between two checks whether the client still waits
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # each thread's stack counts in MOST_MEMORY
Parameter = Annotated[str, Query(max_length=500, description="a parameter that differs between trials")]


@dataclass(frozen=True)
class WhatIfAnswer:
    """The result of a replay, and its figure in Plotly's schema."""

    outcome: WhatIf
    figure: dict[str, Any]


@dataclass(frozen=True)
class FigureAnswer:
    """A figure in Plotly's schema."""

    figure: dict[str, Any]


@dataclass(frozen=True)
class AuditAnswer:
    """The audit's `result` so far (None without audit or winner); the shell `command` that runs it, or empty."""

    result: AuditResult | None
    command: str


# --- the expensive analyses -------------------------------------------------------------------------------------------


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


def report(record: ExperimentRecord) -> bytes:
    """Returns the content of report.html for a record; raises RequestError above MOST_BYTES."""
    content, name = page(record).encode(errors="backslashreplace"), record.experiment.name
    if len(content) > MOST_BYTES:
        raise RequestError(
            f"the report of {name} has {len(content):,} bytes, and a response at most {MOST_BYTES:,}; write the file "
            f"with {command('report', name, '--results FOLDER')}"
        )
    return content


ANALYSES: dict[str, Callable[..., Any]] = {
    "what-if": replayed,
    "report": report,
    "contour": lambda record, x, y, values: FigureAnswer(draw_contour(record, x, y, values)),
    "importance": lambda record, values: FigureAnswer(draw_importance(importance_of(record, values))),
}


def computed(record: ExperimentRecord, analysis: str, choices: dict[str, Any]) -> bytes:
    """Computes an analysis; returns its JSON, or the HTML of a report."""
    result = ANALYSES[analysis](record, **choices)
    return result if isinstance(result, bytes) else text_of(result)


class Analyser:
    """Computes analyses of experiments' folders; keeps the records of the last folder.

    It also keeps the last response about importance, because random forests take seconds and the page asks often.
    """

    def __init__(self) -> None:
        self._folder, self._following = "", Following(Path())
        self._weighed: tuple[ExperimentRecord | None, dict[str, Any], bytes] = None, {}, b""

    def answer(self, folder: str, analysis: str, choices: dict[str, Any]) -> tuple[int, bytes]:
        """Computes one response; returns its HTTP status and text: 200 with the result, or 422 with an error."""
        try:
            if folder != self._folder:
                share(Path(folder).parent)
                self._folder, self._following = folder, Following(Path(folder), MOST_JOURNAL_BYTES)
            record = self._following.load()
            # Two records share the objects of unchanged trials, so the comparison is fast.
            if analysis == "importance" and self._weighed[1] == choices and self._weighed[0] == record:
                return 200, self._weighed[2]
            text = computed(record, analysis, choices)
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
    """Answers requests from a pipe until it is closed (exit code 0), or until the memory is used up (code 1).

    `argv` has the pipe's file descriptor, the maximum seconds per response, and the maximum bytes of memory.
    """
    pipe, most_s, most_memory = Connection(int(argv[0])), float(argv[1]), int(argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (most_memory, most_memory))
    analyser = Analyser()
    while True:
        try:
            asked = pipe.recv()
            signal.setitimer(signal.ITIMER_REAL, 2 * most_s)  # SIGALRM ends this process if its service is gone
            pipe.send(analyser.answer(*asked))
            signal.setitimer(signal.ITIMER_REAL, 0)
        except EOFError:
            return 0
        except MemoryError:
            message = f"this analysis needs more than {most_memory >> 20} MiB of memory, which is the limit"
            pipe.send((503, _error_text(message)))
            return 1


# --- the service ------------------------------------------------------------------------------------------------------


class AnalysisWorker:
    """The child process for expensive requests, and their queue; for one event loop."""

    def __init__(self, most_s: float = MOST_S, most_memory: int = MOST_MEMORY) -> None:
        self._limits = [str(most_s), str(most_memory)]
        self._most_s = most_s
        self._process: subprocess.Popen[bytes] | None = None
        self._turn, self._num_waiting = asyncio.Lock(), 0

    async def ask(
        self, request: Request, folder: Path, analysis: str, choices: dict[str, Any], stopping: Callable[[], bool]
    ) -> Response:
        """Return an analysis as a response; its status is 503 beyond a limit, at shutdown, or after a crash."""
        if self._num_waiting >= MOST_WAITING:
            return later(f"{MOST_WAITING} analyses are queued, which is the limit; send the request again")
        self._num_waiting += 1
        try:
            async with self._turn:
                pipe, until = self._started(), time.monotonic() + self._most_s
                try:
                    pipe.send((str(folder), analysis, choices))
                    while not await asyncio.to_thread(pipe.poll, LOOK_S):
                        if stopping() or await request.is_disconnected():
                            raise TimeoutError("the client has disconnected, or the service is shutting down")
                        if time.monotonic() > until:
                            raise TimeoutError(f"this analysis takes more than {self._most_s:g} s, which is the limit")
                    status, text = await asyncio.to_thread(pipe.recv)
                except BaseException:  # also if this task is cancelled at shutdown
                    self._end()
                    raise
                if status == 503:  # the process has used up its memory and exits
                    self._end()
                return BoundedResponse(text, status)
        except (TimeoutError, EOFError, OSError) as error:
            return refusal(503, str(error) or "the process of this analysis has ended; send the request again")
        finally:
            self._num_waiting -= 1

    def _started(self) -> Connection:
        """Return the pipe to the process, which exits when this end is closed; Ctrl-C does not reach the process."""
        if self._process is None or self._process.poll() is not None:
            self._pipe, childs = Pipe()
            with childs:
                command = [sys.executable, "-m", "tuner.serve.analysis", str(childs.fileno()), *self._limits]
                nothing, env, kept = subprocess.DEVNULL, os.environ | ONE_THREAD, [childs.fileno()]
                self._process = subprocess.Popen(command, env=env, stdin=nothing, pass_fds=kept, start_new_session=True)
        return self._pipe

    def _end(self) -> None:
        assert self._process
        self._process.kill()
        self._process.wait()
        self._process = None


def add_analyses(app: FastAPI, served: ServedExperiments) -> None:
    worker = AnalysisWorker()

    async def worked_out(request: Request, name: str, analysis: str, **choices: Any) -> Response:
        """Computes an expensive response in the child process, or here if the search has no folder yet."""
        folder = await asyncio.to_thread(served.folder, name)
        if folder is None:  # its record is empty
            view = await asyncio.to_thread(served.view, name)
            return BoundedResponse(await asyncio.to_thread(computed, view.record, analysis, choices))
        return await worker.ask(request, folder, analysis, choices, lambda: app.state.stopping())

    @app.get("/api/experiments/{name}/what-if", responses={200: {"model": WhatIfAnswer}})
    async def what_if_route(
        request: Request,
        name: str,
        scheduler: Annotated[Literal[*REPLAYED] | Literal[""], Query(description="empty = the search's own")] = "",  # type: ignore[valid-type]
        grace_period: Annotated[int, Query(ge=1, le=10**6, description="epochs before a trial may be stopped")] = 1,
        reduction_factor: Annotated[
            float, Query(gt=1, le=1000, description="1 in N trials continues at each rung")
        ] = 2,
        brackets: Annotated[int, Query(ge=1, le=MOST_BRACKETS, description="brackets of asha, asha-promotion")] = 1,
    ) -> Response:
        """Replays the recorded curves under other rules: where trials stop, epochs saved, and if the winner is lost."""
        choices = {"scheduler": scheduler, "grace_period": grace_period, "reduction_factor": reduction_factor}
        return await worked_out(request, name, "what-if", **choices, brackets=brackets)

    @app.get("/api/experiments/{name}/contour", responses={200: {"model": FigureAnswer}})
    async def contour(request: Request, name: str, x: Parameter, y: Parameter, values: Values = "") -> Response:
        """Draws the metric over two parameters, smoothed between the trials."""
        return await worked_out(request, name, "contour", x=x, y=y, values=values)

    @app.get("/api/experiments/{name}/importance", responses={200: {"model": FigureAnswer}})
    async def importance(request: Request, name: str, values: Values = "") -> Response:
        """Draws how much each parameter matters for the metric, and how uncertain this estimate is."""
        return await worked_out(request, name, "importance", values=values)

    @app.get("/api/experiments/{name}/report", response_class=Response, responses={200: {"content": {"text/html": {}}}})
    async def report_route(request: Request, name: str) -> Response:
        """Returns report.html of the experiment's present state as a download; the file opens offline."""
        made = await worked_out(request, name, "report")
        if made.status_code == 200:
            made.headers["Content-Type"] = "text/html; charset=utf-8"
            made.headers["Content-Disposition"] = f'attachment; filename="{name}.html"'  # `served` knows no unsafe name
        return made

    @app.get("/api/experiments/{name}/trials/{trial}", responses={200: {"model": OneTrial}})
    def trial_route(name: str, trial: Annotated[str, PathParameter(max_length=200)]) -> Response:
        """Returns one trial: its row, decisions, metrics, the end of its output, and the command that retrains it."""
        record = served.view(name).record
        with blamed(name):
            details = one_trial(record, trial)
        if details is None:
            raise NotThere(f"{name} has no trial of that id")
        return answer(details, decisions=details.decisions, metrics=details.metrics)

    @app.get("/api/experiments/{name}/audit", responses={200: {"model": AuditAnswer}})
    def audit(name: str) -> Response:
        """Returns how many pruned trials would have beaten the winner, by tuner.audit's sample so far."""
        record = served.view(name).record
        with blamed(name):
            return answer(AuditAnswer(result_of(record), audit_command(record)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
