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

from tuner.drive.saved import Saved, saved
from tuner.drive.trust import refuse_cluster
from tuner.errors import RequestError, leave, nearest, say
from tuner.record.lock import only_driver
from tuner.spec.experiment import BEST_RULE, Experiment, option
from tuner.spec.spaces import find_space, list_spaces, mentions_torch

if TYPE_CHECKING:
    from tuner.drive.session import Request

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
    """Runs a new search, or the rest of one; returns the exit code."""
    from tuner.engine.signals import end_family, give_up, signals_to

    try:
        with contextlib.ExitStack() as held:
            held.enter_context(signals_to(give_up))
            return run_within(held, argv, command)
    except KeyboardInterrupt:
        end_family()  # a Ray that has not quite started would stay
        raise


def run_within(held: contextlib.ExitStack, argv: list[str], command: Command) -> int:
    """Does what `run` says; enters into `held` whatever must be ended afterwards.

    Ray starts before this process imports torch, Ray Tune and the space: Ray's processes need a second to start, and
    its workers then import the same modules side by side with this process.
    """
    given = resumed(command)
    experiment = parse(argv, given.experiment).experiment if given else command.experiment
    imports = ("ray.tune", "torch") if mentions_torch(experiment.space) else ("ray.tune",)
    from tuner.drive import driver

    if given and not command.dry_run:
        held.enter_context(only_driver(given.experiment.folder))
        given = resumed(command)  # again: another driver may have extended it until the lock was ours
    if given:
        say(*given.code)
    if not (command.dry_run or experiment.address):
        held.enter_context(driver.ray_here(experiment, imports))
    from tuner.drive import console, session

    request = requested(argv, command, given)
    if command.dry_run:
        say(*console.plan(request))
        return 0
    request = session.load_data(request)
    say(*console.heading(request))
    if experiment.address:
        held.enter_context(driver.ray_at(request.experiment, request.found))
    if not given:
        session.make_folder(request)
        held.enter_context(only_driver(request.experiment.folder))
    held.enter_context(session.stored(request.experiment))
    return search(request)


def search(request: Request) -> int:
    """Searches on the Ray that runs, and prints the answer; returns the exit code."""
    from tuner.drive import console, session
    from tuner.drive.mirroring import mirrored

    journal = session.open_journal(request)
    with mirrored(request.experiment, request.wandb_mode) as mirror:
        done = session.conduct(request, journal)
        mirror.hurry = done.exit_code == 130
        say(*console.ending(done))  # before W&B and Ray take their time to end
    return done.exit_code


def resumed(command: Command) -> Saved | None:
    """The experiment that `--resume` names; None for a new search. RequestError where neither was asked for."""
    if command.resume:
        return saved(command.experiment, command.resume, command.trust)
    if not command.experiment.space:
        raise RequestError("give --space NAME (see --list), or --resume NAME")
    return None


def requested(argv: list[str], command: Command, given: Saved | None, here: bool = True) -> Request:
    """The command line as a checked request, over the space's own defaults or what is resumed.

    Args:
        here: whether the search would run on this machine, or the cluster of `--address`.
    """
    from tuner.drive import session

    if given:
        wanted = parse(argv, given.experiment).experiment
        if not (command.trust or wanted.address == command.experiment.address):
            refuse_cluster(wanted.folder, wanted.address)
        return session.resume(wanted, given, here)
    found = find_space(command.experiment.space)
    return session.begin(parse(argv, session.defaults_of(found)).experiment, found, argv, here)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
