"""A training that is loaded from a checkpoint, or as its saved model, must validate as it did; else a line says why."""

import contextlib
import io

import numpy as np
import pytest
import torch
from torch import nn

from tuner.space import Task
from tuner.training import doubts
from tuner.training.data import Arrays, Mapped, Splits
from tuner.training.loop import Training
from tuner.training.sources import splits_of
from tuner.training.task import TrialSpec

INPUTS = np.random.default_rng(1).normal(size=(60, 6)).astype(np.float32)
TARGETS = (INPUTS.sum(axis=1) > 0).astype(np.int64)
SPLITS = Splits(Arrays(INPUTS[:40], TARGETS[:40]), Arrays(INPUTS[40:], TARGETS[40:]))


class Shifted(nn.Module):
    """Learns the mean of its inputs by a method of its own, which returns what it keeps."""

    def __init__(self, kept):
        super().__init__()
        self.inner, self.mean, self.kept = nn.Linear(6, 2), kept(torch.zeros(6)), kept

    def forward(self, inputs):
        if self.training:
            self.mean = self.kept(inputs.detach().mean(0) * 5)
        mean = self.mean if isinstance(self.mean, torch.Tensor) else torch.as_tensor(self.mean[0])
        return self.inner(inputs - mean)


class AlwaysDropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 2)

    def forward(self, inputs):
        return self.inner(nn.functional.dropout(inputs, 0.5, training=True))


class InArray(list):
    """A list of a class of its own, which no checkpoint has."""


def training(model, splits=SPLITS):
    task = Task(data=lambda: None, model=lambda config: model(), optimizer=lambda p, c: torch.optim.SGD(p, lr=0.1))
    return contextlib.closing(Training(task, splits, TrialSpec({}, 3, 3)))


def trained(model):
    with training(model) as one:
        report = one.run_epoch()
        return one.state(), report["loss"]


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (lambda: Shifted(lambda mean: InArray([mean.numpy()])), ".mean"),
        (lambda: Shifted(lambda mean: mean), ""),  # a plain attribute
        (lambda: nn.Linear(6, 2), ""),
        (AlwaysDropping, ""),  # no two evaluations are alike
    ],
)
def test_a_checkpoint_without_some_state_is_told_with_the_attribute_that_may_have_it(model, named):
    state, _ = trained(model)
    with training(model) as one:
        one.restore(state)
        first, second = one.run_epoch(), one.run_epoch()
    assert (named in first.get("doubt", "-") and "epoch 1" in first["doubt"]) if named else "doubt" not in first
    assert "doubt" not in second


@pytest.mark.parametrize(
    ("model", "named"), [(lambda: Shifted(lambda mean: mean), ".mean"), (lambda: nn.Linear(6, 2), "")]
)
def test_a_saved_model_that_validates_otherwise_is_told(model, named):
    state, loss = trained(model)
    saved = torch.load(io.BytesIO(state), weights_only=True)["training"]
    with training(model) as one:
        one.load_weights(saved)
        said = doubts.of_model(loss, saved["attributes"], one.model, one.validation_loss)
    assert named in said and bool(named) == bool(said)
    assert not named or f"{loss:.6g}" in said


def test_a_saved_model_that_validates_with_nan_is_told():
    state, loss = trained(lambda: nn.Linear(6, 2))
    saved = torch.load(io.BytesIO(state), weights_only=True)["training"]
    with training(lambda: nn.Linear(6, 2)) as one:
        one.load_weights(saved)
        one.model.weight.data.fill_(float("nan"))
        assert "has validation loss nan" in doubts.of_model(loss, [], one.model, one.validation_loss)


def test_a_validation_part_that_is_augmented_is_no_doubt():
    noisy = Noisy()
    noisy.number = 3000  # so that the validation part has several batches
    task = Task(
        data=lambda: Splits(noisy), model=lambda c: nn.Linear(6, 2), optimizer=lambda p, c: torch.optim.SGD(p, 0.1)
    )
    splits = splits_of(task, "", 3)
    with training(lambda: nn.Linear(6, 2), splits) as one:
        one.run_epoch()
        state = one.state()
    with training(lambda: nn.Linear(6, 2), splits) as one:
        one.restore(state)
        assert "doubt" not in one.run_epoch()


class Noisy:
    """A data set that augments by a generator of its own."""

    def __init__(self):
        self.stream, self.number = np.random.default_rng(0), 40

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        row = index % len(INPUTS)
        return INPUTS[row] + self.stream.normal(size=6).astype(np.float32), int(TARGETS[row])


def test_a_data_sets_own_generator_draws_the_same_after_a_resume_and_with_other_loader_processes():
    def parts():
        return Splits(Mapped(Noisy(), np.arange(40), lambda item: item), SPLITS.validation)

    def linear():
        return nn.Linear(6, 2)

    before = torch.get_num_threads()
    curves = []
    try:
        for num_threads in (1, 3):
            torch.set_num_threads(num_threads)
            with training(linear, parts()) as one:
                curve = [one.run_epoch()["train_loss"]]
                state = one.state()
                curve += [one.run_epoch()["train_loss"] for _ in range(2)]
            with training(linear, parts()) as other:
                other.restore(state)
                assert [other.run_epoch()["train_loss"] for _ in range(2)] == curve[1:]
            curves.append(curve)
    finally:
        torch.set_num_threads(before)
    assert curves[0] == curves[1] and len(set(curves[0])) == 3
