"""Checks a request to run a search, new or resumed, before its data is read and a cluster is joined."""

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
from tuner.engine.local.machine import local_cluster
from tuner.errors import RequestError, nearest
from tuner.record.events import Event
from tuner.record.object_store import ObjectStore
from tuner.record.reading import Scan, scan
from tuner.record.report_keys import USAGE
from tuner.record.saved_experiment import BEGUN, damaged_experiment
from tuner.spec import domains
from tuner.spec.auto import SearchFacts, choose, settled
from tuner.spec.experiment import EXTENDABLE, LATEST, Experiment, Options, fixed_epochs, option
from tuner.spec.facts import facts_of, space_facts
from tuner.spec.live import saves_checkpoints
from tuner.spec.places import is_uri, local_root
from tuner.spec.resources import resources_of
from tuner.spec.space import Space
from tuner.spec.spaces import LoadedSpace, find_space, metric_option
from tuner.tuning.output.mirroring import wandb_mode
from tuner.tuning.requests import Request, SearchCall, defaults_of, options_over
from tuner.tuning.resume.experiment import ResumedExperiment
from tuner.tuning.scheduling.decisions import EPOCH
from tuner.tuning.scheduling.population_scheduler import check_scheduler
from tuner.tuning.searchers.named import check_searcher, usable
from tuner.tuning.searchers.sampling import grid_size

logger = logging.getLogger(__name__)


def checked(call: SearchCall, resumed: ResumedExperiment | None, here: bool = True) -> Request:
    """Loads the space and checks the request; the experiment then names its searcher and its scheduler.

    Args:
        here: whether the search runs from this machine; without --address, a trial must then fit on it.

    Raises:
        RequestError: the space cannot be loaded, or the request cannot be done.
    """
    if resumed:
        return resume(options_over(resumed.experiment, call.given), resumed, call.space, here)
    loaded_space = call.space or find_space(call.given["space"])
    return begin(options_over(defaults_of(loaded_space), call.given), loaded_space, call.command, here)


def begin(options: Options, loaded_space: LoadedSpace, command: list[str], here: bool = True) -> Request:
    """Checks the request for a new search; raises a RequestError if it cannot be done.

    Args:
        here: whether the search runs from this machine; without --address, a trial must then fit on it.
    """
    name = options.name or f"{loaded_space.label}-{time.strftime('%Y%m%d-%H%M%S')}"
    if name == LATEST:
        raise RequestError(f"--name {name}: --resume {name} means the newest experiment; give another name")
    pair = choose(options, search_facts(options, loaded_space.space, here))
    experiment = replace(settled(options, pair), name=name.replace(":", "-"))
    store = ObjectStore(experiment.results) if is_uri(experiment.results) else None
    if store:
        store.check()
    if experiment.folder.exists() or (store and experiment.name in store.names()):
        place = store.path(experiment.name) if store else experiment.folder
        raise RequestError(
            f"--name {name}: {place} already exists; continue it with --resume {name}, or give another name"
        )
    facts = facts_of(loaded_space, command) | ({"auto": pair.why} if pair.why else {})
    return checked_request(experiment, loaded_space, facts, [], here)


def search_facts(options: Options, space: Space, here: bool) -> SearchFacts:
    """Returns what `auto` takes into account besides the options."""
    num_at_once = None
    if here and not options.address:
        with contextlib.suppress(RequestError):  # `checked_request` raises it
            num_at_once = resources_of(options, [local_cluster()]).concurrent
    declared = [domain for _, domain in domains.leaves(space.searched)]
    searchers = usable(space)
    return SearchFacts(
        saves_checkpoints=saves_checkpoints(space),
        searchers=searchers,
        num_params=len(declared),
        grid_points=math.prod(len(domains.values_of(domain)) for domain in declared if domains.is_grid(domain)),
        grid_size=grid_size(space.searched) if "grid" in searchers else None,
        num_at_once=num_at_once,
    )


def resume(
    wanted: Options, earlier: ResumedExperiment, loaded_space: LoadedSpace | None = None, here: bool = True
) -> Request:
    """Checks the request to resume or extend a search.

    Args:
        loaded_space: the space that the caller has; None = import the one that the experiment names, once the options
            are known to be its own. No other code is imported.
        here: whether the search runs from this machine; without --address, a trial must then fit on it.

    Raises:
        RequestError: the options or the space would make it another search, or the request cannot be done.
    """
    wanted = settled(wanted, earlier.experiment)
    if wanted.space == earlier.space:  # by another path to the same file
        wanted = replace(wanted, space=earlier.experiment.space)
    changed = earlier.experiment.differences(wanted)
    refused = {name: pair for name, pair in changed.items() if name not in EXTENDABLE}
    if refused:
        listed = "; ".join(f"{option(name)} was {was!r}, now {now!r}" for name, (was, now) in refused.items())
        raise RequestError(f"--resume {earlier.experiment.name}: {listed}; leave these out, or start anew with --name")
    if wanted.num_samples < earlier.experiment.num_samples:
        raise RequestError(
            f"--resume {wanted.name}: --num-samples {wanted.num_samples} is below the previous "
            f"{earlier.experiment.num_samples}; give a larger number, or leave it out"
        )
    loaded_space = loaded_space or find_space(earlier.space)
    now = space_facts(loaded_space)
    try:
        before = earlier.facts["space"]
        old = before["params"] | before.get("constants", {})
        new = now["params"] | now["constants"]
    except (KeyError, TypeError, ValueError) as error:
        raise damaged_experiment(wanted.folder, error) from None
    if old != new:
        names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
        listed = "; ".join(f"{name} was {old.get(name)}, now {new.get(name)}" for name in names)
        raise RequestError(f"--resume {wanted.name}: the space has changed: {listed}; start anew with --name")
    if before.get("sha256") != now["sha256"]:
        check_same_metric(earlier, loaded_space.space)
    if wanted.max_epochs != earlier.experiment.max_epochs:
        check_more_epochs(earlier.experiment, wanted)
    history = journaled_events(wanted.folder, begun=bool(earlier.facts.get(BEGUN)))
    return checked_request(wanted, loaded_space, {**earlier.facts, "space": now}, history, here)


def check_same_metric(earlier: ResumedExperiment, space: Space) -> None:
    """Raises a RequestError if a changed space names another metric or mode than the search got from it."""
    words = [str(word).partition("=")[0] for word in earlier.facts.get("command", ())]
    if words[1:3] != ["-m", "tuner.run"]:
        return  # a call from Python may have had its own metric
    for name in ("metric", "mode"):
        was, now = getattr(earlier.experiment, name), getattr(space, name)
        if was != now and option(name) not in words:
            raise RequestError(
                f"--resume {earlier.experiment.name}: the space's {name} was {was!r}, now {now!r}; change it back, or "
                f"start anew with --name"
            )


def check_more_epochs(earlier: Experiment, wanted: Experiment) -> None:
    """Raises a RequestError if the --max-epochs of a resumed search cannot change as requested."""
    options = f"--resume {wanted.name}: --max-epochs {wanted.max_epochs}"
    if wanted.max_epochs < earlier.max_epochs:
        raise RequestError(
            f"{options} is below the previous {earlier.max_epochs}; give a larger number, or leave it out"
        )
    if why := fixed_epochs(wanted.scheduler, earlier.max_epochs):
        raise RequestError(f"{options}: {why}; leave it out, or start anew with --name")


def journaled_events(folder: Path, *, begun: bool) -> list[Event]:
    """Returns the journal's events, from which a search resumes.

    Args:
        begun: whether experiment.json says that the journal had its first event. Without events, a search that has
            begun has lost them; another one was killed before its first event and may start.

    Raises:
        RequestError: the journal has lost all its events.
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


def checked_request(
    experiment: Experiment, loaded_space: LoadedSpace, facts: dict[str, Any], history: list[Event], here: bool
) -> Request:
    """Checks what can be checked before the data is read and a cluster is joined.

    Args:
        here: whether the search runs from this machine; without --address, a trial must then fit on it.
    """
    reported = loaded_space.space.reported()
    if reported is not None and experiment.metric not in reported:
        raise RequestError(
            f"{metric_option(loaded_space, experiment.metric)}: space {experiment.space!r} reports "
            f"{', '.join(sorted(reported))}{unknown_metric(experiment, reported)}"
        )
    unknown = [name for name in experiment.limits if reported is not None and name not in {*reported, *USAGE, EPOCH}]
    if unknown:
        known = sorted(reported or ())
        given = f"--stop {unknown[0]}={experiment.limits[unknown[0]]:g}"
        raise RequestError(f"{given}: the space reports {', '.join(known)}{nearest(unknown[0], known)}")
    check_strategy(experiment, loaded_space)
    if experiment.address:
        check_head(experiment.address)
    check_searcher(experiment, loaded_space.space)
    check_scheduler(experiment, loaded_space.space)
    writable(local_root(experiment.results))
    resources = resources_of(experiment, [local_cluster()]) if here and not experiment.address else None
    return Request(experiment, loaded_space, facts, history, resources, wandb_mode(experiment.wandb))


def unknown_metric(experiment: Experiment, reported: set[str]) -> str:
    """Says what to do about a --metric that the task does not report."""
    name = experiment.metric
    hint = nearest(name, reported) or f"; give one of these, or add it to the Task: metrics={{{name!r}: ...}}"
    more = " (with mode max if larger is better)" if experiment.mode == "min" and "loss" not in name else ""
    return hint + more


def check_strategy(experiment: Experiment, loaded_space: LoadedSpace) -> None:
    """Raises a RequestError if the space does not work with `--strategy`, which says how devices share a trial."""
    task, strategy = loaded_space.space.task, experiment.strategy
    if task is None and strategy != "single":
        raise RequestError(
            f"--strategy {strategy}: needs a Space(task=...), but {loaded_space.name} is a Space(train=...); "
            "leave it out"
        )
    if task is not None and task.compile and strategy == "dp":
        raise RequestError("--strategy dp: does not work with Task(compile=True); give --strategy ddp")


def writable(results: Path) -> None:
    """Raises a RequestError if no folder can be created in `results`."""
    made = [folder for folder in (results, *results.parents) if not folder.exists()]
    try:
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
