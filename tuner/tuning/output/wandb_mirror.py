"""Copies an experiment's journal to Weights & Biases while it grows: one W&B run per trial, grouped by experiment.

The search runs this module in a separate process (`mirrored`) and does not wait for it while trials run, so a slow W&B
does not slow the search. A user can also run it later: `tuner mirror results/NAME --mode online`.
"""

from __future__ import annotations

import argparse
import functools
import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tuner.core.events import Beginning, Decision, Event, Report, TrialEnded, TrialFailed, TrialStarted, TrialSuggested
from tuner.errors import RequestError, say
from tuner.errors.output import in_notebook
from tuner.record.format import JOURNAL
from tuner.record.reading import follow, read
from tuner.record.report_keys import EPOCH
from tuner.record.saved_experiment import load_experiment
from tuner.record.storage.lock import driver_of
from tuner.record.storage.made import temporary_folder
from tuner.record.texts import METRIC, PARAMETER, column_names
from tuner.spec.experiment import Experiment

# Our keys of a run's configuration, and those of its metrics and summary; `_step` and so on are W&B's own.
CONFIRMS = ("confirms", "confirms_seed")
DECIDED = {f"decision/{key}": key for key in ("rung", "cutoff", "value", "reason")}
WANDBS = tuple(f"_{name}" for name in ("step", "runtime", "timestamp", "wandb"))  # columns of W&B's own
OURS = (EPOCH, "status", "reason", "error", "error_kind", *DECIDED, *WANDBS)
PREFIX = "tuner_"  # begins the name of the temporary folder; a search removes stale ones that begin so
WAIT_S = 20.0  # maximum wait after a search, in seconds, for W&B to write or upload the last runs
PROMPT_S = 1.5  # maximum wait at a terminal or in a notebook; W&B then continues in the background
HURRY_S = 5.0  # maximum wait after an interrupt: the search should then end within 15 s


def wandb_mode(choice: str) -> str:
    """Resolves the mode `auto`: WANDB_MODE, else online if the environment or netrc has an API key, else offline."""
    if choice != "auto":
        return choice
    netrc = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    known = os.environ.get("WANDB_API_KEY") or (netrc.is_file() and "api.wandb.ai" in netrc.read_text())
    return os.environ.get("WANDB_MODE") or ("online" if known else "offline")


@contextmanager
def mirrored(experiment: Experiment, mode: str) -> Iterator[SimpleNamespace]:
    """Copies the journal to W&B in another process, if enabled; the caller sets the yielded `hurry` if interrupted."""
    waiting = SimpleNamespace(hurry=False)
    if mode == "disabled":
        yield waiting
        return
    folder = experiment.folder
    words = [str(folder), "--mode", mode]
    with open(folder / "wandb.log", "ab") as log:
        # The process is in a session of its own, so that Ctrl-C does not reach it: it must still copy the last events.
        process = subprocess.Popen(
            [sys.executable, "-m", "tuner.tuning.output.wandb_mirror", *words, "--attached"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield waiting
    except KeyboardInterrupt:
        process.kill()  # the interrupt came before or after the search, or its journal cannot be written
        process.wait()
        raise
    finally:
        if process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()  # so that the process ends even if the journal lacks its last event
            later = f"run later: {shlex.join(['python', '-m', 'tuner', 'mirror', *words, '--all'])}"
            leave = (sys.stdout.isatty() or in_notebook()) and not waiting.hurry
            wait_s = PROMPT_S if leave else HURRY_S if waiting.hurry else WAIT_S
            wait_for(process, wait_s, later, folder / "wandb.log", leave=leave)


def wait_for(process: subprocess.Popen[bytes], wait_s: float, later: str, log: Path, *, leave: bool = False) -> None:
    """Waits for W&B's process; after `wait_s`, kills it unless `leave`. Prints a note unless it has succeeded."""
    try:
        if process.wait(wait_s) != 0:
            say(f"NOTE: W&B's process failed; see {log}; {later}")
    except subprocess.TimeoutExpired:
        if leave:
            say(f"NOTE: W&B still writes in the background; see {log}; if it fails, {later}")
            return
        process.kill()
        process.wait()
        say(f"NOTE: W&B did not finish within {wait_s:g} s and was stopped; {later}")


class Mirror:
    """Turns journal events into W&B calls."""

    def __init__(self, experiment: Experiment, folder: Path, mode: str) -> None:
        self._experiment, self._folder, self._mode = experiment, folder, mode
        self._runs: dict[str, Any] = {}
        self._configs: dict[str, dict[str, Any]] = {}
        self._steps: dict[str, int] = {}  # the least step that W&B still accepts for a run

    @functools.cached_property
    def _wandb(self) -> Any:
        # W&B is imported when the first run begins: before that, the trials' workers need the CPUs for their imports.
        import wandb

        wandb.setup(wandb.Settings(x_disable_stats=True, x_disable_meta=True, console="off", disable_git=True))
        return wandb

    def handle(self, event: Event) -> None:
        match event:
            case TrialStarted(config=config, trial=trial):  # the latest, after a copy by pbt
                names = column_names(config, CONFIRMS, PARAMETER)
                own = {names[name]: value for name, value in config.items()}
                self._configs[trial] = self._configs.get(trial, {}) | own
                if trial in self._runs:
                    self._runs[trial].config.update(self._configs[trial], allow_val_change=True)
            case TrialSuggested(trial=trial) if event.confirms is not None:
                self._configs[trial] = dict(zip(CONFIRMS, (event.confirms, event.seed), strict=True))
            case Report(trial=trial, epoch=epoch):
                run, names = self._run(trial), column_names(event.metrics, OURS, METRIC)
                # W&B drops what is logged for an earlier step. After a restart, or a copy of an earlier state, a trial
                # reports epochs again: its steps then go on, and EPOCH is the axis of all figures.
                step = max(epoch, self._steps[trial])
                self._steps[trial] = step + 1
                metrics = {names[name]: value for name, value in event.metrics.items()}
                run.log({EPOCH: epoch, **metrics}, step=step)
            case Decision(trial=trial) if event.action != "continue" and trial in self._runs:
                found = {name: getattr(event, key) for name, key in DECIDED.items()}
                self._runs[trial].summary.update({name: each for name, each in found.items() if each is not None})
            case TrialFailed():
                self._run(event.trial).summary.update({"error": event.error, "error_kind": event.kind})
            case TrialEnded(trial=trial):
                run = self._run(trial)
                run.summary.update({"status": event.status, "reason": event.reason})
                run.tags = (*(run.tags or ()), event.status)
                run.finish(exit_code=1 if event.status == "failed" else 0)
                del self._runs[trial]

    def close(self) -> None:
        """Finishes the W&B runs of trials that have not ended; a resumed search continues these runs."""
        for run in self._runs.values():
            run.finish()

    def _run(self, trial: str) -> Any:
        if trial not in self._runs:
            self._runs[trial] = run = self._wandb.init(
                id=f"{self._experiment.name}-{trial}",
                name=trial,
                group=self._experiment.name,
                project=self._experiment.wandb_project,
                config=self._configs.get(trial, {}),
                mode=self._mode,
                resume="allow",
                reinit="create_new",
                dir=str(self._folder),
            )
            run.define_metric("*", step_metric=EPOCH)
            self._steps[trial] = run.starting_step
        return self._runs[trial]


def main(argv: list[str]) -> int:
    """Runs the command line: copies the journal until the search ends; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tuner mirror", description=__doc__)
    parser.add_argument("folder", type=Path, help="the experiment's folder")
    parser.add_argument("--mode", choices=("online", "offline"), required=True)
    parser.add_argument("--all", action="store_true", help="also copy the trials of earlier sessions")
    parser.add_argument("--attached", action="store_true", help="end at the latest when the standard input closes")
    args = parser.parse_args(argv)
    os.nice(10)  # this process yields the CPUs to the trials
    # Ray sends SIGTERM to all processes of a stopped job. This one still copies the last events; the search ends it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ.setdefault("WANDB_SILENT", "true")
    folder = args.folder
    try:
        experiment, _ = load_experiment(folder)
        if not os.access(folder, os.W_OK):  # W&B would silently use a temporary folder
            raise RequestError(f"{folder}: cannot be written to, but W&B writes files there; give a copy of the folder")
        if (folder / "wandb").is_symlink():
            raise RequestError(f"{folder / 'wandb'} is a link, so W&B would write outside the folder; remove it")
        events = read(folder / JOURNAL)
    except RequestError as error:
        say(f"tuner: error: {error}", to=sys.stderr)
        return 2
    mirror = Mirror(experiment, folder, args.mode)
    begun = [i for i, e in enumerate(events) if isinstance(e, Beginning)]
    first = 0 if args.all else max(begun, default=0)

    def gone() -> bool:
        return bool(select.select([sys.stdin], [], [], 0)[0]) if args.attached else not driver_of(folder)

    try:
        with with_own_temporary_folder():
            try:
                for index, event in enumerate(follow(folder / JOURNAL, gone=gone)):
                    if index >= first:
                        mirror.handle(event)
            finally:
                mirror.close()
    except Exception as error:
        if args.attached or not type(error).__module__.startswith("wandb"):
            raise  # the search that started this process sends its stderr to wandb.log
        say(f"tuner: error: {RequestError(f'--mode online: {error} Or give --mode offline.')}", to=sys.stderr)
        return 2
    return 0


@contextmanager
def with_own_temporary_folder() -> Iterator[None]:
    """Gives W&B a temporary folder of ours: if this process is killed, the next search removes it."""
    with (
        temporary_folder(PREFIX) as made,
        mock.patch.dict(os.environ, TMPDIR=str(made.path)),
        mock.patch.object(tempfile, "tempdir", str(made.path)),
    ):
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
