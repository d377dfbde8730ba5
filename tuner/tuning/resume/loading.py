"""Loads the experiment that `--resume` names, from its folder: its options, its space and its journal's events."""

from __future__ import annotations

import errno
import logging
import os
import shlex
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.core.events import Event, first_start
from tuner.errors import RequestError, say
from tuner.errors.gate import fingerprint
from tuner.record.format import JOURNAL
from tuner.record.lines import Chain
from tuner.record.reading import Scan, scan
from tuner.record.saved_experiment import (
    BEGUN,
    COPY,
    FILE,
    check_same_search,
    damaged_experiment,
    latest_experiment,
    load_experiment,
    lost_journal,
)
from tuner.record.storage.lock import HOLDER, LOCK, only_driver
from tuner.record.storage.object_store import ObjectStore
from tuner.spec.auto import as_before
from tuner.spec.experiment import LATEST, Experiment, Options, fixed_epochs, is_uri, local_root, values_of
from tuner.spec.facts import space_facts
from tuner.spec.option_values import option, rows_of
from tuner.spec.spaces import LoadedSpace, file_of, find_space, is_path, split_path
from tuner.tuning.call import Resumed, SearchCall
from tuner.tuning.resume.lost_checkpoints import with_checkpoints
from tuner.tuning.resume.trust import OPTION, code_of, recorded_path, refuse_data_folder, refuse_links

logger = logging.getLogger(__name__)


def load_resumed(call: SearchCall, stack: ExitStack) -> Resumed:
    """Loads the experiment to resume, if need be from an object store, and locks its folder until `stack` ends.

    `latest` is the experiment whose journal was written to last. The lock ends with the process, also if it is killed;
    a dry run takes none. Raises a RequestError if the experiment is missing, damaged or still running. Without
    --trust, also refuses links, a cluster or data folder that only the folder names, and code that has changed, lies in
    the results or is another user's.
    """
    within, name = os.path.split(call.resume.rstrip("/"))  # --resume also takes the folder's path
    results = call.given.get("results", within or "results")
    if within and "results" in call.given:
        raise RequestError(f"--resume {call.resume} names a folder, --results {results} another; give one of them")
    place, named = local_root(results), call.given.get("space", "")
    if is_uri(results):
        store = ObjectStore(results)
        names = store.names()
        name = names[-1] if name == LATEST and names else name
        if name in names:
            store.bring(name, place / name)
    elif name == LATEST:
        name = latest_experiment(place)
    folder = place / name
    _refuse_misplaced(folder)
    written = _written(folder)
    experiment, facts = load_experiment(folder)
    try:
        sha256 = facts["space"]["sha256"]
    except (KeyError, TypeError) as error:
        raise damaged_experiment(folder, error) from None
    space = experiment.space
    if call.space is None:
        is_same = is_path(named) and split_path(named)[1] == split_path(space)[1]
        if is_same and file_of(named) == Path(recorded_path(facts)).resolve():
            space = named  # another path to the same file
        space, code = code_of(folder, (FILE, COPY), space, sha256, trusted=call.trust, named_now=bool(named))
    else:
        same = call.space.sha256 == sha256
        code = [] if same else [f"NOTE: the code of {call.space.name} has changed since the search"]
    if not call.trust:
        refuse_links(folder)
        if "address" not in call.given and experiment.address not in ("", "auto"):
            cluster = experiment.address
            raise RequestError(
                f"{folder / FILE} names the cluster {cluster}; to join it, give --address {cluster} or {OPTION}"
            )
        if "data_dir" not in call.given:
            give = f"give --data-dir {shlex.quote(experiment.data_dir)} or {OPTION}"
            refuse_data_folder(folder / FILE, experiment.data_dir, place, give)
    if not call.dry_run:
        stack.enter_context(only_driver(folder))
        if _written(folder) != written:
            raise RequestError(f"{folder}: another process has just changed this experiment; give the command again")
    say(*code)
    return Resumed(replace(experiment, results=results, name=name), facts, space)


def _refuse_misplaced(folder: Path) -> None:
    """Raises a RequestError if a file is where the resumed search needs a folder, or a folder or pipe is at a file's.

    A link to the right kind passes, because `refuse_links` and the functions that open files decide about it.
    """
    for is_right, kind, names in (
        (os.path.isdir, "folder", ("ray", "best")),
        (os.path.isfile, "regular file", (FILE, COPY, LOCK, HOLDER, "trials.csv", "report.html")),
    ):
        for path in (folder / name for name in names):
            if os.path.lexists(path) and not is_right(path):
                raise RequestError(f"{path} is no {kind}; move it away, and resume again")


def _written(folder: Path) -> int:
    """Returns when experiment.json was written, in nanoseconds; 0 without one."""
    return (folder / FILE).lstat().st_mtime_ns if os.path.lexists(folder / FILE) else 0


def continued(call: SearchCall, resumed: Resumed) -> tuple[Experiment, LoadedSpace, dict[str, Any], list[Event]]:
    """Checks that a resume keeps the space's parameters and all but a few options; trials and epochs only grow.

    If the space's file has changed, its metric and mode must be the same, too, unless options or Python calls set them.

    Returns the experiment with its new options, its space and facts, and the journal's events.
    """
    before = resumed.experiment
    after = as_before(call.options_over(before), before)
    if after.space == resumed.space:  # both paths lead to the same file
        after = replace(after, space=before.space)
    changed = {n: (was, now) for n, was in values_of(before).items() if was != (now := getattr(after, n))}
    fixed = {n: each for n, each in changed.items() if not rows_of(Options)[n].on_resume}
    if refused := [f"{option(n)} was {was!r}, now {now!r}" for n, (was, now) in fixed.items()]:
        raise _other_search(before, f"{'; '.join(refused)}; leave these out, or")
    for name, (was, now) in changed.items():
        if name in ("num_samples", "max_epochs") and 0 < now < was:  # 0 trials are as many as a budget pays for
            given = f"--resume {before.name}: {option(name)} {now}"
            raise RequestError(f"{given} is below the previous {was}; give a larger number, or leave it out")
        if name == "max_epochs" and (why := fixed_epochs(after.scheduler, was)):
            raise _other_search(before, f"{option(name)} {now}: {why}; leave it out, or")
    loaded_space = call.space or find_space(resumed.space)
    facts, space = space_facts(loaded_space), loaded_space.space
    try:
        recorded = resumed.facts["space"]
        old, new = recorded["params"] | recorded.get("constants", {}), facts["params"] | facts["constants"]
    except (KeyError, TypeError, ValueError) as error:
        raise damaged_experiment(after.folder, error) from None
    if names := sorted(name for name in {*old, *new} if fingerprint(old.get(name)) != fingerprint(new.get(name))):
        listed = "; ".join(f"{name} was {old.get(name)}, now {new.get(name)}" for name in names)
        raise _other_search(before, f"the space has changed: {listed};")
    words = [str(word).partition("=")[0] for word in resumed.facts.get("command", ())]
    if words[1:3] == ["-m", "tuner.run"] and recorded.get("sha256") != facts["sha256"]:
        for name in ("metric", "mode"):  # not checked for tuner.search: its call may have given others
            was, now = getattr(before, name), getattr(space, name)
            if was != now and option(name) not in words:
                raise _other_search(before, f"the space's {name} was {was!r}, now {now!r}; change it back, or")
    history = journaled_events(after.folder, begun=bool(resumed.facts.get(BEGUN)))
    check_same_search(first_start(history), resumed.facts, after.folder / JOURNAL)
    if after.scheduler == "pbt":
        history = with_checkpoints(after.folder, history, is_task=loaded_space.space.train is None)
    return after, loaded_space, {**resumed.facts, "space": facts}, history


def _other_search(before: Experiment, what: str) -> RequestError:
    return RequestError(f"--resume {before.name}: {what} start anew with --name, without --resume")


def gone(folder: Path) -> str:
    """Says that a search's folder was deleted or moved while the search ran; empty if its journal is still there."""
    if os.path.lexists(folder / JOURNAL):
        return ""
    return f"{folder} is gone, so nothing can continue this search; if you moved it, give --resume its new path"


def journaled_events(folder: Path, *, begun: bool) -> list[Event]:
    """Returns the events before any damage; RequestError if a `begun` search has none. Others have started no trial."""
    path = folder / JOURNAL
    try:
        scanned = scan(path) if path.exists() else Scan([], 0, Chain(), "")
    except OSError as error:
        what = "is no regular file" if error.errno == errno.EINVAL else f"cannot be read ({error.strerror})"
        raise lost_journal(path, what) from None
    if scanned.events and scanned.damage:
        before = (
            f"the {len(scanned.events)} events before it; a copy of the whole journal is kept as {path.name}.damaged-*"
        )
        logger.warning("%s is damaged at %s; the search continues from %s", path, scanned.damage, before)
    if not scanned.events and begun:
        raise lost_journal(path, f"is damaged at {scanned.damage}") if scanned.damage else lost_journal(path)
    return scanned.events
