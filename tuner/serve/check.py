"""Checks a search without starting it: `python -m tuner.serve.check OPTIONS` takes the options of `tuner.run`.

The service asks it by a process of its own, so that ray, torch and what a space's file does stay out of the service. It
prints the experiment with every choice made as JSON; what is wrong is the command line's own one line and exit code 2.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from tuner import run
from tuner.errors import RequestError
from tuner.experiment import Experiment


def main(argv: list[str]) -> int:
    """0 with the experiment on stdout, or 2 with one line on stderr."""
    try:
        request = run.requested(argv, run.parse(argv, Experiment()))
    except RequestError as error:
        print(f"tuner: error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(dataclasses.asdict(request.experiment)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
