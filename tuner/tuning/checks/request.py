"""Checks a request to run a search, new or resumed, and then reads its data; joins no cluster."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.engine.cluster.joining import check_head
from tuner.engine.local.alone import local_cluster
from tuner.errors import RequestError, nearest
from tuner.errors.users_code import place_of, place_raised
from tuner.record.events import Event
from tuner.record.reading import Scan, scan
from tuner.record.report_keys import USAGE
from tuner.record.saved_experiment import BEGUN, damaged_experiment
from tuner.record.storage.object_store import ObjectStore
from tuner.spec import domains
from tuner.spec.auto import SpaceTraits, as_before, choose
from tuner.spec.experiment import (
    EXTENDABLE,
    LATEST,
    Experiment,
    Options,
    fixed_epochs,
    is_uri,
    local_root,
    option,
    values_of,
)
from tuner.spec.facts import facts_of, space_facts
from tuner.spec.resources import resources_of
from tuner.spec.space import Space
from tuner.spec.space_objects import saves_checkpoints
from tuner.spec.spaces import LoadedSpace, find_space, metric_option, with_place
from tuner.training.data import DataError
from tuner.tuning.checks.advice import advice_on
from tuner.tuning.output.wandb_mirror import wandb_mode
from tuner.tuning.requests import Request, SearchCall, options_over
from tuner.tuning.resume.experiment import ResumedExperiment
from tuner.tuning.scheduling.population_scheduler import check_scheduler
from tuner.tuning.scheduling.scheduler import EPOCH
from tuner.tuning.searchers.named import check_searcher, usable
from tuner.tuning.searchers.sampling import grid_size

logger = logging.getLogger(__name__)


def checked(call: SearchCall, resumed: ResumedExperiment | None, here: bool = True) -> Request:
    """Loads the space and checks the request; the experiment then names its searcher and its scheduler.

    If the search runs from `here` and without --address, a trial must fit on this machine. Raises a RequestError if
    the space cannot be loaded, or the request cannot be done.
    """
    history: list[Event] = []
    if resumed:
        experiment, loaded_space, facts = _resumed(options_over(resumed.experiment, call.given), resumed, call.space)
        history = journaled_events(experiment.folder, begun=bool(facts.get(BEGUN)))
    else:
        loaded_space = call.space or find_space(call.given["space"])
        options = options_over(loaded_space.options, call.given)
        experiment, why = _new(options, loaded_space)
        facts = facts_of(loaded_space, call.command) | ({"auto": why} if why else {})
    space = loaded_space.space
    _check_names(experiment, loaded_space)
    if space.task is None and experiment.strategy != "single":
        what = f"needs a Space(task=...), but {loaded_space.name} is a Space(train=...); leave it out"
        raise RequestError(f"--strategy {experiment.strategy}: {what}")
    if space.task is not None and space.task.compile and experiment.strategy == "dp":
        raise RequestError("--strategy dp: does not work with Task(compile=True); give --strategy ddp")
    if experiment.address:
        check_head(experiment.address)
    check_searcher(experiment, space)
    check_scheduler(experiment, space)
    _check_writable(local_root(experiment.results))
    resources = resources_of(experiment, [local_cluster()]) if here and not experiment.address else None
    return Request(experiment, loaded_space, facts, history, resources, wandb_mode(experiment.wandb))


def load_data(request: Request) -> Request:
    """Reads, decodes and splits a request's data; RequestError if data is missing or the data function fails."""
    task, experiment = request.loaded_space.space.task, request.experiment
    if task is None:
        return request
    from tuner.training.sources import UnsuitableData, splits_of

    function, folder = f"--space {experiment.space}: its data function", experiment.data_dir
    try:
        splits = splits_of(task, folder, experiment.seed)
    except UnsuitableData as error:
        place = place_raised(error.__cause__ and error.__cause__.__cause__) or place_of(task.data)
        raise RequestError(f"{function}{place} {error}") from error
    except DataError as error:
        raise RequestError(str(error)) from error
    except (Exception, SystemExit) as error:
        # Such as AttributeError: 'NoneType' object ..., or the path "None/train.csv" of f"{data_dir}/train.csv".
        without = "NoneType" in str(error) and isinstance(error, (TypeError, AttributeError)) or "None/" in str(error)
        if without and not folder:
            raise RequestError(f"{function} needs a folder: give --data-dir DIR ({with_place(error)})") from error
        advice = advice_on(error) or "correct the function"
        if isinstance(error, (OSError, SystemExit)) and "--data-dir" not in advice:
            advice += f"; correct --data-dir {folder}" if folder else "; if it needs a folder, give --data-dir DIR"
        raise RequestError(f"{function} raises {with_place(error)}; {advice}") from error
    facts = {**request.facts, "data": {"source": splits.source, "notice": splits.notice}}
    return replace(request, splits=splits, facts=facts)


def _new(options: Options, loaded_space: LoadedSpace) -> tuple[Experiment, str]:
    """Returns a new search's experiment, whose name must be free, and why `auto` chose its searcher and scheduler."""
    name = options.name or f"{loaded_space.label}-{time.strftime('%Y%m%d-%H%M%S')}"
    if name == LATEST:
        raise RequestError(f"--name {name}: --resume {name} means the newest experiment; give another name")
    experiment, why = choose(replace(options, name=name.replace(":", "-")), _traits_of(loaded_space.space))
    store = ObjectStore(experiment.results) if is_uri(experiment.results) else None
    if store:
        store.check()
    if experiment.folder.exists() or (store and experiment.name in store.names()):
        place = store.path(experiment.name) if store else experiment.folder
        raise RequestError(
            f"--name {name}: {place} already exists; continue it with --resume {name}, or give another name"
        )
    return experiment, why


def _traits_of(space: Space) -> SpaceTraits:
    """Returns what `auto` takes into account of a space."""
    grids = [domain for _, domain in domains.leaves(space.searched) if domains.is_grid(domain)]
    searchers = usable(space)
    return SpaceTraits(
        saves_checkpoints=saves_checkpoints(space),
        searchers=searchers,
        grid_points=math.prod(len(domains.values_of(domain)) for domain in grids),
        grid_size=grid_size(space.searched) if "grid" in searchers else None,
    )


def _resumed(
    wanted: Options, earlier: ResumedExperiment, loaded_space: LoadedSpace | None
) -> tuple[Experiment, LoadedSpace, dict[str, Any]]:
    """Checks that a resume does not make another search of it; returns its experiment, space and facts.

    Without the caller's space, it imports the experiment's own, but only once the options are known to fit.
    """
    saved = earlier.experiment
    new = as_before(wanted, saved)
    if new.space == earlier.space:  # both paths lead to the same file
        new = replace(new, space=saved.space)
    asked = values_of(new)
    if changed := {n: was for n, was in values_of(saved).items() if was != asked[n] and n not in EXTENDABLE}:
        listed = "; ".join(f"{option(name)} was {was!r}, now {asked[name]!r}" for name, was in changed.items())
        raise RequestError(f"--resume {saved.name}: {listed}; leave these out, or start anew with --name")
    for name in ("num_samples", "max_epochs"):
        was, now = getattr(saved, name), getattr(new, name)
        given = f"--resume {new.name}: {option(name)} {now}"
        if now < was:
            raise RequestError(f"{given} is below the previous {was}; give a larger number, or leave it out")
        if name == "max_epochs" and now > was and (why := fixed_epochs(new.scheduler, was)):
            raise RequestError(f"{given}: {why}; leave it out, or start anew with --name")
    loaded_space = loaded_space or find_space(earlier.space)
    facts = space_facts(loaded_space)
    try:
        before = earlier.facts["space"]
        old, params = before["params"] | before.get("constants", {}), facts["params"] | facts["constants"]
    except (KeyError, TypeError, ValueError) as error:
        raise damaged_experiment(new.folder, error) from None
    if names := sorted(name for name in {*old, *params} if old.get(name) != params.get(name)):
        listed = "; ".join(f"{name} was {old.get(name)}, now {params.get(name)}" for name in names)
        raise RequestError(f"--resume {new.name}: the space has changed: {listed}; start anew with --name")
    words = [str(word).partition("=")[0] for word in earlier.facts.get("command", ())]
    # A call from Python may have had its own metric.
    from_the_space = words[1:3] == ["-m", "tuner.run"] and before.get("sha256") != facts["sha256"]
    for name in ("metric", "mode"):
        was, now = getattr(saved, name), getattr(loaded_space.space, name)
        if was != now and from_the_space and option(name) not in words:
            what = f"the space's {name} was {was!r}, now {now!r}; change it back, or start anew with --name"
            raise RequestError(f"--resume {saved.name}: {what}")
    return new, loaded_space, {**earlier.facts, "space": facts}


def journaled_events(folder: Path, *, begun: bool) -> list[Event]:
    """Returns the journal's events, from which a search resumes; raises a RequestError if it has lost all its events.

    Only a search that has not `begun`, by its experiment.json, was killed before its first event and may have none.
    """
    path = folder / "journal.jsonl"
    scanned = scan(path) if path.exists() else Scan([], 0, "")
    if scanned.events and scanned.damage:
        before = f"the {len(scanned.events)} events before it; a copy of the whole journal is kept"
        logger.warning("%s is damaged at %s; the search continues from %s", path, scanned.damage, before)
    if not scanned.events and (scanned.damage or begun):
        what = f"is damaged at {scanned.damage}" if scanned.damage else "is missing or empty"
        raise RequestError(f"{path} {what}: its trials are unknown; restore the file, or start anew with --name")
    return scanned.events


def _check_names(experiment: Experiment, loaded_space: LoadedSpace) -> None:
    """Raises a RequestError if the task reports no such --metric, or nothing that --stop names."""
    reported, metric = loaded_space.space.reported(), experiment.metric
    if reported is None:
        return
    known = ", ".join(sorted(reported))
    if metric not in reported:
        hint = nearest(metric, reported) or f"; give one of these, or add it to the Task: metrics={{{metric!r}: ...}}"
        more = " (with mode max if larger is better)" if experiment.mode == "min" and "loss" not in metric else ""
        given = metric_option(loaded_space, metric)
        raise RequestError(f"{given}: space {experiment.space!r} reports {known}{hint}{more}")
    for name, limit in experiment.limits.items():
        if name not in {*reported, *USAGE, EPOCH}:
            hint = nearest(name, sorted(reported))
            raise RequestError(f"--stop {name}={limit:g}: the space reports {known}{hint}")


def _check_writable(results: Path) -> None:
    """Raises a RequestError if no folder can be created in `results`."""
    made = [folder for folder in (results, *results.parents) if not folder.exists()]
    try:  # a try, because root may write by the permissions where the file system then refuses it
        results.mkdir(parents=True, exist_ok=True)
        probe = results / f".tuner-{os.getpid()}"
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        what = "is a file" if results.is_file() else f"cannot be written to ({error.strerror})"
        raise RequestError(f"--results {results}: {what}; give another folder") from None
    finally:
        with contextlib.suppress(OSError):  # another search may have begun to use one
            for folder in made:
                folder.rmdir()
