"""Records tables of learning curves from small real trainings on a CPU.

python -m benchmarks.search_quality.trainings FOLDER [--only NAME ...]
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import pydoc_data.topics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import SGDClassifier
from torch import nn
from torch.nn import functional

from benchmarks.search_quality import tables
from benchmarks.search_quality.simulate import ranges

Setting = dict[str, Any]
Curve = Iterator[float]  # the validation metric after each epoch


def log(low: float, high: float) -> dict[str, Any]:
    return {"type": "loguniform", "low": low, "high": high}


def uniform(low: float, high: float) -> dict[str, Any]:
    return {"type": "uniform", "low": low, "high": high}


def whole(low: int, high: int, kind: str = "randint") -> dict[str, Any]:
    return {"type": kind, "low": low, "high": high}


def choice(*values: Any) -> dict[str, Any]:
    return {"type": "choice", "values": list(values)}


@dataclass(frozen=True)
class Training:
    """A kind of training: its space, its metric and its curves.

    Args:
        curve: (setting, number of epochs) -> the metric after each epoch; it may end early if the training diverged.
        seconds: whether an epoch's time is that of the generator; False divides the whole time by the epochs, for
            libraries that train all epochs at once.
    """

    name: str
    metric: str
    mode: str
    num_settings: int
    epochs: int
    space: dict[str, dict[str, Any]]
    curve: Callable[[Setting, int], Curve]
    seconds: bool = True


# Multilayer perceptrons on scikit-learn's digits

MLP = {
    "lr": log(1e-4, 1.0),
    "batch_size": whole(16, 512, "lograndint"),
    "width": whole(8, 256, "lograndint"),
    "num_layers": whole(1, 4),
    "dropout": uniform(0.0, 0.8),
    "weight_decay": log(1e-6, 1e-1),
    "optimizer": choice("sgd", "momentum", "adam"),
    "activation": choice("relu", "tanh", "sigmoid"),
}
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}


@cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    labels = labels[order]
    flipped = np.random.default_rng(1).random(len(labels)) < 0.1  # a tenth of the training labels is wrong
    flipped[:600] = False
    labels = np.where(flipped, np.random.default_rng(2).integers(0, 10, len(labels)), labels)
    return torch.tensor(images[order] / 16, dtype=torch.float32), torch.tensor(labels)


def optimizer_of(setting: Setting, parameters: Any) -> torch.optim.Optimizer:
    if setting["optimizer"] == "adam":
        return torch.optim.Adam(parameters, lr=setting["lr"] / 10, weight_decay=setting["weight_decay"])
    momentum = 0.9 if setting["optimizer"] == "momentum" else 0.0
    return torch.optim.SGD(parameters, lr=setting["lr"], momentum=momentum, weight_decay=setting["weight_decay"])


def mlp(setting: Setting, epochs: int) -> Curve:
    inputs, labels = digits()
    sizes = [64] + [setting["width"]] * setting["num_layers"]
    layers: list[nn.Module] = []
    for before, after in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(before, after), ACTIVATIONS[setting["activation"]](), nn.Dropout(setting["dropout"])]
    model = nn.Sequential(*layers, nn.Linear(sizes[-1], 10))
    optimizer = optimizer_of(setting, model.parameters())
    train = range(600, len(inputs))
    for _ in range(epochs):
        model.train()
        for batch in torch.split(torch.randperm(len(train)) + train.start, setting["batch_size"]):
            step(optimizer, functional.cross_entropy(model(inputs[batch]), labels[batch]))
        model.eval()
        with torch.no_grad():
            yield float(functional.cross_entropy(model(inputs[:600]), labels[:600]))


def step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


# Convolutional networks on the CIFAR-10 sample, with a learning rate that falls to zero: curves cross late

CNN = {
    "lr": log(1e-3, 1.0),
    "momentum": uniform(0.0, 0.98),
    "weight_decay": log(1e-5, 1e-1),
    "batch_size": whole(32, 256, "lograndint"),
    "channels": whole(4, 24, "lograndint"),
    "warm_up": uniform(0.0, 0.5),
    "label_smoothing": uniform(0.0, 0.3),
    "norm": choice("batch", "none"),
}


@cache
def cifar() -> tuple[torch.Tensor, torch.Tensor]:
    from search_spaces.datasets.cifar10_files import load_sample

    part = load_sample("a table needs no more").train
    inputs = torch.as_tensor(np.array(part.inputs[:3000])).float() / 127.5 - 1
    return functional.avg_pool2d(inputs, 2), torch.as_tensor(np.array(part.targets[:3000])).long()


def cnn(setting: Setting, epochs: int) -> Curve:
    inputs, labels = cifar()
    channels, norm = setting["channels"], setting["norm"] == "batch"
    layers: list[nn.Module] = []
    for before, after in ((3, channels), (channels, 2 * channels), (2 * channels, 4 * channels)):
        layers += [nn.Conv2d(before, after, 3, padding=1), *([nn.BatchNorm2d(after)] if norm else [])]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * channels, 10))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=setting["lr"], momentum=setting["momentum"], weight_decay=setting["weight_decay"]
    )
    size = setting["batch_size"]
    total = epochs * math.ceil(2000 / size)
    at = 0
    for _ in range(epochs):
        model.train()
        for batch in torch.split(torch.randperm(2000), size):
            done = at / total
            rising = done / setting["warm_up"] if setting["warm_up"] > 0 else 1.0
            falling = 0.5 * (1 + math.cos(math.pi * done))
            optimizer.param_groups[0]["lr"] = setting["lr"] * min(rising, falling)
            scores = model(inputs[batch])
            step(optimizer, functional.cross_entropy(scores, labels[batch], label_smoothing=setting["label_smoothing"]))
            at += 1
        model.eval()
        with torch.no_grad():
            yield float((model(inputs[2000:]).argmax(1) != labels[2000:]).float().mean()) * 100


# Recurrent language models of characters, on the texts of Python's help

GRU = {
    "lr": log(1e-4, 1e-1),
    "hidden": whole(8, 128, "lograndint"),
    "embedding": whole(4, 64, "lograndint"),
    "length": whole(8, 64, "lograndint"),
    "batch_size": whole(8, 64, "lograndint"),
    "clip": log(1e-2, 10.0),
    "beta1": uniform(0.5, 0.99),
}
STEPS = 25  # of an epoch


@cache
def text() -> tuple[torch.Tensor, int]:
    written = "".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))[:200_000]
    letters = sorted(set(written))
    place = {letter: number for number, letter in enumerate(letters)}
    return torch.tensor([place[letter] for letter in written]), len(letters)


class CharacterModel(nn.Module):
    def __init__(self, size: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(size, embedding)
        self.gru = nn.GRU(embedding, hidden, batch_first=True)
        self.head = nn.Linear(hidden, size)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.gru(self.embed(letters))[0])
        return scores


def gru(setting: Setting, epochs: int) -> Curve:
    letters, size = text()
    length = setting["length"]
    held_out = letters[-32 * 65 :].view(32, 65)
    train = letters[: -32 * 65]
    model = CharacterModel(size, setting["embedding"], setting["hidden"])
    optimizer = torch.optim.Adam(model.parameters(), lr=setting["lr"], betas=(setting["beta1"], 0.99))

    def loss(part: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten())

    for _ in range(epochs):
        for _ in range(STEPS):
            starts = torch.randint(len(train) - length - 1, (setting["batch_size"],))
            batch_loss = loss(torch.stack([train[start : start + length + 1] for start in starts.tolist()]))
            optimizer.zero_grad()
            batch_loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), setting["clip"])
            optimizer.step()
        with torch.no_grad():
            yield float(loss(held_out))


# Gradient boosting: an epoch is two trees, and curves rise again where they overfit

BOOSTING = {
    "learning_rate": log(1e-2, 1.0),
    "max_depth": whole(1, 8),
    "min_samples_leaf": whole(1, 64, "lograndint"),
    "subsample": uniform(0.2, 1.0),
    "max_features": uniform(0.1, 1.0),
    "alpha": uniform(0.5, 0.99),
    "loss": choice("squared_error", "absolute_error", "huber"),
}


@cache
def friedman() -> tuple[Any, Any]:
    inputs, targets = datasets.make_friedman1(900, 12, noise=2.0, random_state=0)
    return inputs, targets


def boosting(setting: Setting, epochs: int) -> Curve:
    inputs, targets = friedman()
    seed = int(torch.randint(2**31, ()))
    model = GradientBoostingRegressor(n_estimators=2 * epochs, random_state=seed, **setting)
    model.fit(inputs[:500], targets[:500])
    for number, predicted in enumerate(model.staged_predict(inputs[500:]), 1):
        if number % 2 == 0:
            yield float(np.sqrt(np.mean((predicted - targets[500:]) ** 2)))


# Linear classifiers by stochastic gradient descent, on many useless features; more is better

LINEAR = {
    "loss": choice("hinge", "log_loss", "modified_huber", "perceptron"),
    "penalty": choice("l1", "l2", "elasticnet"),
    "alpha": log(1e-7, 1e-1),
    "l1_ratio": uniform(0.0, 1.0),
    "learning_rate": choice("constant", "invscaling", "adaptive"),
    "eta0": log(1e-5, 1.0),
    "power_t": uniform(0.1, 0.9),
}


@cache
def sparse() -> tuple[Any, Any]:
    inputs, labels = datasets.make_classification(
        1500, 60, n_informative=12, n_redundant=8, n_classes=4, flip_y=0.05, class_sep=0.8, random_state=0
    )
    return inputs, labels


def linear(setting: Setting, epochs: int) -> Curve:
    inputs, labels = sparse()
    model = SGDClassifier(random_state=int(torch.randint(2**31, ())), **setting)
    for _ in range(epochs):
        order = torch.randperm(700).numpy()
        model.partial_fit(inputs[order], labels[order], classes=range(4))
        yield float(model.score(inputs[700:], labels[700:]))


TRAININGS = [
    Training("digits_mlp", "loss", "min", 1500, 27, MLP, mlp),
    Training("cifar_cnn", "error_percent", "min", 400, 16, CNN, cnn),
    Training("text_gru", "loss", "min", 400, 20, GRU, gru),
    Training("friedman_boosting", "rmse", "min", 1500, 50, BOOSTING, boosting, seconds=False),
    Training("linear_sgd", "accuracy", "max", 1500, 30, LINEAR, linear),
]


def trained(training: Training, setting: Setting, number: int) -> tuple[list[float], list[float]]:
    """Returns the metric and the CPU seconds of each epoch of one training; NaN from the epoch on where it diverged."""
    torch.set_num_threads(1)
    torch.manual_seed(number)
    values, seconds, before = [], [], time.process_time()
    curve = training.curve(setting, training.epochs)
    while len(values) < training.epochs:
        try:
            value = next(curve)
        except (StopIteration, ValueError):  # scikit-learn refuses weights that are not finite
            break
        if not math.isfinite(value):
            break
        now = time.process_time()
        values.append(value)
        seconds.append(now - before)
        before = now
    if not training.seconds or not seconds:
        seconds = [(sum(seconds) + time.process_time() - before) / training.epochs] * training.epochs
    missing = training.epochs - len(values)
    return values + [math.nan] * missing, seconds + [sum(seconds) / len(seconds)] * (training.epochs - len(seconds))


def record(training: Training, path: Path, processes: int) -> None:
    """Trains random settings and writes their table."""
    stream = np.random.RandomState(0)
    drawn = ranges(training.space)
    settings = [
        {name: plain(domain.sample(random_state=stream)) for name, domain in drawn.items()}
        for _ in range(training.num_settings)
    ]
    number = range(len(settings))
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        curves = list(pool.map(trained, [training] * len(settings), settings, number, chunksize=4))
    values, seconds = zip(*curves, strict=True)
    tables.write(path, training.metric, training.mode, training.space, settings, values, seconds)
    diverged = sum(math.isnan(each[-1]) for each in values)
    print(f"{path}: {len(settings)} settings x {training.epochs} epochs, {diverged} diverged", flush=True)


def plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search_quality.trainings", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder to write the tables to")
    parser.add_argument("--only", nargs="+", choices=[each.name for each in TRAININGS], help="the trainings to record")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    given = parser.parse_args()
    for training in TRAININGS:
        if given.only is None or training.name in given.only:
            record(training, given.folder / f"{training.name}.npz", given.processes)


if __name__ == "__main__":
    main()
