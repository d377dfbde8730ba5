"""Checks a search without starting it: `python -m tuner.serve.check OPTIONS` takes the options of `tuner.run`.

The service asks it by a process of its own, so that ray, torch and what a space's file does stay out of the service. It
prints the experiment with every choice made as JSON; what is wrong is the command line's own one line and exit code 2.
With ELSEWHERE as the last word the search is for a cluster, whose nodes the service knows: this machine need not hold
its trials.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from tuner import run
from tuner.errors import RequestError
from tuner.spec.experiment import Experiment

ELSEWHERE = "--elsewhere"


def experiment_of(argv: list[str]) -> Experiment:
    """What these words ask for, every choice made; RequestError in the command line's words."""
    here = argv[-1:] != [ELSEWHERE]
    argv = argv if here else argv[:-1]
    command = run.parse(argv, Experiment())
    return run.requested(argv, command, run.resumed(command), here).experiment


def main(argv: list[str]) -> int:
    """0 with the experiment on stdout, or 2 with one line on stderr."""
    try:
        experiment = experiment_of(argv)
    except RequestError as error:
        print(f"tuner: error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(dataclasses.asdict(experiment)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
