"""Calls a task's data function and converts the returned data into parts that a trial can read.

Data that every reading gives alike, and that is small, is read at the start and becomes `Arrays`, which a node stores
once. Whether readings are alike is known by the exact types of a dataset and its transforms, or said by `Splits(fixed=
True)`; it is not tried out. All other datasets become `Mapped`: the trial's loader processes read each example anew.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import data as torch_data
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from tuner.training.data import Arrays, DataError, DataSplit, Files, Mapped, Splits, hold_out, read_examples
from tuner.training.task import Task, callable_with, kept_streams, reseed

# Maximum bytes of a dataset's inputs for it to be read into memory; a tenth of the machine's memory also limits it.
LARGEST_BYTES = 2**30
NUM_LOOKED_AT = 16  # number of first examples that are read twice, to see whether `fixed=True` may be true
TARGETS = ("label", "labels", "target", "targets", "y", "class", "classes", "fine_label")  # names of a target column
# Datasets and transforms of torchvision that draw no random numbers, and know no state but their arguments.
PLAIN_DATASETS = (
    *("CIFAR10", "CIFAR100", "EMNIST", "FashionMNIST", "KMNIST", "MNIST", "QMNIST", "SVHN", "STL10", "USPS"),
    *("FakeData", "Food101", "Flowers102", "GTSRB", "OxfordIIITPet", "DTD", "EuroSAT", "FGVCAircraft", "StanfordCars"),
)
PLAIN_TRANSFORMS = (
    *("CenterCrop", "Compose", "ConvertImageDtype", "Grayscale", "Normalize", "PILToTensor", "Pad", "Resize"),
    *("ToImage", "ToDtype", "ToPILImage", "ToPureTensor", "ToTensor"),
)
SPLITS = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation", "test": "test"}
WANTED = (
    "return Splits(train=(inputs, targets), validation=..., test=...), of tuner.training.data, whose parts are pairs, "
    "Arrays, Files or map-style datasets"
)
MAP_STYLE = (
    "a map-style dataset, one with __len__ and __getitem__ such as TensorDataset, as an epoch takes all examples in a "
    "random order; a Hugging Face data set is one if it is loaded without streaming=True"
)


class UnsuitableData(DataError):
    """The data function returns something that trials cannot use; the text says what it returns and what to return."""


def splits_of(task: Task, data_dir: str, seed: int) -> Splits:
    """Calls the task's data function; returns its data as a search uses it, with a validation part.

    The function draws the same random numbers in each session. Raises UnsuitableData if it returns no data that a trial
    can read. Errors of the function itself pass through.
    """
    folder = Path(data_dir) if data_dir else None
    with kept_streams():
        reseed(seed, epoch=0)
        # A function that needs more arguments raises a TypeError here.
        takes_folder = callable_with(task.data, folder) or not callable_with(task.data)
        returned = task.data(folder) if takes_folder else task.data()  # type: ignore[call-arg]
        splits = as_splits(returned, classes=predicts_classes(task))
    return hold_out(splits, fraction=task.validation_fraction, seed=seed)


def predicts_classes(task: Task) -> bool:
    """Whether the loss is torch's own cross-entropy (or None), whose targets are class numbers or probabilities."""
    return task.loss is None or task.loss is nn.functional.cross_entropy or isinstance(task.loss, nn.CrossEntropyLoss)


def as_splits(returned: Any, *, classes: bool) -> Splits:
    """Converts the result of a data function to Splits that a trial can read; raises UnsuitableData if that fails.

    With `classes`, targets are class numbers or probabilities: shape (N, 1) becomes (N,), booleans become integers.
    """
    if isinstance(returned, Splits):
        splits = returned
    elif isinstance(returned, Mapping) and "train" in returned and set(returned) <= set(SPLITS):
        splits = Splits(**{SPLITS[name]: part for name, part in returned.items()})
    elif _is_part(returned):
        splits = Splits(train=returned)
    elif isinstance(returned, (tuple, list)) and len(returned) == 2 and all(map(_is_part, returned)):
        splits = Splits(train=returned[0], test=returned[1])
    else:
        wanted = f"return {MAP_STYLE}" if isinstance(returned, (IterableDataset, Iterator)) else WANTED
        raise UnsuitableData(f"returns {_kind(returned)}; {wanted}")
    parts = {"train": splits.train, **splits.parts}
    _check_columns(parts)
    for name, value in parts.items():
        try:
            parts[name] = as_part(value, classes, splits.fixed)
        except DataError as error:
            raise UnsuitableData(f"returns Splits({name}=...) that cannot be used: {error}") from error
    return replace(splits, **parts)


def as_part(value: Any, classes: bool, fixed: bool = False) -> DataSplit:
    if isinstance(value, Mapped):
        return value
    if isinstance(value, Files):
        return Files(value.paths, targets_of(value.targets, classes), value.decode)
    if isinstance(value, Arrays):
        return arrays(value.inputs, value.targets, classes, keep=True)
    if _is_pair(value):
        return arrays(value[0], value[1], classes)
    if isinstance(value, DataLoader):
        return as_part(_dataset_of(value), classes, fixed)
    if _is_dataset(value):
        rows = np.arange(len(value))
        while type(value) is Subset:  # by exact type: a subclass may transform what it reads
            value, rows = value.dataset, np.asarray(value.indices, np.int64)[rows]
        if type(value) is TensorDataset and len(value.tensors) == 2:
            return arrays(value.tensors[0], value.tensors[1], classes).take(rows)
        part = Mapped(value, rows, partial(item, classes=classes))
        if len(part) == 0:
            raise DataError(f"the {type(value).__name__} is empty; give at least one example")
        return _stacked_if_small(part) if fixed or is_plain(value) else part
    what = "Arrays(inputs, targets), Files, a pair or a map-style dataset"
    raise DataError(f"it is {_kind(value)}; give {MAP_STYLE if isinstance(value, IterableDataset) else what}")


def arrays(inputs: Any, targets: Any, classes: bool, keep: bool = False) -> Arrays:
    try:
        return Arrays(array_of(inputs, keep), targets_of(array_of(targets, keep), classes))
    except ValueError as error:
        raise DataError(str(error)) from error.__cause__


def array_of(value: Any, keep: bool = False) -> np.ndarray:
    """Converts a tensor, array, number, list or PIL image to an array that torch can read; DataError for other values.

    Images become (channels, height, width). float64 becomes float32, except in tensors or with `keep`.
    """
    if isinstance(value, torch.Tensor):
        try:
            return value.detach().cpu().numpy()
        except (TypeError, RuntimeError) as error:
            raise DataError(f"a tensor of {value.dtype} has no numpy form ({error}); give it as float32") from error
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DataError(f"it has lists of several lengths ({error}); give all examples the same length") from error
    if array.dtype.kind not in "biufc":
        what = "text" if array.dtype.kind in "US" else f"a {type(value).__name__} of {array.dtype}"
        raise DataError(f"{what} cannot become a tensor; give numbers, such as class numbers or token numbers")
    if hasattr(value, "getbands"):
        array = array[None] if array.ndim == 2 else np.moveaxis(array, -1, 0)
    # torch refuses a byte order other than the machine's, and negative strides.
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array)
    return array.astype(np.float32) if array.dtype == np.float64 and not keep else array


def targets_of(targets: np.ndarray, classes: bool) -> np.ndarray:
    """Converts targets for losses: integers of shape (N,) to int64; with `classes`, also booleans and shape (N, 1)."""
    targets = np.asarray(targets)
    if classes and targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    whole = targets.dtype.kind in "iu" or (classes and targets.dtype.kind == "b")
    return targets.astype(np.int64) if whole and targets.ndim == 1 else targets


def item(value: Any, classes: bool) -> tuple[np.ndarray, np.ndarray]:
    """Splits a dataset's item into input and target; DataError if it is no pair or dictionary of two arrays."""
    if isinstance(value, Mapping):
        names = list(value)
        if len(names) != 2:
            hint = ", for example with select_columns([...])" if len(names) > 2 else ""
            raise DataError(f"an item has the columns {', '.join(map(str, names))}; keep two, input and target{hint}")
        if sum(name in TARGETS for name in names) != 1:
            what = f"an item has the columns {' and '.join(map(str, names))}; which one is the target?"
            raise DataError(f"{what} return a pair instead, the input first; or give the target the name label")
        value = [value[name] for name in sorted(names, key=lambda name: name in TARGETS)]
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        many = f"{len(value)} values" if isinstance(value, (tuple, list)) else f"a {type(value).__name__}"
        raise DataError(f"an item has {many}; give items of two: the input and its target")
    if any(isinstance(part, Mapping) for part in value):
        raise DataError("an item has a dictionary in it; give arrays, and let the model take the input apart")
    target = value[1]
    if type(target) is int:  # what most datasets give: 4 us less
        return array_of(value[0]), np.asarray(target)
    return array_of(value[0]), targets_of(array_of(target)[None], classes)[0]


def is_plain(dataset: Any) -> bool:
    """Whether each reading of a dataset is known to give the same: by its exact type and those of its transforms."""
    kind = type(dataset)
    if (kind.__module__, kind.__name__) == ("datasets.arrow_dataset", "Dataset"):  # Hugging Face's
        return bool(dataset.format["type"] != "custom")  # set_transform's
    if kind in (Subset, ConcatDataset, TensorDataset):
        inner = [dataset.dataset] if kind is Subset else getattr(dataset, "datasets", [])
        return all(map(is_plain, inner))
    transforms = [getattr(dataset, name, None) for name in ("transform", "target_transform")]
    return _is_of_torchvision(kind, "datasets", PLAIN_DATASETS) and all(map(_is_plain_transform, transforms))


def kinds_read_anew(splits: Splits) -> list[str]:
    """Name the types of datasets that loader processes read in each epoch because they may draw random numbers."""
    parts = [part for part in splits.parts.values() if isinstance(part, Mapped) and not splits.fixed]
    return sorted({type(part.dataset).__name__ for part in parts if not is_plain(part.dataset)})


def _is_plain_transform(transform: Any) -> bool:
    if not _is_of_torchvision(type(transform), "transforms", PLAIN_TRANSFORMS):
        return transform is None
    return all(map(_is_plain_transform, getattr(transform, "transforms", ())))


def _is_of_torchvision(kind: type, room: str, names: Collection[str]) -> bool:
    return kind.__module__.startswith(f"torchvision.{room}.") and kind.__name__ in names


def _stacked_if_small(part: Mapped) -> DataSplit:
    """Reads a small part, of which all readings are alike, into Arrays; returns a large one unchanged.

    Raises DataError if two readings of its first examples differ.
    """
    first = list(range(min(NUM_LOOKED_AT, len(part))))
    inputs, targets = read_examples(part, first)
    with kept_streams():
        again, targets_again = read_examples(part, first)
    equal = [
        np.array_equal(*both, equal_nan=both[0].dtype.kind in "fc")
        for both in zip([*inputs, targets], [*again, targets_again], strict=True)
    ]
    if not all(equal):
        what = f"two readings of {part.called(equal.index(False) % len(first))} differ"
        raise DataError(f"{what}, so that fixed=True is not true; leave it out, and each epoch reads the dataset anew")
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if inputs[0].nbytes * len(part) > min(LARGEST_BYTES, memory_bytes // 10):
        return part
    stacked = np.empty((len(part), *inputs[0].shape), inputs[0].dtype)
    all_targets = np.empty((len(part), *targets.shape[1:]), targets.dtype)
    for start in range(0, len(part), 1024):
        rows = range(start, min(start + 1024, len(part)))
        some, theirs = read_examples(part, [0, *rows])  # with the first example: all must have its shape
        stacked[start : rows.stop] = np.stack(some[1:])
        all_targets[start : rows.stop] = theirs[1:]
    return Arrays(stacked, all_targets)


def _check_columns(parts: Mapping[str, Any]) -> None:
    """Raises UnsuitableData if frames of two parts have other columns, or the same ones in another order."""
    frames = {name: part[0] for name, part in parts.items() if _is_pair(part) and hasattr(part[0], "columns")}
    columns = {name: list(frame.columns) for name, frame in frames.items()}
    for name, its in columns.items():
        if its != columns.get("train", its):
            what = f"the columns of {name} are {its[:8]}, those of train {columns['train'][:8]}"
            raise UnsuitableData(f"returns Splits whose frames differ: {what}; give {name}[train.columns]")


def _dataset_of(loader: DataLoader[Any]) -> Any:
    """The dataset of a DataLoader, or its sampler's subset; DataError if it selects or joins examples otherwise."""
    if type(loader) is not DataLoader:
        raise DataError(f"a {type(loader).__name__} may change what it reads; give its dataset")
    if loader.drop_last:
        raise DataError("the DataLoader has drop_last=True, but an epoch takes each example; give its dataset")
    if loader.collate_fn is not torch_data.default_collate:
        raise DataError(
            "the DataLoader has a collate_fn; give its dataset, and do the work in the dataset or in prepare"
        )
    sampler = loader.sampler
    if isinstance(loader.dataset, IterableDataset):
        return loader.dataset
    if isinstance(sampler, torch_data.SubsetRandomSampler):
        return Subset(loader.dataset, list(sampler.indices))
    if loader.batch_size is None or type(sampler) not in (torch_data.RandomSampler, torch_data.SequentialSampler):
        what = f"a DataLoader with a {type(sampler).__name__}"
        raise DataError(f"{what} chooses examples itself; give its dataset, since an epoch takes each example once")
    return loader.dataset


def _is_dataset(value: Any) -> bool:
    if isinstance(value, (IterableDataset, Mapping, tuple, list, str, bytes)) or _is_array(value):
        return False
    return hasattr(value, "__getitem__") and hasattr(value, "__len__")


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") and hasattr(value, "shape")  # true also for pandas' frames and series


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(map(_is_array, value))


def _is_part(value: Any) -> bool:
    if isinstance(value, (Arrays, Files, Mapped, DataLoader, Dataset)) or _is_pair(value):
        return True
    return _is_dataset(value) and type(value).__module__.partition(".")[0] == "datasets"  # Hugging Face's


def _kind(value: Any) -> str:
    """Describes a value's type for an error text: `a tuple of 4: ndarray, ndarray, ndarray, ndarray`."""
    name = type(value).__name__
    if value is None:
        return "None"
    if isinstance(value, (tuple, list)):
        inner = ", ".join(type(each).__name__ for each in value[:4]) + (", ..." if len(value) > 4 else "")
        return f"a {name} of {len(value)}: {inner}"
    if isinstance(value, Mapping):
        return f"a {name} with {', '.join(map(str, list(value)[:5]))}"
    if isinstance(value, IterableDataset):
        return f"the iterable dataset {name}"
    return f"a {name}"
