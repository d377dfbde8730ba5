"""Checks a search without starting it: `python -m tuner.serve.check OPTIONS` takes the options of `tuner.run`.

The service runs it in a process of its own, so that the service imports neither ray nor torch and executes no space's
file. It prints the experiment as JSON, with all defaults filled in. For a wrong option it prints the same line as
`tuner.run` and exits with code 2. With ELSEWHERE as the last argument, the search is for a cluster: the check then does
not require that a trial fits this machine, because the service itself checks the cluster's nodes.
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
    """Returns the experiment that these arguments request, with all defaults filled in.

    Raises:
        RequestError: an argument is wrong; the text is that of `tuner.run`.
    """
    here = argv[-1:] != [ELSEWHERE]
    argv = argv if here else argv[:-1]
    command = run.parse(argv, Experiment())
    return run.request_of(argv, command, run.resumed_experiment(command), here).experiment


def main(argv: list[str]) -> int:
    """Prints the experiment to stdout and returns 0, or prints one line to stderr and returns 2."""
    try:
        experiment = experiment_of(argv)
    except RequestError as error:
        print(f"tuner: error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(dataclasses.asdict(experiment)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
