"""The command line: `python -m tuner.run --space cifar`. Parses, checks, runs the search, prints the answer.

Neither ray nor torch is imported at module level: `--help` answers in a fraction of a second.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import tyro

from tuner.errors import RequestError, nearest, say
from tuner.experiment import BEST_RULE, Experiment, option
from tuner.space import find_space, list_spaces
from tuner.trust import refuse_cluster

if TYPE_CHECKING:
    from tuner.session import Request

EXIT_CODES = "0 done, 1 no trial had a finite metric, 2 wrong request, 130 interrupted"


@dataclass(frozen=True, kw_only=True)
class Command:
    """Searches the hyperparameters of a PyTorch training on Ray Tune and leaves a tested best model."""

    experiment: Annotated[Experiment, tyro.conf.arg(name="")] = field(default_factory=Experiment)
    resume: str = ""
    """go on with this experiment of --results, or with the latest; more --num-samples extends it"""
    list: bool = False
    """every space of search_spaces/ and its first line"""
    dry_run: bool = False
    """print the plan and stop"""
    trust: bool = False
    """with --resume: run the code that the folder names, even if it has changed or the folder is another user's"""


def main(argv: list[str]) -> int:
    """Runs the command line; returns the exit code of the contract (0, 1, 2 or 130)."""
    try:
        command = parse(argv, Experiment())
        if command.list:
            return print_spaces()
        return run(argv, command)
    except KeyboardInterrupt:
        print("\ninterrupted; a search that had begun is kept: --resume latest", file=sys.stderr)
        return 130
    except RequestError as error:
        print(f"tuner: error: {error}", file=sys.stderr)
        return 2


def parse(argv: list[str], default: Experiment) -> Command:
    """The command line over the given defaults; RequestError, in one line, for what tyro refuses."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                Command,
                prog="python -m tuner.run",
                args=argv,
                default=Command(experiment=default),
                description=f"{Command.__doc__}\n\nOf the answer: {BEST_RULE}. Exit codes: {EXIT_CODES}.",
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except SystemExit as ended:
        if not ended.code:
            raise
        # tyro draws a box (of ASCII where the terminal has no more); its first paragraph says what is wrong.
        lines = [line.strip(" │|╭╮╰╯─+-") for line in said.getvalue().splitlines()[1:]]
        text = " ".join(itertools.takewhile(bool, itertools.dropwhile(lambda line: not line, lines)))
        known = [option(field.name) for field in dataclasses.fields(Experiment)]
        unknown = [word for word in argv if word.startswith("--") and word.partition("=")[0] not in known]
        hint = nearest(unknown[0], known) if unknown else ""
        raise RequestError(f"{text}{hint} (see --help)") from None


def print_spaces() -> int:
    """`--list`"""
    spaces = list_spaces()
    width = max(map(len, spaces), default=0)
    for name, line in spaces.items():
        say(f"{name:{width}}  {line}")
    return 0


def run(argv: list[str], command: Command) -> int:
    """A new search, or the rest of one."""
    from tuner import console, session
    from tuner.resume.lock import only_driver

    with contextlib.ExitStack() as held:
        if command.resume:
            given = session.saved(command.experiment, command.resume, command.trust)
            if not command.dry_run:
                held.enter_context(only_driver(given.experiment.folder))
            say(*given.code)
        request = requested(argv, command)
        if command.dry_run:
            say(*console.plan(request))
            return 0
        request = session.load_data(request)
        say(*console.heading(request))
        if not command.resume:
            session.make_folder(request)
            held.enter_context(only_driver(request.experiment.folder))
        held.enter_context(session.stored(request.experiment))
        return search(request)


def search(request: Request) -> int:
    """Runs a request whose folder is held, and prints its answer."""
    from tuner import console, driver, session
    from tuner.engine.signals import end_family, give_up, signals_to
    from tuner.wandb_mirror import mirrored

    journal = session.open_journal(request)
    # A task's workers need torch, and torch's optimisers torch._dynamo: 3 s of imports, begun early.
    imports = ("ray.tune", "torch", "torch._dynamo") if request.splits else ("ray.tune",)
    started = driver.ray_started(request.experiment, request.found, request.resources, imports)
    try:
        with signals_to(give_up), mirrored(request.experiment, request.wandb_mode) as mirror, started as nodes:
            done = session.conduct(request, journal, nodes)
            mirror.hurry = done.exit_code == 130
            say(*console.ending(done))  # before Ray and W&B take their seconds to end
    except KeyboardInterrupt:
        end_family()  # of a Ray that had not quite started, nobody else would
        raise
    return done.exit_code


def requested(argv: list[str], command: Command, here: bool = True) -> Request:
    """The command line as a checked request, over the space's own defaults or what is resumed.

    Args:
        here: whether the search would run on this machine, or the cluster of `--address`.
    """
    if not (command.experiment.space or command.resume):
        raise RequestError("give --space NAME (see --list), or --resume NAME")
    from tuner import driver  # noqa: F401  (before the space: it sets what ray reads when it is imported)
    from tuner import session  # isort: skip

    if command.resume:
        given = session.saved(command.experiment, command.resume, command.trust)
        wanted = parse(argv, given.experiment).experiment
        if not (command.trust or wanted.address == command.experiment.address):
            refuse_cluster(wanted.folder, wanted.address)
        return session.resume(wanted, given, here)
    found = find_space(command.experiment.space)
    return session.begin(parse(argv, session.defaults_of(found)).experiment, found, argv, here)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
