"""The command `python -m tuner.run --space cifar`: checks the options, runs the search, prints the answer.

The module does not import ray or torch at module level, so that `--help` answers in a fraction of a second.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import re
import sys
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from tuner.errors import InterruptedEarly, RequestError, leave, nearest, refuse_repeated, say
from tuner.errors.terminal import SGR
from tuner.spec.experiment import BEST_RULE, Options, Table, option, values_of
from tuner.spec.script_text import options_of
from tuner.spec.spaces import file_of, list_spaces
from tuner.tuning.requests import SearchCall
from tuner.tuning.session import run_search

EXIT_CODES = "0 done, 1 no finite metric, every trial failed or the search gave up, 2 wrong request, 130 interrupted"
EMPTY = re.compile(r"\(default:[\s│|]+(''|False)\)")  # tyro may break it into two lines of its box
BLANK = re.compile(r"\n[│|]?[^\S\n]+\(default: (''|False)\)[^\S\n]*[│|]?(?=\n)")  # a line with nothing else
INTERRUPTED = "interrupted; if a search had started, --resume latest continues it"


@dataclass(frozen=True, kw_only=True)
class Command:
    """Searches the hyperparameters of a PyTorch training on Ray Tune, and saves and tests the best model."""

    experiment: Annotated[Options, tyro.conf.arg(name="")] = field(default_factory=Options)
    resume: str = ""
    """Resume the experiment with this name in --results, or `latest`. A larger --num-samples extends it."""
    list: bool = False
    """List all spaces in search_spaces/, each with the first line of its docstring."""
    dry_run: bool = False
    """Print the plan of the search, check the space, and exit; downloads nothing."""
    no_preflight: bool = False
    """Do not try the space on one batch before a new search starts."""
    trust: bool = False
    """With --resume: run the folder's code and accept its links and cluster, even if changed or another user's."""
    table: Table = "fit"
    """How to print the table of trials: as wide as the terminal, with all columns, or not at all."""


def main(argv: list[str]) -> int:
    """Runs the command line; returns the exit code (see `EXIT_CODES`)."""
    try:
        command = parse(argv)
        if command.list:
            spaces = list_spaces()
            say(*(f"{name:{max(map(len, spaces))}}  {line}" for name, line in spaces.items()))
            return 0
        return run(call_of(argv, command))
    except KeyboardInterrupt as error:
        say("", str(error if isinstance(error, InterruptedEarly) else INTERRUPTED), to=sys.stderr)
        return 130
    except RequestError as error:
        say(f"tuner: error: {error}", to=sys.stderr)
        return 2


def parse(argv: list[str]) -> Command:
    """Parses the command line; raises tyro's error as a RequestError of one line."""
    refuse_repeated(argv, repeatable=("--point", "--stop"))
    stderr, printed = io.StringIO(), io.TextIOWrapper(io.BytesIO(), encoding=sys.stdout.encoding)
    try:
        with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(printed):
            command = tyro.cli(
                Command,
                prog="python -m tuner.run",
                args=argv,
                description=f"{Command.__doc__}\n\nThe answer: {BEST_RULE}. Exit codes: {EXIT_CODES}.",
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.UseAppendAction),
            )
    except SystemExit as ended:
        if not ended.code:
            raise
        # tyro prints the error as the first paragraph in a box, drawn in ASCII if the terminal has no other characters.
        lines = [line.strip(" │|╭╮╰╯─+-") for line in SGR.sub("", stderr.getvalue()).splitlines()[1:]]
        text = " ".join(itertools.takewhile(bool, itertools.dropwhile(lambda line: not line, lines)))
        raise RequestError(of_the_script(text, argv) or f"{in_words(text)} (see --help)") from None
    finally:
        printed.seek(0)
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.write(without_empty_defaults(printed.read()))
    if () in command.experiment.point:
        raise RequestError("--point: needs values; write it as --point name=value, such as --point lr=0.01")
    return command


def call_of(argv: list[str], command: Command) -> SearchCall:
    """Returns what the command line asks for; raises RequestError without `--space` and `--resume`."""
    if not (command.experiment.space or command.resume):
        raise RequestError("give --space NAME (see --list), or --resume NAME")
    names = {word.partition("=")[0].replace("_", "-") for word in argv if word.startswith("--")}
    return SearchCall(
        given={name: value for name, value in values_of(command.experiment).items() if option(name) in names},
        resume=command.resume,
        trust=command.trust,
        preflight=not command.no_preflight,
        dry_run=command.dry_run,
        table=command.table,
        command=[sys.executable, "-m", "tuner.run", *argv],
    )


def without_empty_defaults(text: str) -> str:
    """Returns the help without `(default: '')` and `(default: False)`, which say nothing, and without colours."""
    return EMPTY.sub(lambda match: re.sub(r"[^\s│|]", " ", match[0]), BLANK.sub("", SGR.sub("", text)))


def in_words(text: str) -> str:
    """Rewords an error of tyro: what was given, what is allowed; returns an unknown error as it is."""
    known = [option(field.name) for each in (Options, Command) for field in dataclasses.fields(each)]
    if match := re.match(r"invalid choice '(.*)' for argument '(--\S+)'. Expected one of \((.*)\)", text):
        choices = re.findall(r"'([^']*)'", match[3])
        return f"{match[2]} {match[1]}: must be one of {', '.join(choices)}{nearest(match[1], choices)}"
    if match := re.match(r"Missing value for argument '(--\S+)'", text):
        return f"{match[1]}: needs a value"
    if match := re.match(r"Unrecognized options: ([^\s,]+)", text):
        word = match[1]
        if not word.startswith("-"):
            return f"{word}: no option before it takes this word; write a value with spaces in quotes"
        hint = nearest(word, known) if len(word) > len("--lr") else ""
        return f"{word}: is no option{hint or '; values of parameters belong in the params of the space'}"
    if match := re.match(r"Error parsing (--\S+): no type matching FLOAT\|\{(\w+)\}.*\['(.*)'\]", text):
        return f"{match[1]} {match[3]}: must be a number or {match[2]}"
    if match := re.match(r"Error parsing (--\S+): (invalid literal for int|could not convert).*?: '(.*)'$", text):
        return f"{match[1]} {match[3]}: must be a {'whole ' if match[2].endswith('int') else ''}number"
    return text


def of_the_script(text: str, argv: list[str]) -> str:
    """What to do about an unknown option that the script of `--space` has; empty for any other error."""
    match = re.match(r"Unrecognized options: (--?)([^\s,=]+)", text)
    path = next((value for flag, value in itertools.pairwise(argv) if flag == "--space"), "")
    file = file_of(path) if match and path else None
    if not match or file is None:
        return ""
    name = match[2].replace("-", "_")
    if name not in options_of(file.read_text(encoding="utf-8", errors="replace")):
        return ""
    constant = f'script({{"{name}": ..., ...}})'
    return f"{match[1]}{match[2]} is an option of {file.name}, not of this command: give it as a constant, {constant}"


def run(call: SearchCall) -> int:
    """Runs a new search, or resumes one; returns the exit code."""
    try:
        result = run_search(call)
        return result.exit_code if result else 0
    except KeyboardInterrupt:
        from tuner.engine.local.signals import end_family

        end_family()  # else the processes of a Ray that was still starting would stay
        raise


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
