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
from typing import Annotated, Any, TextIO, cast

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
            return print_spaces()
        return run(call_of(argv, command))
    except KeyboardInterrupt as error:
        say("", str(error if isinstance(error, InterruptedEarly) else INTERRUPTED), to=sys.stderr)
        return 130
    except RequestError as error:
        say(f"tuner: error: {error}", to=sys.stderr)
        return 2


def parse(argv: list[str]) -> Command:
    """Parses the command line. Raises tyro's error as a one-line RequestError."""
    refuse_repeated(argv, repeatable=("--point", "--stop"))
    stderr, shown = io.StringIO(), WithoutEmptyDefaults(sys.stdout)
    try:
        with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(cast(TextIO, shown)):
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
        printed = SGR.sub("", stderr.getvalue())  # tyro colours it if stdout is a terminal
        lines = [line.strip(" │|╭╮╰╯─+-") for line in printed.splitlines()[1:]]
        text = " ".join(itertools.takewhile(bool, itertools.dropwhile(lambda line: not line, lines)))
        raise RequestError(of_the_script(text, argv) or f"{in_words(text)} (see --help)") from None
    finally:
        shown.show()
    if () in command.experiment.point:
        raise RequestError("--point: needs values; write it as --point name=value, such as --point lr=0.01")
    return command


def call_of(argv: list[str], command: Command) -> SearchCall:
    """Returns what the command line asks for, with the options that it gives.

    Raises:
        RequestError: neither `--space` nor `--resume` is given.
    """
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


class WithoutEmptyDefaults:
    """Collects the help, and writes it without `(default: '')` and `(default: False)`, which say nothing."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._text = stream, ""

    def write(self, text: str) -> int:
        """Keeps the text, because tyro may break a default into two lines."""
        self._text += text
        return len(text)

    def show(self) -> None:
        """Writes the text without tyro's colours, which ignore NO_COLOR; drops what a closed pipe no longer takes."""
        text = EMPTY.sub(lambda match: re.sub(r"[^\s│|]", " ", match[0]), BLANK.sub("", SGR.sub("", self._text)))
        with contextlib.suppress(BrokenPipeError):
            self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)  # tyro asks for the stream's encoding and `isatty`


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
    match = re.match(r"Error parsing (--\S+): no type matching FLOAT\|\{(\w+)\}.*\['(.*)'\]", text)
    if match:
        return f"{match[1]} {match[3]}: must be a number or {match[2]}"
    match = re.match(r"Error parsing (--\S+): (invalid literal for int|could not convert).*?: '(.*)'$", text)
    if not match:
        return text
    return f"{match[1]} {match[3]}: must be a {'whole ' if match[2].endswith('int') else ''}number"


def of_the_script(text: str, argv: list[str]) -> str:
    """What to do about an unknown option that the script of `--space` has; empty for any other error."""
    match = re.match(r"Unrecognized options: (--?)([^\s,=]+)", text)
    path = next((value for flag, value in itertools.pairwise(argv) if flag == "--space"), "")
    file = file_of(path) if match and path else None
    name = match[2].replace("-", "_") if match else ""
    if not match or file is None or name not in options_of(file.read_text(encoding="utf-8", errors="replace")):
        return ""
    return (
        f"{match[1]}{match[2]} is an option of {file.name}, not of this command: give it as a constant, "
        f'script({{"{name}": ..., ...}})'
    )


def print_spaces() -> int:
    """Runs `--list`: prints each space in search_spaces/ with the first line of its docstring."""
    spaces = list_spaces()
    width = max(map(len, spaces), default=0)
    for name, line in spaces.items():
        say(f"{name:{width}}  {line}")
    return 0


def run(call: SearchCall) -> int:
    """Runs a new search, or resumes one; returns the exit code."""
    try:
        done = run_search(call)
        return done.exit_code if done else 0
    except KeyboardInterrupt:
        from tuner.engine.local.signals import end_family

        end_family()  # else the processes of a Ray that was still starting would stay
        raise


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
