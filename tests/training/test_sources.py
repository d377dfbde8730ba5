"""What people have as data becomes parts that a trial reads, or is refused in a line that says what to do."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiers import further
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)
from torchvision import transforms
from torchvision.datasets import FakeData
from torchvision.transforms import v2
from trained import figures

from tuner.space import Task
from tuner.training import sources
from tuner.training.data import Arrays, DataError, Files, Mapped, Splits
from tuner.training.loop import Training
from tuner.training.task import TrialSpec

INPUTS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
TARGETS = np.arange(40) % 3
TENSORS = torch.from_numpy(INPUTS), torch.from_numpy(TARGETS)


class Items(Dataset):
    """Any map-style dataset: `item(i)` makes one of its items."""

    def __init__(self, item, length=40):
        self.item, self.length = item, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if not 0 <= index < self.length:
            raise IndexError(index)
        return self.item(index)


def plain(index):
    return INPUTS[index], int(TARGETS[index])


class Columns:
    """As `datasets.Dataset`, which is no torch Dataset: items are dictionaries."""

    __module__ = "datasets.arrow_dataset"

    def __init__(self, **columns):
        self.columns = columns

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {name: column[index] for name, column in self.columns.items()}


PARTS = {
    "Arrays": Arrays(INPUTS, TARGETS),
    "arrays": (INPUTS, TARGETS),
    "float64, int32": (INPUTS.astype(np.float64), TARGETS.astype(np.int32)),
    "tensors": TENSORS,
    "column of labels": (INPUTS, TARGETS[:, None]),
    "labels of bytes": [INPUTS, TARGETS.astype(np.uint8)],
    "big endian": (INPUTS.astype(">f4"), TARGETS.astype(">i4")),
    "reversed twice": (INPUTS[::-1].copy()[::-1], TARGETS),
    "TensorDataset": TensorDataset(*TENSORS),
    "Subset": Subset(TensorDataset(*TENSORS), list(range(40))),
    "Subset of a Subset": Subset(Subset(Items(lambda i: plain(i - 10), 50), range(5, 50)), range(5, 45)),
    "dataset": Items(plain),
    "dataset of lists": Items(lambda i: (INPUTS[i].tolist(), TARGETS[i])),
    "dataset of tensors": Items(lambda i: [torch.from_numpy(INPUTS[i]), torch.tensor([TARGETS[i]], dtype=torch.int32)]),
    "DataLoader": DataLoader(Items(plain), batch_size=4, shuffle=True),
    "Hugging Face": Columns(x=INPUTS.tolist(), label=TARGETS.tolist()),
    "Hugging Face, label first": Columns(label=TARGETS, x=INPUTS),
}


@pytest.mark.parametrize("name", PARTS)
def test_each_form_of_small_data_becomes_the_same_arrays(name):
    part = sources.as_part(PARTS[name], classes=True, fixed=True)
    assert isinstance(part, Arrays)
    assert part.inputs.dtype == np.float32 and part.targets.dtype == np.int64
    assert np.array_equal(part.inputs, INPUTS) and np.array_equal(part.targets, TARGETS)


def test_explicit_arrays_and_other_losses_keep_their_form():
    part = sources.as_part(Arrays(INPUTS.astype(np.float64), INPUTS[:, :1]), classes=False)
    assert part.inputs.dtype == np.float64 and part.targets.shape == (40, 1)
    masks = np.zeros((40, 5, 5), np.uint8)
    assert sources.as_part((INPUTS, masks), classes=False).targets.dtype == np.uint8


def test_images_become_channels_first():
    for mode, shape in (("L", (40, 1, 4, 5)), ("RGB", (40, 3, 4, 5))):
        part = sources.as_part(Items(lambda i, m=mode: (Image.new(m, (5, 4)), 1)), classes=True, fixed=True)
        assert part.inputs.shape == shape and part.inputs.dtype == np.uint8


@pytest.mark.parametrize(
    ("returned", "sizes"),
    [
        (Splits(train=TensorDataset(*TENSORS), test=(INPUTS[:8], TARGETS[:8])), (40, None, 8)),
        ((DataLoader(Items(plain)), DataLoader(Items(plain, 10))), (40, None, 10)),
        (((INPUTS, TARGETS), (INPUTS[:5], TARGETS[:5])), (40, None, 5)),
        ((INPUTS, TARGETS), (40, None, None)),
        (random_split(TensorDataset(*TENSORS), [30, 10]), (30, None, 10)),
        (Items(plain), (40, None, None)),
        ({"train": Items(plain), "val": Items(plain, 4), "test": Items(plain, 3)}, (40, 4, 3)),
        (DataLoader(Items(plain), sampler=SubsetRandomSampler([1, 2, 3])), (3, None, None)),
    ],
)
def test_what_a_data_function_may_return(returned, sizes):
    splits = sources.as_splits(returned, classes=True)
    parts = (splits.train, splits.validation, splits.test)
    assert tuple(None if part is None else len(part) for part in parts) == sizes


class Endless(IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, ["returns None", "return Splits(train="]),
        ((INPUTS, INPUTS, TARGETS, TARGETS), ["tuple of 4", "Splits(train=(inputs, targets), validation=..., test="]),
        (Endless(), ["iterable dataset Endless", "map-style"]),
        (Splits(train=None), ["Splits(train=...)", "it is None", "Arrays(inputs, targets)"]),
        ((INPUTS, np.array(3)), ["targets is array(3)", "one row per example"]),
        (Splits(train=Endless()), ["iterable dataset Endless", "give a map-style dataset", "without streaming=True"]),
        (DataLoader(Endless()), ["iterable dataset Endless", "give a map-style dataset"]),
        ((each for each in INPUTS), ["returns a generator", "return a map-style dataset"]),
        ((INPUTS, TARGETS[:39]), ["40 inputs but 39 targets"]),
        (Items(lambda i: INPUTS[i]), ["example 0 of the Items", "an item has a ndarray", "items of two"]),
        (Items(lambda i: (1, 2, 3)), ["an item has 3 values", "items of two"]),
        (Columns(a=TARGETS, b=TARGETS, label=TARGETS), ["the columns a, b, label", "select_columns"]),
        (Items(lambda i: ("a text", 1)), ["text cannot become a tensor"]),
        (Items(lambda i: (INPUTS[i, : i + 1], 1)), ["example 1 of the Items", "(2,)", "(1,)", "same shapes"]),
        (Items(lambda i: 1 / 0), ["example 0 of the Items", "ZeroDivisionError"]),
        (Items(lambda i: (torch.zeros(2, dtype=torch.bfloat16), 1)), ["torch.bfloat16", "float32"]),
        (Items(plain, 0), ["Items is empty"]),
        (DataLoader(Items(plain), collate_fn=print), ["collate_fn", "give its dataset"]),
        (DataLoader(Items(plain), drop_last=True), ["drop_last=True", "give its dataset"]),
        (type("Mixed", (DataLoader,), {})(Items(plain)), ["a Mixed may change", "give its dataset"]),
        (Columns(target_image=INPUTS, input_image=INPUTS), ["and input_image; which one is", "a pair"]),
        (Columns(label=TARGETS, y=TARGETS), ["label and y; which one is", "a pair"]),
        (Items(lambda i: (torch.randn(3), 1)), ["two readings of example 0 of the Items differ", "fixed=True is not"]),
        (DataLoader(Items(plain), sampler=WeightedRandomSampler([1.0] * 40, 40)), ["WeightedRandomSampler"]),
        ((INPUTS, np.array(["a"] * 40)), ["text cannot become a tensor"]),
    ],
)
def test_what_is_no_data_is_refused_in_one_line(returned, words):
    read_now = isinstance(returned, (Items, Columns))
    with pytest.raises(sources.UnsuitableData) as refusal:
        sources.as_splits(Splits(returned, fixed=True) if read_now else returned, classes=True)
    assert all(word in str(refusal.value) for word in words), refusal.value
    assert "\n" not in str(refusal.value)


def noisy(index):
    return torch.from_numpy(INPUTS[index]) + torch.randn(6), int(TARGETS[index])


TASK = Task(
    data=lambda: None,
    model=lambda config: nn.Linear(6, 3),
    optimizer=lambda parameters, config: torch.optim.SGD(parameters, lr=0.05),
    batch_size=7,
    metrics={"zero": lambda outputs, targets: 0, "half": lambda outputs, targets: np.float32(0.5)},
)


def reports(data, num_cpus=1, epochs=2, state=None):
    torch.set_num_threads(num_cpus)
    splits = sources.splits_of(Task(**{**vars(TASK), "data": data}), "", 3)
    with contextlib.closing(Training(TASK, splits, TrialSpec({}, 5, 3))) as training:
        if state:
            training.load_state_dict(state)
        return splits, [figures(training.run_epoch()) for _ in range(epochs)], training.state_dict()


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker")
def test_a_dataset_that_draws_random_numbers_is_not_frozen_and_trains_to_the_same_bits():
    splits, expected, _ = reports(lambda: Items(noisy))
    assert isinstance(splits.train, Mapped) and isinstance(splits.validation, Mapped)
    assert reports(lambda: Items(noisy), num_cpus=3)[1] == expected
    _, first, state = reports(lambda: Items(noisy), epochs=1)
    assert first + reports(lambda: Items(noisy), epochs=1, state=state)[1] == expected
    assert expected[0]["zero"] == 0 and expected[0]["half"] == 0.5


class Shifted(Subset):
    """What many write so that the validation part has no augmentation."""

    def __getitem__(self, index):
        inputs, target = super().__getitem__(index)
        return inputs + 100, target

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class ShiftedTensors(TensorDataset):
    def __getitem__(self, index):
        inputs, target = super().__getitem__(index)
        return inputs + 100, target


@pytest.mark.parametrize("dataset", [Shifted(TensorDataset(*TENSORS), range(40)), ShiftedTensors(*TENSORS)])
@pytest.mark.parametrize("rows", [None, [5, 3]])
@pytest.mark.parametrize("fixed", [True, False])
def test_a_subclass_is_read_by_its_own_getitem(dataset, rows, fixed):
    part = sources.as_part(dataset if rows is None else Subset(dataset, rows), classes=True, fixed=fixed)
    assert isinstance(part, Arrays if fixed else Mapped)
    inputs = part.inputs if fixed else np.stack([part.example(row)[0] for row in range(len(part))])
    np.testing.assert_allclose(inputs, INPUTS[rows or slice(None)] + 100, rtol=1e-6)


def test_augmentation_that_seldom_does_anything_is_not_frozen():
    part = sources.as_part(Items(lambda i: (INPUTS[i] + (i == 39) * np.random.rand(), 1)), classes=True)
    assert not np.array_equal(part.example(39)[0], part.example(39)[0])


@pytest.mark.parametrize(
    ("transform", "is_fixed"),
    [
        (None, True),
        (transforms.Compose([transforms.Resize(8), transforms.ToTensor(), transforms.Normalize(0.5, 0.5)]), True),
        (v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]), True),
        (transforms.Compose([transforms.RandomHorizontalFlip(0.01), transforms.ToTensor()]), False),
        (transforms.Lambda(transforms.ToTensor()), False),
        (type("Own", (transforms.ToTensor,), {})(), False),
    ],
)
def test_torchvisions_data_is_kept_in_memory_only_if_all_its_transforms_are_known(transform, is_fixed):
    transform = transform if transform else transforms.ToTensor()
    part = sources.as_part(Subset(FakeData(20, (3, 8, 8), transform=transform), range(10)), classes=True)
    assert isinstance(part, Arrays if is_fixed else Mapped) and len(part) == 10


def test_the_plan_names_what_is_read_anew():
    splits = sources.as_splits(Splits(Items(plain), validation=TensorDataset(*TENSORS)), classes=True)
    assert sources.kinds_read_anew(splits) == ["Items"]
    splits = sources.as_splits(Splits(Items(plain), validation=TensorDataset(*TENSORS), fixed=True), classes=True)
    assert sources.kinds_read_anew(splits) == []


def test_frames_whose_columns_differ_between_parts_are_refused():
    pandas = pytest.importorskip("pandas")
    frame, labels = pandas.DataFrame(INPUTS, columns=list("abcdef")), pandas.Series(TARGETS)
    sources.as_splits(Splits((frame, labels), test=(frame[:9], labels[:9])), classes=True)
    with pytest.raises(sources.UnsuitableData, match=r"the columns of test are .*give test\[train.columns\]"):
        sources.as_splits(Splits((frame, labels), test=(frame[list("fedcba")], labels)), classes=True)


def test_a_large_dataset_stays_one_and_trains_as_arrays_do(monkeypatch):
    in_memory, expected, _ = reports(lambda: Splits(Items(plain), fixed=True))
    monkeypatch.setattr(sources, "LARGEST_BYTES", 100)
    large, from_loader, _ = reports(lambda: Splits(Subset(Items(plain), range(40)), fixed=True))
    assert isinstance(in_memory.train, Arrays) and isinstance(large.train, Mapped)
    for one, other in zip(expected, from_loader, strict=True):
        assert one == pytest.approx(other)


def test_a_data_function_gets_a_path_draws_the_same_numbers_in_each_session_and_leaves_no_trace():
    got = []

    def data(data_dir):
        got.append(data_dir)
        return random_split(TensorDataset(*TENSORS), [30, 10])

    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    one, other = (sources.splits_of(Task(**{**vars(TASK), "data": data}), folder, 3) for folder in ("", "/data"))
    assert got == [None, Path("/data")]
    assert np.array_equal(one.test.inputs, other.test.inputs)
    assert torch.equal(torch.get_rng_state(), before[0]) and np.random.get_state()[1].tolist() == before[1]


def test_files_keep_their_decode_and_get_class_numbers():
    part = sources.as_part(Files(np.array([b"a"]), np.array([[2]], np.int32), print), classes=True)
    assert part.decode is print and part.targets.tolist() == [2] and part.targets.dtype == np.int64


def test_a_frame_and_a_series_are_arrays():
    pandas = pytest.importorskip("pandas")
    part = sources.as_part((pandas.DataFrame(INPUTS), pandas.Series(TARGETS)), classes=True)
    assert np.array_equal(part.inputs, INPUTS) and part.targets.dtype == np.int64
    with pytest.raises(DataError, match="it is a DataFrame"):
        sources.as_part(pandas.DataFrame(INPUTS), classes=True)


# The package is in no default group; `Columns` behaves as its data sets do.
@pytest.mark.parametrize("form", further([None, "torch", "numpy"], 1))
def test_a_hugging_face_data_set_is_arrays(form):
    datasets = pytest.importorskip("datasets")
    columns = {"pixel_values": INPUTS.tolist(), "label": TARGETS.astype(np.int32).tolist()}
    both = datasets.Dataset.from_dict(columns).with_format(form).train_test_split(0.25, shuffle=False)
    splits = sources.as_splits(both, classes=True)
    assert (splits.train.inputs.dtype, splits.train.targets.dtype) == (np.float32, np.int64)
    np.testing.assert_allclose(splits.test.inputs, INPUTS[30:].astype(np.float32), rtol=1e-6)
    with pytest.raises(sources.UnsuitableData, match="without streaming=True"):
        sources.as_splits(both["train"].to_iterable_dataset(), classes=True)
