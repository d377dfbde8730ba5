"""A process that follows an experiment's journal into Weights & Biases: one run a trial, grouped by experiment.

`python -m tuner.wandb_mirror results/NAME --mode online|offline` may also be run by hand, later. The search starts it
and never waits for it while trials run, so a slow or unreachable W&B costs nothing but its own figures.
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.errors import RequestError
from tuner.record.events import Event
from tuner.record.journal import BEGINNINGS, follow, read
from tuner.record.lock import driver_of
from tuner.record.saved_experiment import load_experiment
from tuner.spec.experiment import Experiment

WAIT_S = 20.0  # for the last runs to be written or uploaded, once the search has ended
PROMPT_S = 1.5  # the same where somebody waits at a terminal; W&B's process then goes on by itself
HURRY_S = 5.0  # the same, where somebody wants the search to stop: all of it within 15 s


class Mirror:
    """Turns journal events into W&B calls; `wandb`, of which `init` is used, may be a test's own."""

    def __init__(self, wandb: Any, experiment: Experiment, folder: Path, mode: str) -> None:
        self._wandb, self._experiment, self._folder, self._mode = wandb, experiment, folder, mode
        self._runs: dict[str, Any] = {}
        self._configs: dict[str, dict[str, Any]] = {}

    def handle(self, event: Event) -> None:
        """Mirrors one event."""
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
        """Ends the runs of trials that have not ended: a resumed search goes on with them."""
        for run in self._runs.values():
            run.finish()

    def _run(self, trial: str) -> Any:
        # Made at the first report, not at the start: a trial that never reports needs no run until it ends.
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


class Late:
    """W&B, imported for the first run: until trials report, their workers need the CPUs for imports of their own."""

    def init(self, **options: Any) -> Any:
        """As `wandb.init`."""
        return self._wandb.init(**options)

    @functools.cached_property
    def _wandb(self) -> Any:
        import wandb

        wandb.setup(wandb.Settings(x_disable_stats=True, x_disable_meta=True, console="off", disable_git=True))
        return wandb


def wandb_mode(choice: str) -> str:
    """`auto` -> online where a key is at hand (environment or netrc), else offline; the others as they are."""
    if choice != "auto":
        return choice
    netrc = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    known = os.environ.get("WANDB_API_KEY") or (netrc.is_file() and "api.wandb.ai" in netrc.read_text())
    return os.environ.get("WANDB_MODE") or ("online" if known else "offline")


@dataclass
class Waiting:
    """How long the mirror is waited for: `hurry` where the search was asked to stop."""

    hurry: bool = False


@contextmanager
def mirrored(experiment: Experiment, mode: str) -> Iterator[Waiting]:
    """Mirrors the journal by a process of its own while a search runs; waits for its end, `WAIT_S` at most.

    A process that cannot be started, fails or is killed costs its own figures and a line at the end, nothing else.
    """
    waiting = Waiting()
    if mode == "disabled":
        yield waiting
        return
    folder = experiment.folder
    command = [sys.executable, "-m", "tuner.wandb_mirror", str(folder), "--mode", mode]
    with open(folder / "wandb.log", "ab") as log:
        # A session of its own: Ctrl-C in the terminal stops the search, whose last events are still to be mirrored.
        process = subprocess.Popen(
            [*command, "--attached"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield waiting
    except KeyboardInterrupt:
        process.kill()  # nothing has begun, or all is over
        process.wait()
        raise
    finally:
        if process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()  # a search that ended by an error has written no end
            later = shlex.join(["python", *command[1:], "--all"])
            at_terminal = sys.stdout.isatty() and not waiting.hurry
            wait_s = PROMPT_S if at_terminal else HURRY_S if waiting.hurry else WAIT_S
            wait_for(process, wait_s, f"{later} does it later", folder / "wandb.log", leave=at_terminal)


def wait_for(process: subprocess.Popen[bytes], wait_s: float, later: str, log: Path, *, leave: bool = False) -> None:
    """Waits for the mirror's end so long, then ends it, or leaves it to end by itself; says what it left undone."""
    try:
        if process.wait(wait_s) != 0:
            print(f"NOTE: W&B's process failed; see {log}; {later}", flush=True)
    except subprocess.TimeoutExpired:
        if leave:
            print(f"NOTE: W&B still writes, and ends by itself; see {log}; if it fails, {later}", flush=True)
            return
        process.kill()
        process.wait()
        print(f"NOTE: W&B took over {wait_s:g} s to finish and was left; {later}", flush=True)


def main(argv: list[str]) -> int:
    """Follows the journal until the search ends; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tuner.wandb_mirror", description=__doc__)
    parser.add_argument("folder", type=Path, help="the experiment's folder")
    parser.add_argument("--mode", choices=("online", "offline"), required=True)
    parser.add_argument("--all", action="store_true", help="trials of earlier sessions too, mirrored then already")
    parser.add_argument("--attached", action="store_true", help="ends with its standard input, if not before")
    given = parser.parse_args(argv)
    os.nice(10)  # the trials' CPUs come first
    # A Ray job is stopped by SIGTERM to every process below it; the search's last events are still to be mirrored, and
    # the search ends this process itself.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ.setdefault("WANDB_SILENT", "true")
    folder = given.folder
    try:
        experiment, _ = load_experiment(folder)
        if not os.access(folder, os.W_OK):  # W&B would write to a temporary folder without a word
            raise RequestError(f"{folder}: cannot be written to; copy it to where W&B's files may lie beside it")
        events = read(folder / "journal.jsonl")
    except RequestError as error:
        print(f"tuner: error: {error}", file=sys.stderr)
        return 2
    mirror = Mirror(Late(), experiment, folder, given.mode)
    begun = [i for i, e in enumerate(events) if e["event"] in BEGINNINGS]
    first = 0 if given.all else max(begun, default=0)

    def gone() -> bool:
        return bool(select.select([sys.stdin], [], [], 0)[0]) if given.attached else not driver_of(folder)

    try:
        for index, event in enumerate(follow(folder / "journal.jsonl", gone=gone)):
            if index >= first:
                mirror.handle(event)
    finally:
        mirror.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
