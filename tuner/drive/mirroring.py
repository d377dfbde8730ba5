"""Runs `tuner.wandb_mirror` beside a search, in a process of its own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tuner.spec.experiment import Experiment

WAIT_S = 20.0  # for the last runs to be written or uploaded, once the search has ended
PROMPT_S = 1.5  # the same where somebody waits at a terminal; W&B's process then goes on by itself
HURRY_S = 5.0  # the same, where somebody wants the search to stop: all of it within 15 s


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
