"""Runs `wandb_mirror`, which copies the journal to W&B, in a separate process while a search runs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import say
from tuner.spec.experiment import Experiment
from tuner.tuning.output.cell import in_notebook

WAIT_S = 20.0  # the longest wait after a search for W&B to write or upload the last runs
PROMPT_S = 1.5  # the longest wait at a terminal or in a notebook; W&B then continues in the background
HURRY_S = 5.0  # the longest wait after an interrupt: the search should then end within 15 s


def wandb_mode(choice: str) -> str:
    """Resolves the W&B mode `auto`; returns any other mode unchanged.

    `auto` is the mode of the environment variable WANDB_MODE. Without it, `auto` is online if the environment or netrc
    has an API key, else offline.
    """
    if choice != "auto":
        return choice
    netrc = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    known = os.environ.get("WANDB_API_KEY") or (netrc.is_file() and "api.wandb.ai" in netrc.read_text())
    return os.environ.get("WANDB_MODE") or ("online" if known else "offline")


@dataclass
class Waiting:
    """Tells `mirrored` how to wait for the W&B process to end.

    The caller sets `hurry` if the user has interrupted the search. `mirrored` then kills the process if it has not
    ended after HURRY_S.
    """

    hurry: bool = False


@contextmanager
def mirrored(experiment: Experiment, mode: str) -> Iterator[Waiting]:
    """Copies the journal to W&B in a separate process while a search runs; waits at most `WAIT_S` for its end.

    If the process fails or is killed, W&B lacks data, and a line says so at the end; the search is not affected.
    """
    waiting = Waiting()
    if mode == "disabled":
        yield waiting
        return
    folder = experiment.folder
    command = [sys.executable, "-m", "tuner.tuning.output.wandb_mirror", str(folder), "--mode", mode]
    with open(folder / "wandb.log", "ab") as log:
        # The process is in a session of its own, so that Ctrl-C does not reach it: it must still copy the last events.
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
        process.kill()  # an interrupt before or after the search, or of one whose journal cannot be written
        process.wait()
        raise
    finally:
        if process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()  # so that the process ends even if the journal lacks its last event
            later = shlex.join(["python", "-m", "tuner", "mirror", str(folder), "--mode", mode, "--all"])
            awaited = (sys.stdout.isatty() or in_notebook()) and not waiting.hurry
            wait_s = PROMPT_S if awaited else HURRY_S if waiting.hurry else WAIT_S
            wait_for(process, wait_s, f"run later: {later}", folder / "wandb.log", leave=awaited)


def wait_for(process: subprocess.Popen[bytes], wait_s: float, later: str, log: Path, *, leave: bool = False) -> None:
    """Waits for the W&B process; after `wait_s`, kills it or, with `leave`, lets it run. Prints a note if it failed."""
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
