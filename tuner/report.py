"""Writes the report.html of an experiment again; a search writes this file when it ends.

`python -m tuner.report NAME [--results DIR]`
"""

from __future__ import annotations

import sys

from tuner.errors import Parser, RequestError, blamed, failed, say
from tuner.record.results import load_named
from tuner.views.report import write_report


def main(argv: list[str]) -> int:
    """Runs the command line; returns 0 if done, 2 if the request is wrong or the file cannot be written."""
    parser = Parser(prog="python -m tuner.report", description=__doc__)
    parser.add_argument("name", help="the experiment's folder, or its name under --results")
    parser.add_argument("--results", default="results", help="folder of the experiments (default: results)")
    try:
        args = parser.parse_args(argv)
        with blamed(args.name):
            path = write_report(load_named(args.name, args.results))
    except (RequestError, OSError) as error:
        return failed(error)
    say(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
