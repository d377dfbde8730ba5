"""Copies an experiment's journal to Weights & Biases while it grows: one W&B run per trial, grouped by experiment.

The search runs this module in a separate process and does not wait for it while trials run, so a slow W&B does not
slow the search. A user can also run it later: `tuner mirror results/NAME --mode online`.
"""

from __future__ import annotations

import argparse
import functools
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

from tuner.errors import RequestError, say
from tuner.record.events import BEGINNINGS, Event
from tuner.record.reading import follow, read
from tuner.record.saved_experiment import load_experiment
from tuner.record.storage.lock import driver_of
from tuner.spec.experiment import Experiment


class Mirror:
    """Turns journal events into W&B calls. Of the module `wandb` it needs only `init`, so tests can pass a stand-in."""

    def __init__(self, wandb: Any, experiment: Experiment, folder: Path, mode: str) -> None:
        self._wandb, self._experiment, self._folder, self._mode = wandb, experiment, folder, mode
        self._runs: dict[str, Any] = {}
        self._configs: dict[str, dict[str, Any]] = {}

    def handle(self, event: Event) -> None:
        """Copies one event of a trial to W&B; other events are ignored."""
        trial, kind = event.get("trial", ""), event["event"]
        if kind == "trial_started":
            self._configs[trial] = event["config"]
        elif kind == "report":
            self._run(trial).log(event["metrics"], step=event["epoch"])
        elif kind == "decision" and event["action"] != "continue" and trial in self._runs:
            summary = {key: event[key] for key in ("rung", "cutoff", "value", "reason") if event[key] is not None}
            self._runs[trial].summary.update({f"decision/{key}": value for key, value in summary.items()})
        elif kind == "trial_failed":
            self._run(trial).summary.update({"error": event["error"], "error_kind": event["kind"]})
        elif kind == "trial_ended":
            run = self._run(trial)
            run.summary.update({"status": event["status"], "reason": event["reason"]})
            run.tags = (*(run.tags or ()), event["status"])
            run.finish(exit_code=1 if event["status"] == "failed" else 0)
            del self._runs[trial]

    def close(self) -> None:
        """Finishes the W&B runs of trials that have not ended; a resumed search continues these runs."""
        for run in self._runs.values():
            run.finish()

    def _run(self, trial: str) -> Any:
        # A run is created at the trial's first report, failure or end; before that, W&B has nothing to show.
        if trial not in self._runs:
            self._runs[trial] = self._wandb.init(
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
        return self._runs[trial]


class LazyWandb:
    """Imports `wandb` for the first W&B run: before that, the trials' workers need the CPUs for their own imports."""

    def init(self, **options: Any) -> Any:
        """Calls `wandb.init`, and first imports `wandb` if necessary."""
        return self._wandb.init(**options)

    @functools.cached_property
    def _wandb(self) -> Any:
        import wandb

        wandb.setup(wandb.Settings(x_disable_stats=True, x_disable_meta=True, console="off", disable_git=True))
        return wandb


def main(argv: list[str]) -> int:
    """Runs the command line: copies the journal until the search ends; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tuner mirror", description=__doc__)
    parser.add_argument("folder", type=Path, help="the experiment's folder")
    parser.add_argument("--mode", choices=("online", "offline"), required=True)
    parser.add_argument("--all", action="store_true", help="also copy the trials of earlier sessions")
    parser.add_argument("--attached", action="store_true", help="end at the latest when the standard input closes")
    args = parser.parse_args(argv)
    os.nice(10)  # this process yields the CPUs to the trials
    # To stop a job, Ray sends SIGTERM to all processes of the job. This one must still copy the last events; the search
    # ends it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ.setdefault("WANDB_SILENT", "true")
    folder = args.folder
    try:
        experiment, _ = load_experiment(folder)
        if not os.access(folder, os.W_OK):  # W&B would silently use a temporary folder
            raise RequestError(f"{folder}: cannot be written to, but W&B writes files there; give a copy of the folder")
        if (folder / "wandb").is_symlink():
            raise RequestError(f"{folder / 'wandb'} is a link, so W&B would write outside the folder; remove it")
        events = read(folder / "journal.jsonl")
    except RequestError as error:
        say(f"tuner: error: {error}", to=sys.stderr)
        return 2
    mirror = Mirror(LazyWandb(), experiment, folder, args.mode)
    begun = [i for i, e in enumerate(events) if e["event"] in BEGINNINGS]
    first = 0 if args.all else max(begun, default=0)

    def gone() -> bool:
        return bool(select.select([sys.stdin], [], [], 0)[0]) if args.attached else not driver_of(folder)

    try:
        for index, event in enumerate(follow(folder / "journal.jsonl", gone=gone)):
            if index >= first:
                mirror.handle(event)
    except Exception as error:
        if args.attached or not type(error).__module__.startswith("wandb"):
            raise  # a search that started this process has its stderr in wandb.log
        say(f"tuner: error: {RequestError(f'--mode online: {error} Or give --mode offline.')}", to=sys.stderr)
        return 2
    finally:
        mirror.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
