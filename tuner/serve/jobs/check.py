"""Checks a search without starting it: `python -m tuner.serve.jobs.check OPTIONS` takes the options of `tuner.run`.

In a process of its own, so that the service need not import torch and executes no space's file. It prints the
experiment as JSON with all defaults filled in, or the line of `tuner.run` for a wrong option. With ELSEWHERE, a trial
need not fit this machine, because the service itself checks the cluster's nodes.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

from tuner.errors import RequestError, failed
from tuner.serve.answers import Refused
from tuner.spec.experiment import Experiment

ELSEWHERE = "--elsewhere"
CHECK_S = 120.0


def checked_options(arguments: list[str]) -> dict[str, Any]:
    """Checks arguments of `tuner.run` in a child process; returns the experiment's fields with defaults filled in.

    Raises RequestError, in the words of `tuner.run`, for a wrong one, and Refused if the check fails or takes CHECK_S.
    """
    command = [sys.executable, "-m", "tuner.serve.jobs.check", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise Refused(503, f"checking the request took more than {CHECK_S:g} s; try again") from None
    if done.returncode == 0:
        options: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return options
    lines = done.stderr.strip().splitlines()
    if done.returncode == 2 and lines and lines[-1].startswith("tuner: error: "):
        raise RequestError(lines[-1].removeprefix("tuner: error: "))
    print(done.stderr, file=sys.stderr, flush=True)
    raise Refused(503, f"checking the request failed (exit code {done.returncode}); see the service's output")


def experiment_of(argv: list[str]) -> Experiment:
    """Returns the experiment that these arguments request; raises RequestError, as `tuner.run`, for a wrong one."""
    from tuner import run  # imported here, because the service needs only `checked_options`
    from tuner.tuning.checks.request import checked
    from tuner.tuning.resume.experiment import load_resumed

    here = ELSEWHERE not in argv
    argv = [each for each in argv if each != ELSEWHERE]
    call = run.call_of(argv, run.parse(argv))
    call.dry_run = True
    with ExitStack() as stack:
        return checked(call, load_resumed(call, stack) if call.resume else None, here).experiment


def main(argv: list[str]) -> int:
    try:
        print(json.dumps(dataclasses.asdict(experiment_of(argv))))
        return 0
    except RequestError as error:
        return failed(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
