"""A Task trains what a plain loop would: usual trainings, written twice, have the same weights and losses, bit for bit.

Each is also stopped after its first epoch and continued from its checkpoint by a new process's objects.
"""

import contextlib
import math
import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.optim import lr_scheduler as lr

from tuner.space import Task
from tuner.training.data import Arrays, Splits
from tuner.training.loop import Training
from tuner.training.task import TrialSpec, reseed

SEED, EPOCHS, BATCH = 7, 3, 16
STREAM = np.random.default_rng(1)
FLAT = STREAM.normal(size=(60, 6)).astype(np.float32)
IMAGES = STREAM.normal(size=(60, 2, 6, 6)).astype(np.float32)
TOKENS = STREAM.integers(0, 9, (60, 5))
CLASSES = (FLAT.sum(axis=1) > 0).astype(np.int64)
NUMBERS = FLAT[:, :2] * 3 + 1
BITS = (FLAT[:, :2] > 0).astype(np.float32)
SOFT = torch.softmax(torch.from_numpy(FLAT[:, :2]), 1).numpy()
SOME = np.where(np.arange(60) % 3 == 0, -100, CLASSES)  # a third of the targets do not count


def net(config=None, last=2):
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, last))


def with_layer(layer):
    return lambda config: nn.Sequential(nn.Linear(6, 8), layer(), nn.ReLU(), nn.Linear(8, 2))


def of_images(*layers):
    return lambda config: nn.Sequential(
        nn.Conv2d(2, 4, 3), *(layer() for layer in layers), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
    )


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embedding, self.layer, self.last = nn.Embedding(9, 6), kind(6, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, tokens):
        return self.last(self.layer(self.embedding(tokens))[0][:, -1])


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.last = nn.Linear(8, 2)

    def forward(self, tokens):
        return self.last(self.layer(self.embedding(tokens)).mean(1))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.decoder.weight, self.last = self.encoder.weight, nn.Linear(6, 2)

    def forward(self, inputs):
        return self.last(self.decoder(self.encoder(inputs).relu()))


class Averaging(nn.Module):
    """Its evaluation uses an exponential moving average of the weights."""

    def __init__(self):
        super().__init__()
        self.now = net()
        self.averaged = optim.swa_utils.AveragedModel(self.now, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.9))

    def forward(self, inputs):
        if self.training:
            self.averaged.update_parameters(self.now)
            return self.now(inputs)
        return self.averaged(inputs)


class Counting(nn.Module):
    """Keeps what it has learned in plain attributes: a number, and a tensor that is no buffer."""

    def __init__(self):
        super().__init__()
        self.inner, self.steps, self.mean = net(), 0, torch.zeros(6)

    def forward(self, inputs):
        if self.training:
            self.steps += 1
            self.mean = self.mean + (inputs.detach().mean(0) - self.mean) / self.steps
        return self.inner(inputs - self.mean) * (1 + 1 / (1 + self.steps))


class Remembering(nn.Module):
    """Carries a hidden state from batch to batch, also from evaluation to training."""

    def __init__(self):
        super().__init__()
        self.inner, self.hidden = net(), torch.zeros(6)

    def forward(self, inputs):
        outputs = self.inner(inputs + self.hidden)
        self.hidden = 0.5 * self.hidden + inputs.mean(0).detach()
        return outputs


class Drawing(nn.Module):
    """Draws its own noise, by a generator of its own."""

    def __init__(self):
        super().__init__()
        self.inner, self.noise = net(), torch.Generator().manual_seed(3)

    def forward(self, inputs):
        if self.training:
            inputs = inputs + torch.randn(inputs.shape, generator=self.noise)
        return self.inner(inputs)


def frozen(config):
    model = net()
    model[0].requires_grad_(False)
    return model


def sgd(parameters, config, **options):
    return optim.SGD(parameters, **{"lr": 0.1, **options})


def by(kind, **options):
    return lambda parameters, config: kind(parameters, **options)


def two_groups(parameters, config):
    first, *rest = parameters
    return optim.AdamW([{"params": [first], "lr": 0.1, "weight_decay": 0.0}, {"params": rest}], lr=0.01)


def hooked(hook, parameters, config):
    parameters = list(parameters)
    made = optim.SGD(parameters, lr=0.1, momentum=0.9)
    made.register_step_pre_hook(lambda *_: hook(parameters) and None)
    return made


class EverySecond(optim.SGD):
    """Accumulates the gradients of two batches."""

    def __init__(self, parameters, **options):
        super().__init__(parameters, **options)
        self.param_groups[0]["turns"] = 0

    def step(self, closure=None):
        self.param_groups[0]["turns"] += 1
        if self.param_groups[0]["turns"] % 2 == 0:
            super().step()

    def zero_grad(self, set_to_none=True):
        if self.param_groups[0]["turns"] % 2 == 0:
            super().zero_grad(set_to_none)


def schedule(kind, **options):
    return lambda optimizer, config, max_epochs: kind(optimizer, **options)


def one_cycle(optimizer, config, max_epochs):
    return lr.OneCycleLR(optimizer, 0.5, total_steps=max_epochs + 1)


def warm_up(optimizer, config, max_epochs):
    first = lr.LinearLR(optimizer, 0.1, total_iters=1)
    return lr.SequentialLR(optimizer, [first, lr.CosineAnnealingLR(optimizer, max_epochs)], [1])


halving = schedule(lr.StepLR, step_size=1, gamma=0.5)
cyclic = schedule(lr.CyclicLR, base_lr=0.01, max_lr=0.2, step_size_up=2)


def chained(optimizer, config, max_epochs):
    return lr.ChainedScheduler([lr.ConstantLR(optimizer, 0.5, 1), lr.ExponentialLR(optimizer, 0.9)])


def smoothed(outputs, targets, config):
    return F.cross_entropy(outputs, targets, label_smoothing=0.1)


def focal(outputs, targets):
    loss = F.cross_entropy(outputs, targets, reduction="none")
    return ((1 - torch.exp(-loss)) ** 2 * loss).mean()


def divergence(outputs, targets):
    return F.kl_div(F.log_softmax(outputs, 1), targets, reduction="batchmean")


class Center(nn.Module):
    def __init__(self):
        super().__init__()
        self.centers = nn.Parameter(torch.zeros(2, 2))

    def forward(self, outputs, targets):
        return F.cross_entropy(outputs, targets) + 0.1 * ((outputs - self.centers[targets]) ** 2).sum(1).mean()


def with_center():
    center = Center()

    def both(parameters, config):
        return optim.SGD([{"params": list(parameters)}, {"params": center.parameters(), "lr": 0.5}], lr=0.1)

    return {"loss": center, "optimizer": both}


def drawn_by(generator, draw):
    return {"augment": lambda inputs: inputs + torch.as_tensor(draw(generator, inputs.shape), dtype=inputs.dtype)}


def mixed(inputs):
    """Mixes each input with another one; the share is numpy's."""
    share = float(np.random.beta(0.4, 0.4))
    return share * inputs + (1 - share) * inputs[torch.randperm(len(inputs))]


def flipped(images):
    return torch.stack([image.flip(-1) if random.random() < 0.5 else image for image in images])


# Name -> what makes the functions and data that differ from `usual`, anew for each training.
CASES = {
    # Optimizers
    "SGD": lambda: {},
    "momentum": lambda: {"optimizer": partial(sgd, momentum=0.9)},
    "Nesterov": lambda: {"optimizer": partial(sgd, momentum=0.9, nesterov=True, weight_decay=1e-2)},
    "maximize": lambda: {"optimizer": partial(sgd, maximize=True), "training_loss": lambda *given: -smoothed(*given)},
    "accumulation": lambda: {"optimizer": by(EverySecond, lr=0.1)},
    "scheduled accumulation": lambda: {"optimizer": by(EverySecond, lr=0.1), "schedule": halving},
    "Adam": lambda: {"optimizer": by(optim.Adam, lr=0.01)},
    "AMSGrad": lambda: {"optimizer": by(optim.Adam, lr=0.01, amsgrad=True)},
    "AdamW": lambda: {"optimizer": by(optim.AdamW, lr=0.01, weight_decay=0.1)},
    "NAdam": lambda: {"optimizer": by(optim.NAdam, lr=0.01)},
    "RAdam": lambda: {"optimizer": by(optim.RAdam, lr=0.01)},
    "Adamax": lambda: {"optimizer": by(optim.Adamax, lr=0.01)},
    "RMSprop": lambda: {"optimizer": by(optim.RMSprop, lr=0.01, momentum=0.9, centered=True)},
    "Adagrad": lambda: {"optimizer": by(optim.Adagrad, lr=0.1)},
    "Adadelta": lambda: {"optimizer": by(optim.Adadelta)},
    "Rprop": lambda: {"optimizer": by(optim.Rprop)},
    "ASGD": lambda: {"optimizer": by(optim.ASGD)},
    "two groups": lambda: {"optimizer": two_groups},
    "clipped norm": lambda: {"optimizer": partial(hooked, lambda each: nn.utils.clip_grad_norm_(each, 0.1))},
    "clipped values": lambda: {"optimizer": partial(hooked, lambda each: nn.utils.clip_grad_value_(each, 0.01))},
    # Schedules, by epoch
    "StepLR": lambda: {"schedule": schedule(lr.StepLR, step_size=1)},
    "MultiStepLR": lambda: {"schedule": schedule(lr.MultiStepLR, milestones=[1, 2])},
    "ExponentialLR": lambda: {"schedule": schedule(lr.ExponentialLR, gamma=0.5)},
    "CosineAnnealingLR": lambda: {"schedule": lambda o, c, most: lr.CosineAnnealingLR(o, most)},
    "WarmRestarts": lambda: {"schedule": schedule(lr.CosineAnnealingWarmRestarts, T_0=2)},
    "PolynomialLR": lambda: {"schedule": schedule(lr.PolynomialLR, total_iters=3)},
    "LambdaLR": lambda: {"schedule": schedule(lr.LambdaLR, lr_lambda=lambda epoch: 1 / (1 + epoch))},
    "CyclicLR": lambda: {"optimizer": partial(sgd, momentum=0.9), "schedule": cyclic},
    "OneCycleLR": lambda: {"optimizer": by(optim.AdamW, lr=0.01), "schedule": one_cycle},
    "warm-up": lambda: {"schedule": warm_up},
    "chained": lambda: {"schedule": chained},
    "halfway": lambda: {"schedule": lambda o, c, most: lr.MultiStepLR(o, [most // 2])},
    # Models
    "BatchNorm1d": lambda: {"model": with_layer(lambda: nn.BatchNorm1d(8))},
    "BatchNorm2d": lambda: {"model": of_images(lambda: nn.BatchNorm2d(4)), "inputs": IMAGES},
    "GroupNorm": lambda: {"model": of_images(lambda: nn.GroupNorm(2, 4)), "inputs": IMAGES},
    "InstanceNorm": lambda: {"model": of_images(lambda: nn.InstanceNorm2d(4, affine=True)), "inputs": IMAGES},
    "LayerNorm": lambda: {"model": with_layer(lambda: nn.LayerNorm(8))},
    "Dropout": lambda: {"model": with_layer(lambda: nn.Dropout(0.3))},
    "Dropout2d": lambda: {"model": of_images(lambda: nn.Dropout2d(0.3)), "inputs": IMAGES},
    "RReLU": lambda: {"model": with_layer(nn.RReLU)},
    "weight norm": lambda: {"model": with_layer(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)))},
    "spectral norm": lambda: {"model": with_layer(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)))},
    "LSTM": lambda: {"model": lambda config: Recurrent(nn.LSTM), "inputs": TOKENS},
    "GRU": lambda: {"model": lambda config: Recurrent(nn.GRU), "inputs": TOKENS},
    "Transformer": lambda: {"model": lambda config: Attending(), "inputs": TOKENS},
    "tied weights": lambda: {"model": lambda config: Tied()},
    "frozen layer": lambda: {"model": frozen},
    "EMA": lambda: {"model": lambda config: Averaging()},
    "plain attributes": lambda: {"model": lambda config: Counting()},
    "hidden state": lambda: {"model": lambda config: Remembering()},
    "generator of the model": lambda: {"model": lambda config: Drawing()},
    # Losses
    "label smoothing": lambda: {"training_loss": smoothed},
    "class weights": lambda: {"loss": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]))},
    "ignore_index": lambda: {"loss": nn.CrossEntropyLoss(), "targets": SOME},
    "summed loss": lambda: {"training_loss": lambda o, t, c: F.cross_entropy(o, t, reduction="sum") / 16},
    "MSE": lambda: {"loss": nn.MSELoss(), "targets": NUMBERS},
    "L1": lambda: {"loss": nn.L1Loss(), "targets": NUMBERS},
    "Huber": lambda: {"loss": nn.HuberLoss(), "targets": NUMBERS},
    "BCE": lambda: {"loss": nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0, 1.0])), "targets": BITS},
    "NLL": lambda: {"loss": lambda o, t: F.nll_loss(F.log_softmax(o, 1), t)},
    "KL divergence": lambda: {"loss": divergence, "targets": SOFT},
    "hinge": lambda: {"loss": nn.MultiMarginLoss()},
    "focal": lambda: {"loss": focal},
    "loss with parameters": with_center,
    # Data
    "batches of one": lambda: {"batch_size": 1},
    "one batch": lambda: {"batch_size": 100},
    "batch size of the setting": lambda: {"config": {"batch_size": 7}},
    "torch's noise": lambda: {"augment": lambda inputs: inputs + torch.randn_like(inputs)},
    "numpy's mixing": lambda: {"augment": mixed},
    "Python's flips": lambda: {"augment": flipped, "inputs": IMAGES, "model": of_images()},
    "Generator of numpy": lambda: drawn_by(np.random.default_rng(0), lambda g, shape: g.normal(size=shape)),
    "Philox": lambda: drawn_by(np.random.Generator(np.random.Philox(4)), lambda g, shape: g.normal(size=shape)),
    "SFC64": lambda: drawn_by(np.random.Generator(np.random.SFC64(4)), lambda g, shape: g.normal(size=shape)),
    "MT19937": lambda: drawn_by(np.random.Generator(np.random.MT19937(4)), lambda g, shape: g.normal(size=shape)),
    "RandomState": lambda: drawn_by(np.random.RandomState(0), lambda g, shape: g.normal(size=shape)),
    "Generator of torch": lambda: drawn_by(torch.Generator(), lambda g, shape: torch.randn(shape, generator=g)),
    "Random of Python": lambda: drawn_by(random.Random(0), lambda g, shape: np.full(shape, g.gauss(0, 1))),
    "bfloat16": lambda: {"precision": "bf16"},
}  # fmt: skip
OF_THE_LENGTH = {"CosineAnnealingLR", "OneCycleLR", "warm-up", "halfway"}  # schedules that depend on max_epochs
OWN = {"inputs", "targets", "config", "precision"}


def usual(name):
    case = {"model": net, "optimizer": sgd, "inputs": FLAT, "targets": CLASSES, "batch_size": BATCH, "config": {}}
    return case | {"precision": "fp32", "loss": F.cross_entropy} | CASES[name]()


def by_task(name, epochs, state=None, max_epochs=EPOCHS):
    """Train by a Task; returns its checkpoint, its reports, and the model's weights."""
    case = usual(name)
    task = Task(data=lambda: None, **{key: each for key, each in case.items() if key not in OWN})
    inputs, targets = case["inputs"], case["targets"]
    splits = Splits(Arrays(inputs[:40], targets[:40]), Arrays(inputs[40:], targets[40:]))
    spec = TrialSpec(case["config"], SEED, max_epochs, precision=case["precision"])
    with contextlib.closing(Training(task, splits, spec)) as training:
        if state is not None:
            training.restore(state)
        reports = []
        while training.epoch < epochs:
            reports.append(training.run_epoch())
        return training.state(), reports, training.model.state_dict()


def by_loop(name):
    """Train as a plain loop does; returns each epoch's training and validation loss, and the model's weights."""
    case = usual(name)
    inputs, targets, config = torch.from_numpy(case["inputs"]), torch.from_numpy(case["targets"]), case["config"]
    loss_of, augment = case.get("training_loss", lambda o, t, c: case["loss"](o, t)), case.get("augment")
    autocast = partial(torch.autocast, "cpu", torch.bfloat16, enabled=case["precision"] == "bf16")
    reseed(SEED, epoch=0)
    model = case["model"](config)
    optimizer = case["optimizer"](model.parameters(), config)
    scheduler = case["schedule"](optimizer, config, EPOCHS) if "schedule" in case else None
    losses = []
    for epoch in range(1, EPOCHS + 1):
        reseed(SEED, epoch=epoch)
        model.train()
        total = 0.0
        for rows in torch.randperm(40).split(config.get("batch_size", case["batch_size"])):
            batch = inputs[rows] if augment is None else augment(inputs[rows])
            optimizer.zero_grad()
            with autocast():
                outputs = model(batch)
            loss = loss_of(outputs.float(), targets[rows], config)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        if scheduler:
            scheduler.step()
        model.eval()
        with torch.no_grad(), autocast():
            outputs = model(inputs[40:])
        losses.append((total / 40, case["loss"](outputs.float(), targets[40:]).item()))
    return losses, model.state_dict()


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(each, other[name]) for name, each in one.items())


@pytest.mark.parametrize("name", CASES)
def test_a_task_trains_what_a_plain_loop_trains(name):
    _, reports, weights = by_task(name, EPOCHS)
    losses, expected = by_loop(name)
    assert equal(weights, expected)
    assert [(report["train_loss"], report["loss"]) for report in reports] == losses
    assert all(map(math.isfinite, losses[-1]))
    state, first, _ = by_task(name, 1)  # a new search, as after its process was killed
    _, rest, continued = by_task(name, EPOCHS, state)
    assert "doubt" not in rest[0]
    assert equal(continued, expected)
    assert [(report["train_loss"], report["loss"]) for report in first + rest] == losses
    if name not in OF_THE_LENGTH:
        shorter, _, _ = by_task(name, 1, max_epochs=1)
        assert equal(by_task(name, EPOCHS, shorter)[2], expected)  # a search that is extended


@pytest.mark.parametrize("name", sorted(OF_THE_LENGTH))
def test_a_schedule_of_an_extended_search_goes_on_as_if_it_had_had_the_new_length(name):
    case, done, length = usual(name), 2, 8
    state, _, _ = by_task(name, done, max_epochs=done)
    task = Task(data=lambda: None, **{key: each for key, each in case.items() if key not in OWN})
    splits = Splits(Arrays(FLAT[:40], CLASSES[:40]), Arrays(FLAT[40:], CLASSES[40:]))
    with contextlib.closing(Training(task, splits, TrialSpec({}, SEED, length))) as training:
        training.restore(state)
        (group,) = training.optimizer.param_groups
    optimizer = case["optimizer"](net().parameters(), {})
    scheduler = case["schedule"](optimizer, {}, length)
    for _ in range(done):
        optimizer.step(), scheduler.step()
    (expected,) = optimizer.param_groups
    assert {**group, "params": 0} == {**expected, "params": 0}
