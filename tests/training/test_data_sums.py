"""What a data function returns at a resume is compared with what it returned when the search began."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from tuner.training.data import Arrays, Files, Splits
from tuner.training.data_sums import differences, sums_of
from tuner.training.sources import as_splits

STREAM = np.random.default_rng(0)
INPUTS = STREAM.normal(size=(200, 3)).astype(np.float32)
TARGETS = np.arange(200) % 7
BASE = Splits(Arrays(INPUTS, TARGETS), test=Arrays(INPUTS[:30], TARGETS[:30]))


def files(folder):
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.bin").write_bytes(bytes([number]) * 10)
    paths = np.array([bytes(folder / f"{number}.bin") for number in range(20)])
    return Splits(Files(paths, TARGETS[:20], print))


class Noisy(Dataset):
    def __init__(self, targets):
        self.targets = targets

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return torch.randn(3), int(self.targets[index])


def changed(**parts):
    return replace(BASE, **{name: Arrays(*part) for name, part in parts.items()})


@pytest.mark.parametrize(
    ("now", "texts"),
    [
        (BASE, []),
        (changed(train=(INPUTS, (TARGETS + 1) % 7)), ["train has other targets, or the same in another order"]),
        (changed(train=(INPUTS[::-1], TARGETS)), ["train has other inputs, or the same in another order"]),
        (changed(test=(INPUTS[:29], TARGETS[:29])), ["test has 29 examples instead of 30"]),
        (replace(BASE, test=None), ["there is no test part"]),
        (replace(BASE, validation=BASE.test), ["there is now a validation part"]),
        (changed(train=(INPUTS.astype(np.float64), TARGETS)), ["train has other inputs, or the same in another order"]),
    ],
)
def test_what_differs_is_named_by_its_part(now, texts):
    before = json.loads(json.dumps(sums_of(BASE)))
    assert differences(before, sums_of(now)) == texts


def test_files_may_move_but_not_change(tmp_path):
    splits = files(tmp_path / "a")
    before = sums_of(splits)
    assert differences(before, sums_of(files(tmp_path / "b"))) == []
    (tmp_path / "a" / "19.bin").write_bytes(b"other")
    assert differences(before, sums_of(splits)) == ["train has other inputs, or the same in another order"]
    (tmp_path / "a" / "19.bin").unlink()  # its trial names it
    sums_of(splits)


def test_random_inputs_of_a_dataset_are_no_difference_but_its_targets_are():
    one, same, other = (as_splits(Noisy(each), classes=True) for each in (TARGETS, TARGETS, TARGETS[::-1]))
    before = torch.get_rng_state()
    assert differences(sums_of(one), sums_of(same)) == []
    assert differences(sums_of(one), sums_of(other)) == ["train has other targets, or the same in another order"]
    assert torch.equal(torch.get_rng_state(), before)


def test_damaged_sums_are_a_difference():
    for damaged in ({"train": 3}, {"train": {"examples": 1}}):
        assert differences(damaged, sums_of(BASE)) == ["what was recorded of it is damaged"]
