"""Every space that ships: found by its file, sampled, trained for a moment, saved and restored."""

import contextlib

import numpy as np
import pytest
import torch
from ray.tune.search.sample import Domain

from search_spaces.datasets.cifar10 import load_sample
from tuner.spec.domains import leaves
from tuner.spec.spaces import find_space, list_spaces
from tuner.training.data import Splits, hold_out
from tuner.training.loop import Training
from tuner.training.task import TrialSpec

pytestmark = pytest.mark.usefixtures("one_thread")
SPACES = sorted(list_spaces())
# Smaller images of the same space, where it has them, so that a test takes a second.
SMALL = {"imagefolder": "imagefolder:space64"}


def data_of(space, tree):
    """Eight training and four validation examples of the space's own data: the tree, or a few of CIFAR-10's sample."""
    if "cifar10" in space.task.data.__name__:
        sample = load_sample("a test").train
        return Splits(sample.take(np.arange(8)), sample.take(np.arange(8, 12)))
    return hold_out(space.task.data(tree), fraction=0.5, seed=0)


@pytest.mark.parametrize("name", SPACES)
def test_a_space_says_what_it_is(name):
    assert 20 < len(list_spaces()[name]) < 120
    space = find_space(name).space
    assert space.reported() is None or space.metric in space.reported()


# By default `test_image_folder.py` trains on such a folder, and `test_two_stages_are_the_whole_model` runs ResNet-50.
SLOW = {*SMALL, "resnet50_pipeline"}
TASKS = [
    pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
    for name in SPACES
    if find_space(name).space.task
]


@pytest.mark.parametrize("name", TASKS)
def test_a_task_trains_reports_and_goes_on_from_a_saved_state(name, tree, tmp_path):
    space = find_space(SMALL.get(name, name)).space
    splits = data_of(space, tree)
    drawn = {name: each.sample() if isinstance(each, Domain) else each for name, each in leaves(space.params)}
    config = drawn | {"lr": 1e-3, "batch_size": 2}  # a rate at which the few steps of a deep network stay finite

    def training():
        return contextlib.closing(Training(space.task, splits, TrialSpec(config, 0, 2)))

    with training() as trial:
        report = trial.run_epoch()
        assert np.isfinite(report[space.metric]) and space.reported() <= set(report)
        torch.save(trial.state_dict(), tmp_path / "state.pt")
        expected = trial.run_epoch()
    with training() as resumed:
        resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        again = resumed.run_epoch()
    same = [name for name in expected if not name.endswith("_s")]
    assert [again[name] for name in same] == [expected[name] for name in same]


def test_the_loss_that_settings_are_compared_by_knows_no_smoothing(tree):
    space = find_space("imagefolder:space64").space
    splits = data_of(space, tree)
    base = {"lr": 0.0, "weight_decay": 0.0, "batch_size": 4}
    reports = []
    for smoothing in (0.0, 0.2):
        config = base | {"label_smoothing": smoothing}
        with contextlib.closing(Training(space.task, splits, TrialSpec(config, 0, 1))) as trial:
            reports.append(trial.run_epoch())
    plain, smoothed = reports
    assert plain["loss"] == smoothed["loss"] and plain["train_loss"] != smoothed["train_loss"]


def test_two_stages_are_the_whole_model():
    space = find_space("resnet50_pipeline").space
    torch.manual_seed(0)
    model = space.task.model({}).eval()
    first, second = space.task.stages(model)
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(second(first(images)), model(images))
    assert sum(p.numel() for part in (first, second) for p in part.parameters()) == sum(
        p.numel() for p in model.parameters()
    )
