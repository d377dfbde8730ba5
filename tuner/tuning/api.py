"""Starts a search from Python, in a script or a notebook: `tuner.search(space, num_samples=20)`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import sys
import threading
from collections.abc import Iterator, Mapping
from os import PathLike, fspath
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args, overload

from tuner.errors import InterruptedEarly, RequestError, nearest, say
from tuner.errors.one_line import in_one_line
from tuner.record.texts import resume_call
from tuner.spec.constraints import written
from tuner.spec.domains import metric_words, words
from tuner.spec.experiment import Options, Table, with_fields
from tuner.spec.script import importing, running
from tuner.spec.space import Space
from tuner.spec.space_objects import space_of, variable_of
from tuner.tuning.call import SearchCall
from tuner.tuning.session import run_search

if TYPE_CHECKING:
    from ray import tune

    from tuner.tuning.answer.best import BestModel
    from tuner.tuning.answer.result import SearchResult

    Searchable: TypeAlias = "AnySpace | tune.Tuner | None"

AnySpace = Space | str | PathLike[str] | ModuleType
NAMES = {field.name for field in dataclasses.fields(Options)} - {"space"}  # the option names that `search` takes
_searching = threading.Lock()  # held by the running search, because Ray and signal handlers exist once per process


@overload
def search(space: Searchable = None, *, dry_run: Literal[False] = False, **options: Any) -> SearchResult: ...


@overload
def search(space: Searchable = None, *, dry_run: Literal[True], **options: Any) -> None: ...


def search(
    space: Searchable = None,
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
            pass its `tune.Tuner`, which then declares the space and the options' defaults.
        resume: the name or the folder of the experiment to resume, or "latest".
        trust: with `resume`, run the folder's code and accept its links and cluster, even if changed or another user's.
        preflight: whether to check a new search's space before the first trial; a Task is tried on single batches.
        dry_run: print the plan of the search, do the preflight check, and return None; no trial is run.
        table: how to print the table of trials: "fit", "wide" or "off".
        options: the options of the command line by name, such as `num_samples=20` or `time_budget="30m"`. `point` is
            a list of settings to try first; `stop` maps a metric to the value at which a trial ends; `constraint` maps
            a metric to its limit, such as `{"size_mb": "<= 10"}`; `prior` maps parameters to guesses; `start_from` is
            an experiment, a best/config.json or a table of settings (.csv), or a list of these.

    Raises:
        RequestError: an option is unknown or wrong, or the search cannot be done. It is raised before the first trial.
            If reports lack the metric or a checkpoint, or a result file cannot be written, it is raised later.
        KeyboardInterrupt: the search was interrupted; once its folder exists, the text says how to resume it.
    """
    with in_python():
        if table not in get_args(Table):
            raise RequestError(f"table {table!r}: must be one of {', '.join(get_args(Table))}")
        given, options = _space_and_options(space, options)
        if not isinstance(resume, str):
            raise RequestError(f'resume {resume!r}: must be the name of an experiment, or "latest"')
        command = [sys.executable, *sys.argv]
        call = SearchCall(_checked(options), None, resume, trust, preflight, dry_run, table, command)
        try:
            result = _searched(given, call, "" if given is space else variable_of(space, sys.modules["__main__"]) or "")
            if result and result.state == "interrupted":
                raise KeyboardInterrupt
            return result
        except KeyboardInterrupt as error:  # also if Ctrl-C was pressed twice, or before or after the trials
            if isinstance(error, InterruptedEarly) or not (call.begun and call.begun.folder.exists()):
                raise
            raise KeyboardInterrupt(f"interrupted; {resume_call(call.begun)} resumes it") from error


def load(folder: str | PathLike[str]) -> SearchResult:
    """Reads the result of a search from its folder, such as "results/NAME"; the search may still be running."""
    from tuner.tuning.answer.result import load as load_result

    with in_python():
        return load_result(_path(folder))


def load_best(
    folder: str | PathLike[str], *, space: AnySpace | None = None, trust: bool = False, point: int = 0
) -> BestModel:
    """Loads the best model of a search from its folder; see `tuner.tuning.answer.best.load_best`."""
    from tuner.tuning.answer.best import load_best as load_model

    with in_python():
        return load_model(_path(folder), space=space, trust=trust, point=point)


def _path(folder: object) -> str:
    if not isinstance(folder, (str, PathLike)):
        what = "result.folder" if hasattr(folder, "folder") else "a path"
        raise RequestError(f'the folder is a {type(folder).__name__}: give {what}, such as "results/NAME"')
    return fspath(folder)


@contextlib.contextmanager
def in_python() -> Iterator[None]:
    """Shows a user's mistake as one line, which names options as in Python: `num_samples`, not `--num-samples`."""
    with in_one_line():
        try:
            yield
        except RequestError as error:
            raise RequestError(with_fields(str(error))) from error.__cause__


def _space_and_options(space: Searchable, options: dict[str, Any]) -> tuple[AnySpace | None, dict[str, Any]]:
    """Returns the space and options, read from `space` if it is a `tune.Tuner`; `options` override the Tuner's."""
    if inspect.isroutine(space) or isinstance(space, functools.partial):
        name = getattr(getattr(space, "func", space), "__name__", "train")
        raise RequestError(
            f"search({name}, ...): give a space, as search(Space(params={{...}}, train={name}, metric=...), ...), "
            f"or the tune.Tuner of a script that was written for Ray Tune"
        )
    if type(space).__module__ != "ray.tune.tuner":
        return cast("AnySpace | None", space), options
    from tuner.engine.moved import read_tuner

    try:
        own = read_tuner(cast("tune.Tuner", space), options)
    except ValueError as error:  # the Tuner declares something that a Space cannot express
        raise RequestError(f"the Tuner: {error}") from None
    say(*(f"NOTE: the Tuner: {note}" for note in own.notes))
    return own.space, own.options | options


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Converts options to Options' types; RequestError for an unknown option, or a wrong type of `stop` or `point`."""
    for name in [name for name in options if name not in NAMES]:
        hint = nearest(name, NAMES) or f"; it has {', '.join(sorted(NAMES))}"
        if name in ("params", "train", "task", "mutable", "callbacks"):
            hint = f": it is part of the space: search(Space({name}=..., ...))"
        raise RequestError(f"search() has no option {name!r}{hint}")
    checked = {name: fspath(value) if isinstance(value, PathLike) else value for name, value in options.items()}
    if isinstance(checked.get("prior"), Mapping):
        checked["prior"] = words(checked["prior"])
    if isinstance(checked.get("constraint"), Mapping):
        checked["constraint"] = written(checked["constraint"])
    if isinstance(checked.get("constraint"), str):
        checked["constraint"] = (checked["constraint"],)
    if "stop" in checked:
        stop = checked["stop"]
        if not isinstance(stop, (Mapping, list, tuple)):
            raise RequestError(f'stop {stop!r}: must map metrics to values, such as stop={{"accuracy": 0.98}}')
        checked["stop"] = metric_words(stop) if isinstance(stop, Mapping) else stop
    if "start_from" in checked:
        sources = checked["start_from"]
        sources = sources if isinstance(sources, (list, tuple)) else [sources]
        checked["start_from"] = tuple(fspath(each) if isinstance(each, PathLike) else each for each in sources)
    if "point" in checked:
        points = [checked["point"]] if isinstance(checked["point"], Mapping) else checked["point"]
        if not isinstance(points, (list, tuple)):
            raise RequestError(f'point {points!r}: must be a list of settings, such as point=[{{"lr": 0.01}}]')
        checked["point"] = tuple(words(each) if isinstance(each, Mapping) else each for each in points)
    return checked


def _searched(space: AnySpace | None, call: SearchCall, variable: str) -> SearchResult | None:
    if file := importing():
        raise RequestError(
            f'{file} calls search() while it is imported for its space; put the call under if __name__ == "__main__":'
        )
    if running():
        raise RequestError("a trial calls search(): call it in the program that searches, not in the trained function")
    if isinstance(space, (str, PathLike)):
        call.given["space"] = fspath(space)
    elif space is not None:
        call.space = space_of(space, variable)
    elif not call.resume:
        raise RequestError("search() needs a space, or resume=NAME")
    from tuner.engine.local.signals import in_a_program

    if not _searching.acquire(blocking=False):
        raise RequestError("another search() runs in this process: wait for its end, or use another process")
    try:
        with in_a_program():
            return run_search(call)
    finally:
        _searching.release()
