"""A trial's data, in memory, in files or in a dataset: the training, validation and test parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tuner.errors.one_line import in_one_line


class DataError(ValueError):
    """The data is missing, damaged, changed, unreadable or unsuitable; the text says which data, and what to do."""


@in_one_line()
def _check_lengths(**parts: Any) -> None:
    for name, value in parts.items():
        if not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0:
            raise ValueError(f"{name} is {value!r}: give an array with one row per example")
    (name, inputs), (_, targets) = parts.items()
    if len(inputs) != len(targets):
        raise ValueError(f"{len(inputs)} {name} but {len(targets)} targets: give one target per {name[:-1]}")


@dataclass(frozen=True)
class Arrays:
    """Examples in memory; `targets[i]` belongs to `inputs[i]`.

    Both are arrays of shape (N, ...) with any dtype that torch supports, such as uint8 for images.
    """

    inputs: np.ndarray
    targets: np.ndarray

    def __post_init__(self) -> None:
        _check_lengths(inputs=self.inputs, targets=self.targets)

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, rows: np.ndarray) -> Arrays:
        return Arrays(self.inputs[rows], self.targets[rows])


@dataclass(frozen=True)
class Files:
    """Examples that do not fit in memory, one file per example; `targets[i]` belongs to `paths[i]`.

    Args:
        paths: N paths, texts or `Path`s; kept as an array of bytes, which all trials of a node share in memory.
        targets: array or list of shape (N,) or (N, ...).
        decode: `decode(path) -> array` returns one stored input, such as uint8 of shape (3, H, W). All inputs need the
            same shape and dtype. If `decode` raises an exception, the trial fails with an error that names the file.
    """

    paths: Any
    targets: Any
    decode: Callable[[str], np.ndarray]

    @in_one_line()
    def __post_init__(self) -> None:
        _check_lengths(paths=self.paths, targets=self.targets)
        if getattr(self.paths, "dtype", np.dtype(object)).kind != "S":
            for each in self.paths:
                if not isinstance(each, (str, bytes, os.PathLike)):
                    raise ValueError(f"paths has {each!r}, of type {type(each).__name__}: give paths of files")
            object.__setattr__(self, "paths", np.array([os.fsencode(each) for each in self.paths], np.bytes_))
        object.__setattr__(self, "targets", np.asarray(self.targets))

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, rows: np.ndarray) -> Files:
        return Files(self.paths[rows], self.targets[rows], self.decode)

    def example(self, row: int) -> tuple[np.ndarray, Any]:
        return self.decode(self.path(row)), self.targets[row]

    def path(self, row: int) -> str:
        return os.fsdecode(bytes(self.paths[row]))

    def called(self, row: int) -> str:
        return self.path(row)


@dataclass(frozen=True)
class Mapped:
    """Examples that a map-style dataset computes at each read, because it is large or may draw random numbers."""

    dataset: Any  # has `__getitem__`
    rows: np.ndarray  # (N,), the indices of the examples in the dataset
    read: Callable[[Any], tuple[np.ndarray, Any]]  # turns an item of the dataset into its input and target as arrays

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: np.ndarray) -> Mapped:
        return Mapped(self.dataset, self.rows[rows], self.read)

    def example(self, row: int) -> tuple[np.ndarray, Any]:
        return self.read(self.dataset[int(self.rows[row])])

    def called(self, row: int) -> str:
        return f"example {self.rows[row]} of the {type(self.dataset).__name__}"


DataSplit = Arrays | Files | Mapped


def read_examples(part: Files | Mapped, rows: Iterable[int]) -> tuple[list[np.ndarray], np.ndarray]:
    """Reads examples into a list of inputs and an array of targets; DataError if an example fails or shapes differ."""
    inputs: list[np.ndarray] = []
    targets: list[Any] = []
    for row in rows:
        try:
            value, target = part.example(row)
        except Exception as error:  # a user's function may raise anything
            what = "" if isinstance(error, DataError) else f"{type(error).__name__}: "
            raise DataError(f"{part.called(row)} cannot be read: {what}{error}") from error
        if inputs and (value.shape != inputs[0].shape or np.shape(target) != np.shape(targets[0])):
            raise DataError(
                f"{part.called(row)} cannot form a batch with others: its input and target have the shapes "
                f"{value.shape} and {np.shape(target)}, another example's have {inputs[0].shape} and "
                f"{np.shape(targets[0])}; give all examples the same shapes (resize, crop or pad them)"
            )
        inputs.append(value)
        targets.append(target)
    return inputs, np.stack([np.asarray(target) for target in targets])


@dataclass(frozen=True)
class Splits:
    """A data set as a space's `data` function returns it.

    Each part is `Arrays`, `Files`, a pair (inputs, targets) of numpy arrays or torch tensors, a map-style torch or
    Hugging Face dataset whose items are an input and its target, or a DataLoader (only its dataset or subset is read).

    Args:
        train: the training part.
        validation: the part on which the metrics of every epoch are computed. If it is None, a random part of `train`,
            drawn with the experiment's seed, becomes the validation part.
        test: the part on which the best trial is evaluated, once, at the end of the search; None = no test part.
        source: where the examples come from; recorded in experiment.json.
        constants: values that depend on the data, such as the number of classes. The task's other functions get them in
            their config; a parameter of the same name takes precedence.
        notice: a warning about the data, shown at the start of a search and beside the answer, and recorded.
        fixed: whether each reading of your own datasets gives the same examples. If they are small, they are then read
            once and kept in memory. Otherwise loader processes read them anew in each epoch: what draws random numbers
            draws new ones.
    """

    train: Any
    validation: Any = None
    test: Any = None
    source: str = ""
    constants: Mapping[str, Any] = field(default_factory=dict)
    notice: str = ""
    fixed: bool = False

    @property
    def parts(self) -> dict[str, Any]:
        return {name: part for name in ("train", "validation", "test") if (part := getattr(self, name)) is not None}


@dataclass(frozen=True)
class HeldOut(Splits):
    """Splits whose training and validation parts are both taken from what the data function returned as `train`."""

    rows: Mapping[str, np.ndarray] = field(default_factory=dict)  # part -> rows of its examples in the returned `train`


def hold_out(splits: Splits, *, fraction: float, seed: int) -> Splits:
    """Returns splits with a validation part: a `fraction` of the training part, drawn with `seed`, unless it exists.

    The same seed gives the same parts, so that the metrics of all trials of an experiment can be compared.
    """
    if splits.validation is not None:
        return splits
    order = np.random.default_rng(seed).permutation(len(splits.train))
    num_validation = round(len(order) * fraction)
    # Sorted, because reading in memory order is faster.
    validation, train = np.sort(order[:num_validation]), np.sort(order[num_validation:])
    parts = {"train": splits.train.take(train), "validation": splits.train.take(validation)}
    return HeldOut(**{**vars(splits), **parts}, rows={"train": train, "validation": validation})
