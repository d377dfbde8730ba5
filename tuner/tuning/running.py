"""Runs one session of a search from the start of Ray to the printed answer, for the command line and for Python.

Without --address, Ray starts before the command imports torch, Ray Tune and the space. Ray's processes take a second
to start, and its workers then import the same modules at the same time. Hence the imports inside the functions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tuner.errors import InterruptedEarly, say
from tuner.record.storage.lock import only_driver
from tuner.spec.experiment import Options
from tuner.spec.patience import patience
from tuner.tuning import driver

if TYPE_CHECKING:
    from tuner.tuning.requests import Request
    from tuner.tuning.session import Done


def print_plan(requested: Callable[[], Request], checked: bool) -> None:
    """Prints the plan of the search that `requested` returns; if `checked`, also checks the space."""
    from tuner.tuning.checks import preflight
    from tuner.tuning.output import console

    request = requested()
    say(*console.plan(request), *([f"preflight   {preflight.rehearse(request)}"] if checked else []))


def run_session(
    stack: contextlib.ExitStack,
    experiment: Options,
    imports: Sequence[str],
    requested: Callable[[], Request],
    *,
    new: bool,
    checked: bool,
) -> Done:
    """Starts Ray, checks the request, runs the search and prints the answer.

    Args:
        stack: gets the context of everything that the caller must end afterwards, such as Ray.
        experiment: the options that Ray's start depends on.
        imports: modules that this process and the workers import while Ray starts.
        requested: returns the checked request; called after Ray has started on this machine.
        checked: whether to try the space on one batch before the first trial.
        new: whether to create the experiment's folder. The caller has locked the folder of a resumed one.
    """
    if not experiment.address:
        stack.enter_context(driver.ray_here(experiment, imports))
    from tuner.tuning import session
    from tuner.tuning.checks import preflight
    from tuner.tuning.checks.data import load_data
    from tuner.tuning.output import console

    try:
        request = requested()
        with patience("reading the space's data"):
            request = load_data(request)
        if checked:
            preflight.check(request)
    except InterruptedEarly:
        raise
    except KeyboardInterrupt:
        if not new:
            raise
        raise InterruptedEarly("interrupted before the first trial; no folder was made") from None
    say(*console.heading(request))
    if experiment.address:
        stack.enter_context(driver.ray_at(request.experiment, request.loaded_space))
    if new:
        session.make_folder(request)
        stack.enter_context(only_driver(request.experiment.folder))
    stack.enter_context(session.stored(request.experiment))
    return search_and_print(request)


def search_and_print(request: Request) -> Done:
    """Runs the search on the started Ray and prints the answer."""
    from tuner.tuning import session
    from tuner.tuning.output import console
    from tuner.tuning.output.mirroring import mirrored

    journal = session.open_journal(request)
    with mirrored(request.experiment, request.wandb_mode) as mirror:
        done = session.conduct(request, journal)
        mirror.hurry = done.exit_code == 130
        say(*console.ending(done))  # printed before W&B and Ray end, which takes some time
    return done
