"""Writes and reads experiment.json: an experiment's options and facts, with a checksum and a second copy."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from tuner.core.events import Beginning
from tuner.errors import RequestError, printable
from tuner.record.format import FIELD, FORMAT, JOURNAL, OtherFormat, check_format
from tuner.record.storage.files import is_file_in, json_in, lines_of, open_in, parsed, write_atomically
from tuner.spec.experiment import Experiment

logger = logging.getLogger(__name__)
FILE, COPY = "experiment.json", ".experiment.json.copy"  # same content; COPY is read if FILE is damaged or missing
BEGUN = "begun"  # this fact says that the journal has had an event, so an empty or missing journal was lost
MAX_LISTED_EXPERIMENTS = 5  # maximum number of experiments that an error text names
UNREADABLE = (OSError, ValueError, ArithmeticError, KeyError, TypeError, AttributeError, RequestError)


def save_experiment(experiment: Experiment, folder: Path, facts: dict[str, Any]) -> None:
    """Writes experiment.json and its copy: all options, and the facts, such as the space and package versions."""
    document = {FIELD: FORMAT, "options": dataclasses.asdict(experiment), **facts}
    text = json.dumps({**document, "sha256": digest(document)}, indent=2) + "\n"
    for name in (FILE, COPY):
        write_atomically(folder / name, text)


def damaged_experiment(folder: Path, error: Exception) -> RequestError:
    return RequestError(f"{folder}/{FILE} is damaged ({error!r}); restore it from a copy")


def load_experiment(folder: Path) -> tuple[Experiment, dict[str, Any]]:
    """Returns the experiment and its facts from experiment.json, or with a warning from its copy; else RequestError."""
    path, copy = folder / FILE, folder / COPY
    other: OtherFormat | None = None
    try:
        return _read(folder, FILE)
    except (FileNotFoundError, NotADirectoryError):
        if not is_file_in(folder, COPY):
            raise RequestError(no_experiment(folder)) from None
        what = "is gone"
    except UNREADABLE as error:
        what = f"is damaged ({error})"
        other = error if isinstance(error, OtherFormat) else None  # raised below if the copy is no better
    try:
        saved = _read(folder, COPY)
    except UNREADABLE:
        if other:
            raise other from None
        wanted = "restore it from a copy, or start anew with --name"
        raise RequestError(f"{path} {what}, and its copy {copy.name} cannot be read; {wanted}") from None
    logger.warning("%s", printable(f"{path} {what}; its copy {copy.name} is used"))
    return saved


def digest(document: dict[str, Any]) -> str:
    """Returns the SHA-256 of a document's content; the document's layout and key order do not matter."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _read(folder: Path, name: str) -> tuple[Experiment, dict[str, Any]]:
    document = json_in(folder, name)
    check_format(document.get(FIELD), folder / name)
    if document.pop("sha256", None) != digest(document):
        raise ValueError("its content does not match its sha256")
    del document[FIELD]
    options = document.pop("options")
    # An experiment of this format that is older than an option lacks it, and has the option's default.
    if not set(options) <= {field.name for field in dataclasses.fields(Experiment)}:
        raise ValueError("`options` are not those of a search")
    _check_facts(document)
    return Experiment(**options), document


def why_foreign(folder: Path) -> str:
    """Say why a folder is not an experiment that tuner has written; empty if it is, even of another format.

    Either experiment.json or its copy must match its sha256, and the journal's first event, if any, have the same id.
    """
    first = None
    with contextlib.suppress(*UNREADABLE, StopIteration), open_in(folder, JOURNAL) as file:
        first = parsed(next(lines_of(file))[0])
    for name in (FILE, COPY):
        with contextlib.suppress(*UNREADABLE):
            document = json_in(folder, name)
            if FIELD in document and document.pop("sha256") == digest(document):
                is_same = not isinstance(first, dict) or first.get("id") == document.get("id")
                return "" if is_same else f"{JOURNAL} is that of another search"
    return f"neither {FILE} nor its copy matches its sha256"


def _check_facts(facts: dict[str, Any]) -> None:
    """Raises ValueError or AttributeError if `created`, `space` or `data` has a wrong type or value for the views."""
    created = facts.get("created", 0.0)
    if type(created) not in (int, float) or not 0 <= created <= 1e11:
        raise ValueError("`created` is not a time in unix seconds")
    space, data = facts.get("space", {}), facts.get("data") or {}
    if not isinstance(space.get("params", {}), dict) or not isinstance(space.get("constants", {}), dict):
        raise ValueError("`params` and `constants` of `space` are not both objects")
    if not isinstance(data.get("notice") or "", str):
        raise ValueError("`notice` of `data` is not a text")
    if not isinstance(data.get("sums") or {}, dict):
        raise ValueError("`sums` of `data` is not an object")


def lost_journal(path: Path, what: str = "is missing or empty") -> RequestError:
    """The error for the journal of a search that has BEGUN, if the journal has no event that can be read."""
    advice = "restore the file, or start anew with --name, without --resume"
    return RequestError(f"{path} {what}: its trials are unknown; {advice}")


def check_same_search(first: Beginning | None, facts: dict[str, Any], path: Path) -> None:
    """Raises RequestError if a journal's first event is that of another search than the facts in experiment.json."""
    if first and first.id != facts.get("id"):
        raise RequestError(
            f"{path} is the journal of another search (its `id` is {first.id!r}, that of {FILE} is "
            f"{facts.get('id')!r}); put this search's own files together again, or start anew with --name"
        )


def no_experiment(folder: Path) -> str:
    """Returns the error text for a missing experiment: the parent folder, and a similar name or the newest names.

    For a file or folder of an experiment, such as its journal, the text names the experiment's folder.
    """
    parent = folder.parent.absolute()
    if not parent.is_dir():
        moved = "change to the folder in which the search was started, or give --results DIR and the experiment's name"
        return f"no experiment {folder.name!r}: no such folder {parent}; {moved}"
    meant = next((f"; did you mean {above}?" for above in folder.parents if (above / FILE).is_file()), "")
    if meant or folder.is_file():
        return f"{folder} is {'a file, ' * folder.is_file()}not an experiment's folder{meant}"
    others = [path.parent.name for path in sorted(folder.parent.glob(f"*/{FILE}"), key=_changed, reverse=True)]
    close = difflib.get_close_matches(folder.name, others, n=1)
    more = f" and {len(others) - MAX_LISTED_EXPERIMENTS} more" if len(others) > MAX_LISTED_EXPERIMENTS else ""
    hint = f"the newest there: {', '.join(others[:MAX_LISTED_EXPERIMENTS])}{more}"
    if not others:
        hint = "this folder has no experiments: give another --results"
    elif close:
        hint = f"did you mean {close[0]!r}?"
    return f"no experiment {folder.name!r} in {parent}; {hint}"


def _changed(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:  # the file was deleted meanwhile
        return 0.0


def latest_experiment(results: Path) -> str:
    """Returns the name of the experiment whose journal was written to last; raises RequestError if there is none."""
    journals = sorted(results.glob(f"*/{JOURNAL}"), key=lambda path: path.lstat().st_mtime)
    if not journals:
        where = results.absolute()
        what = f"no experiment in {where}" if where.is_dir() else f"no such folder {where}"
        raise RequestError(f"{what}; give the --results of a search, or start one with --space")
    return journals[-1].parent.name
