"""What the optimizer trains beside the model, such as centers of a loss, is emptied, saved and restored with it."""

import contextlib
import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from tuner.space import Task
from tuner.training.beside import attributes_of, generators_in, set_attributes, states_of
from tuner.training.data import Arrays, Splits
from tuner.training.loop import Training
from tuner.training.task import TrialSpec, reseed

STREAM = np.random.default_rng(0)
INPUTS = STREAM.normal(size=(50, 6)).astype(np.float32)
TARGETS = (INPUTS.sum(axis=1) > 0).astype(np.int64)
SPLITS = Splits(Arrays(INPUTS, TARGETS), Arrays(INPUTS[:20], TARGETS[:20]))
NUM_EPOCHS, BATCH_SIZE = 3, 16


class Center(nn.Module):
    def __init__(self):
        super().__init__()
        self.centers = nn.Parameter(torch.zeros(2, 2))

    def forward(self, features, targets):
        return ((features - self.centers[targets]) ** 2).sum(1).mean()


def in_closure():
    center = Center()

    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets) + 0.1 * center(outputs, targets)

    return center, loss


def in_partial():
    center = Center()

    def loss(outputs, targets, center):
        return nn.functional.cross_entropy(outputs, targets) + 0.1 * center(outputs, targets)

    return center, partial(loss, center=center)


def as_module():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.center = Center()

        def forward(self, outputs, targets):
            return nn.functional.cross_entropy(outputs, targets) + 0.1 * self.center(outputs, targets)

    loss = Loss()
    return loss.center, loss


CENTER = Center()


def by_global_name():
    with torch.no_grad():
        CENTER.centers.zero_()
    CENTER.centers.grad = None

    def added(outputs, targets):
        return 0.1 * CENTER(outputs, targets)

    return CENTER, lambda outputs, targets: nn.functional.cross_entropy(outputs, targets) + added(outputs, targets)


def optimizer_of(center, parameters, config=None):
    groups = [{"params": list(parameters)}, {"params": center.parameters(), "lr": 0.5}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def training(center, loss, **spec):
    task = Task(
        data=lambda data_dir: None,
        model=lambda config: nn.Linear(6, 2),
        optimizer=partial(optimizer_of, center),
        loss=loss,
        batch_size=BATCH_SIZE,
    )
    return contextlib.closing(Training(task, SPLITS, TrialSpec({}, 3, NUM_EPOCHS, **spec)))


def plain_losses(center, loss):
    """The same training as a loop of one's own."""
    reseed(3, epoch=0)
    model = nn.Linear(6, 2)
    optimizer, losses = optimizer_of(center, model.parameters()), []
    inputs, targets = torch.from_numpy(INPUTS), torch.from_numpy(TARGETS)
    for epoch in range(1, NUM_EPOCHS + 1):
        reseed(3, epoch=epoch)
        for rows in torch.randperm(50).split(BATCH_SIZE):
            optimizer.zero_grad()
            loss(model(inputs[rows]), targets[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            losses.append(float(loss(model(inputs[:20]), targets[:20])))
    return losses


WAYS = [in_closure, in_partial, as_module, by_global_name]


@pytest.mark.parametrize("made", WAYS)
def test_a_loss_with_parameters_trains_as_in_a_plain_loop(made):
    expected = plain_losses(*made())
    with training(*made()) as one:
        assert [one.run_epoch()["loss"] for _ in range(NUM_EPOCHS)] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("made", WAYS)
def test_they_are_in_the_checkpoint(made):
    with training(*made()) as whole:
        expected = [whole.run_epoch()["loss"] for _ in range(NUM_EPOCHS)]
    with training(*made()) as first:
        losses, state = [first.run_epoch()["loss"]], first.state()
    with training(*made()) as second:
        second.restore(state)
        assert losses + [second.run_epoch()["loss"] for _ in range(NUM_EPOCHS - 1)] == expected


def test_a_parameter_of_the_optimizer_that_nothing_owns_is_refused():
    extra = nn.Parameter(torch.zeros(4, 2))

    class Holder:
        def parameters(self):
            return [extra]

    with pytest.raises(ValueError, match=r"no checkpoint would have \(shapes \(4, 2\)\); keep them in an nn.Module"):
        training(Holder(), nn.functional.cross_entropy)


def test_a_module_that_the_optimizer_does_not_train_is_not_saved():
    teacher, center = nn.Linear(6, 2), Center()

    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets) + 0 * teacher.weight.sum() + center(outputs, targets)

    with training(center, loss) as one:
        assert one.state_dict()["beside"].keys() == {"0.centers"}


def test_ddp_does_not_take_a_loss_with_parameters():
    with pytest.raises(ValueError, match="also trains a Center, whose gradients ddp does not average"):
        training(*in_closure(), num_workers=2)


class Keeps(nn.Module):
    def __init__(self, **kept):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        vars(self).update(kept)


@pytest.mark.parametrize("value", [None, 3, torch.ones(2), (torch.ones(2), [torch.zeros(1)]), {"a": torch.ones(1)}])
@pytest.mark.parametrize("before", [None, 3, torch.zeros(2)])
def test_an_attribute_replaces_one_of_any_kind_on_the_models_device(value, before):
    model = Keeps(kept=before).to("meta")
    set_attributes(model, attributes_of(Keeps(kept=value)))
    tensors = torch.utils._pytree.tree_leaves(model.kept)
    wanted = "cpu" if isinstance(before, torch.Tensor) else "meta"  # the device of the tensor that is replaced
    assert {each.device.type for each in tensors if isinstance(each, torch.Tensor)} <= {wanted}
    assert type(model.kept) is type(value)


def test_a_large_cache_hides_no_later_attribute():
    kept = attributes_of(Keeps(cache=torch.zeros(2**20), later=3))
    assert ".later" in kept and ".cache" not in kept


class Holder:
    rng = np.random.default_rng(1)

    @staticmethod
    def noise():
        return STREAM.normal()

    @property
    def own(self):
        return Holder.rng.normal()


def test_generators_are_found_in_static_methods_and_properties_but_not_those_without_a_state():
    drawn = random.SystemRandom()
    found = generators_in(Holder(), lambda: drawn.random())
    assert STREAM in found and Holder.rng in found and drawn not in found
    assert len(states_of(found)) == len(found)


def test_the_attributes_of_an_empty_container_are_set():
    class Memory(nn.Module):
        def __init__(self, *kept):
            super().__init__()
            self.kept = list(kept)

        def __len__(self):
            return len(self.kept)

    model = Memory()
    set_attributes(model, attributes_of(Memory(3.0)))
    assert model.kept == [3.0]
