"""Starts a search from Python, in a script or a notebook: `tuner.search(space, num_samples=20)`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike, fspath
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, overload

from tuner.errors import InterruptedEarly, RequestError, nearest, say
from tuner.errors.one_line import in_one_line
from tuner.spec.experiment import Experiment, Options, Table, values_of, words
from tuner.spec.live import space_of
from tuner.spec.patience import STARTING
from tuner.spec.script import importing, running
from tuner.spec.space import Space
from tuner.spec.spaces import LoadedSpace, find_space
from tuner.tuning.resume.experiment import ResumedExperiment, load_locked, load_resumed
from tuner.tuning.resume.trust import refuse_cluster

if TYPE_CHECKING:
    from ray import tune

    from tuner.tuning.answer.best import BestModel
    from tuner.tuning.answer.result import SearchResult
    from tuner.tuning.requests import Request
    from tuner.tuning.session import Done

AnySpace = Space | str | PathLike[str] | ModuleType
TABLES = get_args(Table)
NAMES = {field.name for field in dataclasses.fields(Options)} - {"space"}  # names of the `options` of `search`
_searching = threading.Lock()  # held while this process searches: Ray and signal handlers are the process's


@overload
def search(
    space: AnySpace | tune.Tuner | None = None,
    *,
    resume: str = "",
    trust: bool = False,
    preflight: bool = True,
    dry_run: Literal[False] = False,
    table: Table = "fit",
    **options: Any,
) -> SearchResult: ...


@overload
def search(
    space: AnySpace | tune.Tuner | None = None,
    *,
    resume: str = "",
    trust: bool = False,
    preflight: bool = True,
    dry_run: Literal[True],
    table: Table = "fit",
    **options: Any,
) -> None: ...


def search(
    space: AnySpace | tune.Tuner | None = None,
    *,
    resume: str = "",
    trust: bool = False,
    preflight: bool = True,
    dry_run: bool = False,
    table: Table = "fit",
    **options: Any,
) -> SearchResult | None:
    """Searches a space as `python -m tuner.run` does; returns the result when the search has ended.

    Ctrl-C ends the search as on the command line: the search's state is saved, and `search` raises KeyboardInterrupt.

    Args:
        space: a Space, a name in search_spaces/, a path to a .py file, or a module with a `space`. A resumed search
            needs none, unless its space was defined in a script or notebook. A script that was written for Ray Tune may
            give its `tune.Tuner`, whose arguments are then the options' defaults.
        resume: the name of the experiment to resume, or "latest".
        trust: with `resume`, run the folder's code even if it has changed or the folder belongs to another user.
        preflight: whether to try a new search's space on one batch before the first trial.
        dry_run: print the plan of the search, do the preflight check, and return None; no trial is run.
        table: how to print the table of trials: "fit", "wide" or "off".
        options: the options of the command line by name, such as `num_samples=20` or `time_budget="30m"`. `point` is
            a list of settings to try first; `stop` maps a metric to the value at which a trial ends.

    Raises:
        RequestError: an option is unknown or wrong, or the search cannot be done. It is raised before the first trial,
            unless only the trials' reports show the error: a metric or a checkpoint is missing.
        KeyboardInterrupt: the search was interrupted; its text says how to resume it.
    """
    with in_python():
        if table not in TABLES:
            raise RequestError(f"table {table!r}: must be one of {', '.join(TABLES)}")
        asked = Asked(resume, trust, preflight, dry_run, table)
        try:
            given, options = _moved(space, options)
            done = _searched(given, asked, _checked(options))
        except KeyboardInterrupt as error:  # from a second Ctrl-C, or from one before or after the trials
            if isinstance(error, InterruptedEarly) or not (asked.begun and asked.begun.folder.exists()):
                raise
            raise KeyboardInterrupt(_interrupted(asked.begun)) from error
    if done is None:
        return None
    if done.exit_code == 130:
        with in_one_line():
            raise KeyboardInterrupt(_interrupted(done.request.experiment))
    from tuner.tuning.answer.result import SearchResult

    return SearchResult(done.request.experiment.folder, done.record.state, done.record)


def load(folder: str | PathLike[str]) -> SearchResult:
    """Reads the result of a search from its folder, such as "results/NAME"; the search may still be running."""
    from tuner.tuning.answer.result import load as load_result

    with in_python():
        return load_result(_path(folder))


def load_best(folder: str | PathLike[str], *, space: AnySpace | None = None, trust: bool = False) -> BestModel:
    """Loads the best model of a search from its folder; see `tuner.tuning.answer.best.load_best`."""
    from tuner.tuning.answer.best import load_best as load_model

    with in_python():
        return load_model(_path(folder), space=space, trust=trust)


def _path(folder: object) -> str:
    if not isinstance(folder, (str, PathLike)):
        what = "result.folder" if hasattr(folder, "folder") else "a path"
        raise RequestError(f'the folder is a {type(folder).__name__}: give {what}, such as "results/NAME"')
    return fspath(folder)


@contextlib.contextmanager
def in_python() -> Iterator[None]:
    """Context manager that shows a mistake in one line, in which options have Python's names: `num_samples`."""
    known = {*NAMES, "space", "resume", "trust", "table"}

    def named(match: re.Match[str]) -> str:
        name = match[1].replace("-", "_")
        return name if name in known else match[0]

    with in_one_line():
        try:
            yield
        except RequestError as error:
            raise RequestError(re.sub(r"--([a-z][a-z-]*)", named, str(error))) from error.__cause__


def _moved(space: AnySpace | tune.Tuner | None, options: dict[str, Any]) -> tuple[AnySpace | None, dict[str, Any]]:
    """Returns the space and options of a search; takes both from a `tune.Tuner`, but `options` take precedence."""
    if inspect.isroutine(space) or isinstance(space, functools.partial):
        name = getattr(getattr(space, "func", space), "__name__", "train")
        raise RequestError(
            f"search({name}, ...): give a space, as search(Space(params={{...}}, train={name}, metric=...), ...), "
            f"or the tune.Tuner of a script that was written for Ray Tune"
        )
    if type(space).__module__ != "ray.tune.tuner":
        return cast("AnySpace | None", space), options
    from tuner.engine.moved import moved

    try:
        own = moved(cast("tune.Tuner", space), options)
    except ValueError as error:  # no Space can be made of what the Tuner declares
        raise RequestError(f"the Tuner: {error}") from None
    say(*(f"NOTE: the Tuner: {note}" for note in own.notes))
    return own.space, own.options | options


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Converts options to the types of Options' fields; raises RequestError for an unknown option."""
    for name in options:
        if name in ("params", "train", "task", "mutable", "callbacks"):
            raise RequestError(
                f"search() has no option {name!r}: it is part of the space: search(Space({name}=..., ...))"
            )
        if name not in NAMES:
            raise RequestError(f"search() has no option {name!r}{nearest(name, NAMES) or f'; it has {_listed()}'}")
    checked = dict(options)
    for name in ("results", "data_dir"):
        if isinstance(checked.get(name), PathLike):
            checked[name] = fspath(checked[name])
    if isinstance(stop := checked.get("stop", {}), Mapping):
        checked |= {"stop": words(stop)} if "stop" in checked else {}
    elif not isinstance(stop, (list, tuple)):
        raise RequestError(f'stop {stop!r}: must map metrics to values, such as stop={{"accuracy": 0.98}}')
    points = checked.get("point", ())
    points = [points] if isinstance(points, Mapping) else points
    if not isinstance(points, (list, tuple)):
        raise RequestError(f'point {points!r}: must be a list of settings, such as point=[{{"lr": 0.01}}]')
    if "point" in checked:
        checked["point"] = tuple(words(each) if isinstance(each, Mapping) else each for each in points)
    return checked


@dataclass
class Asked:
    """The arguments of `search` that are no fields of Options, and the experiment made of the other ones."""

    resume: str
    trust: bool
    preflight: bool
    dry_run: bool
    table: Table
    begun: Experiment | None = None  # None until its options are checked


def _interrupted(experiment: Experiment) -> str:
    more = "" if experiment.results == "results" else f", results={experiment.results!r}"
    return f'interrupted; tuner.search(space, resume="{experiment.name}"{more}) resumes it'


def _listed() -> str:
    return ", ".join(sorted(NAMES))


def _searched(space: AnySpace | None, asked: Asked, options: dict[str, Any]) -> Done | None:
    if file := importing():
        raise RequestError(
            f'{file} calls search() while it is imported for its space; put the call under if __name__ == "__main__":'
        )
    if running():
        raise RequestError("a trial calls search(): call it in the program that searches, not in the trained function")
    if not isinstance(asked.resume, str):
        raise RequestError(f'resume {asked.resume!r}: must be the name of an experiment, or "latest"')
    if space is None and not asked.resume:
        raise RequestError("search() needs a space, or resume=NAME")
    if not asked.dry_run:
        say(STARTING)
    from tuner.engine.local.signals import give_up, in_a_program, signals_to

    with contextlib.ExitStack() as stack:
        if not _searching.acquire(blocking=False):
            raise RequestError("another search() runs in this process: wait for its end, or use another process")
        stack.callback(_searching.release)
        stack.enter_context(in_a_program())
        stack.enter_context(signals_to(give_up))
        return _session(stack, space, asked, options)


def _session(stack: contextlib.ExitStack, space: AnySpace | None, asked: Asked, options: dict[str, Any]) -> Done | None:
    from tuner.tuning import running

    given = space_of(space) if space is not None else None
    earlier = None
    if asked.resume:
        # A Space or module that the caller passes is the caller's own code. A name must be the one that the folder has.
        own = None if space is None or isinstance(space, (str, PathLike)) else given
        wanted = Options(space=given.name if given else "", results=options.get("results", "results"))
        again = partial(load_resumed, wanted, asked.resume, asked.trust, own)
        earlier = again() if asked.dry_run else load_locked(stack, again)
        say(*earlier.code)
        options = options if own or not given else {**options, "space": given.name}
        experiment = Options(**(values_of(earlier.experiment) | options))
        if not (asked.trust or experiment.address == options.get("address", "")):
            refuse_cluster(experiment.folder, experiment.address)
        loaded_space = given or find_space(earlier.space)
    else:
        assert given is not None
        loaded_space, experiment = given, _new(given, options)
    torch = loaded_space.space.task is not None or "torch" in sys.modules
    imports = ("ray.tune", "torch") if torch else ("ray.tune",)

    def requested() -> Request:
        request = _requested(experiment, loaded_space, earlier, asked.table)
        asked.begun = request.experiment
        return request

    checked = asked.preflight and not earlier
    if asked.dry_run:
        running.print_plan(requested, checked)
        return None
    return running.run_session(stack, experiment, imports, requested, new=not earlier, checked=checked)


def _new(given: LoadedSpace, options: dict[str, Any]) -> Options:
    """Returns the options of a new search: options replace the space's, but `point` and `stop` are added to them."""
    from tuner.tuning.requests import defaults_of

    default = defaults_of(given)
    added = {name: getattr(default, name) + options[name] for name in ("point", "stop") if name in options}
    return replace(default, **(options | added))


def _requested(
    experiment: Options, loaded_space: LoadedSpace, earlier: ResumedExperiment | None, table: Table
) -> Request:
    from tuner.tuning import requests

    if earlier:
        return replace(requests.resume(experiment, earlier, loaded_space), table=table)
    request = requests.begin(experiment, loaded_space, [])
    return replace(request, table=table, facts={**request.facts, "command": [sys.executable, *sys.argv]})
