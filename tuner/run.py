"""The command `python -m tuner.run --space cifar`: checks the options, runs the search, prints the answer.

The module does not import ray or torch at module level, so that `--help` answers in a fraction of a second.
"""

from __future__ import annotations

import tuner

if __name__ == "__main__":
    tuner.end_at_interrupt()  # before the imports below, which take long

# isort: split
import argparse
import contextlib
import itertools
import re
import sys
from dataclasses import dataclass
from typing import Any

from tuner.errors import InterruptedEarly, Parser, RequestError, failed, leave, open_streams, say
from tuner.errors.users_code import place_raised
from tuner.spec.command import ADDED, name_of, split_words
from tuner.spec.experiment import BEST_RULE, Options, Table, values_of
from tuner.spec.option_values import (
    CHECKS,
    GROUPS,
    MOST_USED,
    OUTPUT,
    SETTINGS,
    allowed_in,
    helps_of,
    option,
    row,
    rows_of,
)
from tuner.spec.script_text import options_of
from tuner.spec.spaces import file_of, list_spaces
from tuner.tuning.call import SearchCall
from tuner.tuning.session import run_search

EXIT_CODES = "0 done, 1 no finite metric, every trial failed or the search gave up, 2 wrong request, 130 interrupted"
EXAMPLE = "--param 'lr=uniform(0, 1)' -- python train.py --lr {lr}"
INTERRUPTED = "interrupted; if a search had started, --resume latest continues it"


@dataclass(frozen=True, kw_only=True)
class Command(Options):
    """Searches the hyperparameters of a PyTorch training on Ray Tune, and saves and tests the best model."""

    resume: str = row("", MOST_USED)
    """Resume the experiment with this name in --results, or this folder, or `latest`; --num-samples can extend it."""
    param: tuple[str, ...] = row((), SETTINGS, metavar="NAME=DOMAIN")
    """Searched parameter of the command after --: 'lr=loguniform(1e-5, 1e-1)' fills in its {lr}."""
    report: str = row("", SETTINGS)
    """Regular expression for the reports in a command's output, with a group for each metric: 'loss=(?P<loss>\\S+)'"""
    words: str = row(ADDED, SETTINGS)
    """Template for a parameter that is not named in braces in the command."""
    dry_run: bool = row(False, MOST_USED)
    """Print the plan of the search, check the space, and exit; downloads nothing."""
    list: bool = row(False, CHECKS)
    """List all spaces in search_spaces/, each with the first line of its docstring."""
    no_preflight: bool = row(False, CHECKS)
    """Do not try the space on one batch before a new search starts."""
    trust: bool = row(False, CHECKS)
    """With --resume: run the folder's code, accept its links, cluster and data folder, even if another user's."""
    table: Table = row("fit", OUTPUT)
    """How to print the table of trials: as wide as the terminal, with all columns, or not at all."""


def main(argv: list[str]) -> int:
    """Runs the command line; returns the exit code (see `EXIT_CODES`)."""
    try:
        given = parse(argv)
        if "list" in given:
            spaces = list_spaces()
            say(*(f"{name:{max(map(len, spaces))}}  {line}" for name, line in spaces.items()))
            return 0
        return run(call_of(argv, given))
    except KeyboardInterrupt as error:
        say("", str(error if isinstance(error, InterruptedEarly) else INTERRUPTED), to=sys.stderr)
        return 130
    except RequestError as error:
        return failed(error)
    except (ImportError, MemoryError) as error:  # of Ray, torch, or the search itself
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
        is_short = isinstance(error, MemoryError) or re.search("map segment|allocate memory", text)
        advice = "memory ran out: free some, or allow more by `ulimit -v`" if is_short else "reinstall what it names"
        return failed(RequestError(f"{text}{place_raised(error)}; {advice}"))


def parse(argv: list[str]) -> dict[str, Any]:
    """Returns the fields of `Command` that a command line sets; RequestError for unknown or misused options."""
    about = f"The answer: {BEST_RULE}. Exit codes: {EXIT_CODES}."
    usage = "python -m tuner.run [-h] [OPTIONS]"
    parser = Parser(usage=usage, description=Command.__doc__, epilog=about)
    groups, helps = {each: parser.add_argument_group(each) for each in GROUPS}, helps_of(Command)
    for name, each in rows_of(Command).items():
        _add_option(groups[each.group], name, each.metavar, helps[name])
    argv, has_command, command = split_words(argv)
    given, unknown = parser.parse_known_args(argv)
    if unknown:
        hint = "; values of parameters belong in the params of the space"
        raise RequestError(of_the_script(unknown[0], argv) or parser.unknown(unknown, hint))
    is_for_command = has_command or not {"param", "report", "words"}.isdisjoint(vars(given))
    return with_command(vars(given), command) if is_for_command else vars(given)


def with_command(given: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """Returns options in which a command, given after `--`, is the space."""
    params, report, added = (given.pop(name, getattr(Command, name)) for name in ("param", "report", "words"))
    if "space" in given:
        raise RequestError(
            f"--space {given['space']}: not allowed with --, --param, --report or --words; leave one out"
        )
    if not (words and params):
        raise RequestError(f"a command needs --param NAME=DOMAIN, and words after --, as in: {EXAMPLE}")
    return {**given, "space": name_of(params, report, added, words)}


def _add_option(group: Any, name: str, metavar: str, about: str) -> None:
    allowed, default = allowed_in(Command)[name], getattr(Command, name)
    classes = [each for each in allowed if isinstance(each, type)]
    choices = ",".join(each for each in allowed if isinstance(each, str))
    shape = "|".join([*(each.__name__.upper() for each in classes), *([f"{{{choices}}}"] if choices else [])])
    how: dict[str, Any] = {"metavar": shape, "type": lambda text: _typed(text, classes)}
    if bool in classes:
        how = {"action": "store_true"}
    elif tuple in classes:
        how = {"action": "append" if name == "point" else "extend", "nargs": "+"}
        how["metavar"] = metavar or "NAME=VALUE"
    about += "" if default in ("", ()) or default is False else f" (default: {default})"
    group.add_argument(option(name), default=argparse.SUPPRESS, help=about.replace("%", "%%"), **how)


def _typed(text: str, classes: list[type]) -> Any:
    """Converts an option's text to a number if the option takes numbers and the text is one; else returns the text."""
    for kind in (each for each in classes if each in (int, float)):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def call_of(argv: list[str], given: dict[str, Any]) -> SearchCall:
    """Returns the request for a search; RequestError for a wrong value, or if `given` has neither space nor resume."""
    command = Command(**given)
    if not (command.space or command.resume):
        raise RequestError("give --space NAME (see --list), or --resume NAME")
    return SearchCall(
        given={name: value for name, value in values_of(command).items() if name in given},
        resume=command.resume,
        trust=command.trust,
        preflight=not command.no_preflight,
        dry_run=command.dry_run,
        table=command.table,
        command=[sys.executable, "-m", "tuner.run", *argv],
    )


def of_the_script(word: str, argv: list[str]) -> str:
    """Returns advice on an unknown option that belongs to the script that --space names; empty for any other word."""
    flag, path = word.partition("=")[0], next((v for name, v in itertools.pairwise(argv) if name == "--space"), "")
    file, name = file_of(path) if path else None, flag.lstrip("-").replace("-", "_")
    if flag == name or not file or name not in options_of(file.read_text(encoding="utf-8", errors="replace")):
        return ""
    constant = f'script({{"{name}": ..., ...}})'
    return f"{flag} is an option of {file.name}, not of this command: give it as a constant, {constant}"


def run(call: SearchCall) -> int:
    try:
        result = run_search(call)
        return result.exit_code if result else 0
    except BaseException as error:
        from tuner.engine.local.signals import abandoned, end_family

        if not (isinstance(error, KeyboardInterrupt) or abandoned):
            raise
        end_family()  # else, if Ray was still starting, its processes would keep running
        if not isinstance(error, KeyboardInterrupt):  # an import has turned the interrupt into another error
            raise KeyboardInterrupt from error
        raise


if __name__ == "__main__":
    open_streams()
    leave(main(sys.argv[1:]))
