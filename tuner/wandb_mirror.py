"""A process that follows an experiment's journal into Weights & Biases: one run a trial, grouped by experiment.

`python -m tuner.wandb_mirror results/NAME --mode online|offline` may also be run by hand, later. The search starts it
and never waits for it while trials run, so a slow or unreachable W&B costs nothing but its own figures.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tuner.experiment import Experiment, load_experiment
from tuner.journal import Event, follow


class Mirror:
    """Turns journal events into W&B calls; `wandb` is handed in, so that a test can hand in another."""

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


def wandb_mode(choice: str) -> str:
    """`auto` -> online where a key is at hand (environment or netrc), else offline; the others as they are."""
    if choice != "auto":
        return choice
    netrc = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    known = os.environ.get("WANDB_API_KEY") or (netrc.is_file() and "api.wandb.ai" in netrc.read_text())
    return os.environ.get("WANDB_MODE") or ("online" if known else "offline")


def main(argv: list[str]) -> int:
    """Follows the journal until the search ends; returns the exit code."""
    if len(argv) != 3 or argv[1] != "--mode" or argv[2] not in ("online", "offline"):
        print(__doc__, file=sys.stderr)
        return 2
    os.nice(10)  # the trials' CPUs come first
    os.environ.setdefault("WANDB_SILENT", "true")
    folder = Path(argv[0])
    experiment, _ = load_experiment(folder)
    import wandb

    settings = wandb.Settings(x_disable_stats=True, x_disable_meta=True, console="off", disable_git=True)
    wandb.setup(settings)
    mirror = Mirror(wandb, experiment, folder, argv[2])
    try:
        for event in follow(folder / "journal.jsonl"):
            mirror.handle(event)
    finally:
        mirror.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
