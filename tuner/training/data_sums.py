"""Notices that a data function returns other data than when the search began: checksums of each part of the data."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from tuner.errors import RequestError
from tuner.training.data import Arrays, DataError, DataSplit, Files, Splits, read_examples
from tuner.training.task import kept_streams

NUM_READ = 64  # examples, evenly spaced, whose inputs are read
Sums = Mapping[str, Mapping[str, Any]]  # part -> {"examples": their number, "targets": a checksum, "inputs": another}


def sums_of(splits: Splits) -> dict[str, dict[str, Any]]:
    """Return the checksums of all parts, which can be written as JSON.

    They cover all targets of arrays and files, all names of files, and the content of NUM_READ inputs. Of a dataset
    that computes its examples, they cover NUM_READ targets, because its inputs may be random. Reading them may take as
    long as a batch.
    """
    return {name: _of_part(part) for name, part in splits.parts.items()}


def refuse_other_data(before: Sums, now: Sums, function: str) -> None:
    """Raise RequestError, with the name of the data function, if the data differs from what was recorded."""
    if texts := differences(before, now):
        what = f"{function} returns other data than at the start of the search: {'; '.join(texts)}"
        advice = "restore it (the order of a set or of a folder's entries may differ each time), or give --trust"
        raise RequestError(f"{what}; {advice}")


def differences(before: Sums, now: Sums) -> list[str]:
    """Say how the data differs from what was recorded, a text for each part that does."""
    texts: list[str] = []
    if not all(isinstance(each, Mapping) and {"examples", "targets", "inputs"} <= {*each} for each in before.values()):
        return ["what was recorded of it is damaged"]
    for name in sorted({*before, *now}):
        was, its = before.get(name), now.get(name)
        if was is None or its is None:
            texts.append(f"there is {'no' if its is None else 'now a'} {name} part")
        elif was["examples"] != its["examples"]:
            texts.append(f"{name} has {its['examples']} examples instead of {was['examples']}")
        elif other := [what for what in ("targets", "inputs") if was[what] != its[what]]:
            texts.append(f"{name} has other {' and '.join(other)}, or the same in another order")
    return texts


def _of_part(part: DataSplit) -> dict[str, Any]:
    some = np.unique(np.linspace(0, len(part) - 1, NUM_READ).astype(int)) if len(part) else np.empty(0, int)
    targets, inputs = hashlib.sha256(), hashlib.sha256()
    if isinstance(part, Arrays):
        _add(inputs, part.inputs[some])
    elif isinstance(part, Files):
        for name in part.paths.tolist():  # the folder may have moved
            inputs.update(os.path.basename(name) + b"\0")
        for row in some:
            try:
                with open(part.path(row), "rb") as file:
                    inputs.update(file.read(1 << 20))
            except OSError:  # `decode` may take other names than those of files; a missing file fails its trial
                continue
    if isinstance(part, (Arrays, Files)):
        _add(targets, part.targets)
    elif len(part):
        try:
            with kept_streams():
                _add(targets, read_examples(part, some)[1])
        except DataError:  # an unreadable example fails the trial that reads it, by its name
            pass
    return {"examples": len(part), "targets": targets.hexdigest()[:16], "inputs": inputs.hexdigest()[:16]}


def _add(into: Any, values: np.ndarray) -> None:
    values = np.ascontiguousarray(values)
    into.update(f"{values.dtype.str}{values.shape}".encode())
    into.update(values.view(np.uint8).data if values.size and values.dtype != object else repr(values).encode())
