"""Examples decoded by a loader's processes: the same figures as from memory, each file named, nothing left running."""

import contextlib
import multiprocessing
import os

import numpy as np
import pytest
import torch
import trained
from torch import nn
from trained import figures

from tuner.space import Task
from tuner.training.batches import examples_of
from tuner.training.data import Arrays, DataError, Files, Splits, hold_out

SHAPE = (3, 6, 6)


def load(path):
    return np.load(path)


@pytest.fixture
def files(tmp_path):
    """Forty examples, a file each, and the same in memory."""
    rng = np.random.default_rng(0)
    inputs, targets = rng.integers(0, 256, (40, *SHAPE), dtype=np.uint8), rng.integers(0, 3, 40)
    for number, example in enumerate(inputs):
        np.save(tmp_path / f"{number:02}.npy", example)
    paths = np.array([os.fsencode(tmp_path / f"{number:02}.npy") for number in range(40)])
    return Files(paths, targets, load), Arrays(inputs, targets)


def classifier(config):
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(108, config["num_classes"]))


def training(part):
    splits = hold_out(Splits(part, constants={"num_classes": 3}), fraction=0.25, seed=0)
    # So large a batch that the ten of validation are one, from files and from memory.
    return contextlib.closing(trained.training(splits=splits, model=classifier, batch_size=11))


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker")
@pytest.mark.parametrize("num_cpus", [1, 3])
def test_files_train_to_the_bits_of_arrays_whatever_the_number_of_processes(files, num_cpus):
    torch.set_num_threads(num_cpus)
    reports = []
    for part in files:
        with training(part) as trial:
            reports.append([figures(trial.run_epoch()) for _ in range(2)])
            processes = multiprocessing.active_children()
        if part is files[0]:
            assert len(processes) == 2 * num_cpus  # of training and of validation, kept over the epochs
    assert reports[0] == reports[1]


def test_no_process_outlives_its_trial(files):
    before = set(multiprocessing.active_children())
    with pytest.raises(SystemExit), training(files[0]) as trial:
        trial.run_epoch()
        started = set(multiprocessing.active_children()) - before
        raise SystemExit  # as `tune.report` does to a trial that was told to stop
    assert started and not any(process.is_alive() for process in started)
    trial.close()  # a second time
    assert trial.evaluate(files[0])["loss"] == pytest.approx(trial.evaluate(files[1])["loss"])
    assert not multiprocessing.active_children()


def test_a_file_that_cannot_be_decoded_is_named_in_one_line(files, tmp_path):
    (tmp_path / "17.npy").write_bytes(b"no array")
    with pytest.raises(DataError) as raised, training(files[0]) as trial:
        trial.run_epoch()
    assert str(raised.value).startswith(f"{tmp_path / '17.npy'} cannot be read: ") and "\n" not in str(raised.value)
    assert not multiprocessing.active_children()


def test_channels_that_lie_last_stay_last(tmp_path):
    pixels = np.arange(72, dtype=np.uint8).reshape(4, 6, 3)
    np.save(tmp_path / "a.npy", pixels)
    part = Files(
        np.array([os.fsencode(tmp_path / "a.npy")] * 5), np.arange(5), lambda path: load(path).transpose(2, 0, 1)
    )
    task = Task(data=lambda data_dir: None, model=lambda config: nn.Identity(), optimizer=lambda p, c: None)
    with contextlib.closing(examples_of(part, task, torch.device("cpu"))) as examples:
        batches = list(examples.batches(torch.tensor([4, 2, 0]), 2, torch.channels_last))
    assert [targets.tolist() for _, targets in batches] == [[4, 2], [0]]
    assert batches[0][0].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batches[0][0][1].permute(1, 2, 0), torch.from_numpy(pixels))


def test_a_path_without_a_target_is_refused():
    with pytest.raises(ValueError, match="2 paths but 1 targets"):
        Files(np.array([b"a", b"b"]), np.zeros(1), load)


def test_paths_may_be_texts_and_paths_and_targets_a_list(tmp_path):
    paths = [str(tmp_path / "a"), tmp_path / "b"]
    for given in (paths, np.array([str(each) for each in paths]), [os.fsencode(each) for each in paths]):
        part = Files(given, [0, 1], load).take(np.array([1]))
        assert part.path(0) == str(tmp_path / "b") and part.targets.tolist() == [1] and part.paths.dtype.kind == "S"
    with pytest.raises(ValueError, match="paths has 3, of type int: give paths of files"):
        Files([3], [0], load)
