"""One trial's training: epoch after epoch of train and validate, exact in repeat and in resume."""

from __future__ import annotations

import copy
import random
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tuner.space import Config, Task
from tuner.training.data import Arrays, Splits

CHUNK_VALUES = 2**20  # input values gathered at once, 341 CIFAR images: 6 times as many take twice the time
SMALL_CONVOLUTION = 1_500_000  # multiply-adds a batch, see `small_convolutions`


class Training:
    """One setting being trained, epoch by epoch; the same seed gives the same figures, bit for bit on a CPU.

    Every random stream (random, numpy, torch) is reseeded from (seed, epoch) when an epoch starts, so that a
    state holds no random state and an epoch does not depend on what else the process has run.

    Args:
        task: the functions that say what is trained.
        config: the setting; `batch_size` in it goes before the task's.
        splits: with a validation part (see `hold_out`); read, never written, so shared memory will do.
        seed: at least 0.
        max_epochs: passed on to the task's schedule; `run_epoch` does not stop there.
        device: where the model lives, as torch names it.

    Raises:
        ValueError: the batch size is no integer above 0, or the splits have no validation part.
    """

    def __init__(
        self, task: Task, config: Config, splits: Splits, *, seed: int, max_epochs: int, device: str = "cpu"
    ) -> None:
        if splits.validation is None:
            raise ValueError("the splits have no validation part: take one with hold_out first")
        self.task = task
        self.seed = seed
        self.device = torch.device(device)
        self.epoch = 0  # epochs done
        self.batch_size = checked_batch_size(config.get("batch_size", task.batch_size))
        self.loss = task.loss or nn.functional.cross_entropy
        self.train_examples = Examples.of(splits.train, task, self.device)
        self.validation_examples = Examples.of(splits.validation, task, self.device)
        reseed(seed, epoch=0)
        self.model = task.model(config)
        self.choose_backend()
        self.model.to(self.device).to(memory_format=self.train_format)
        self.parameters = list(self.model.parameters())
        self.optimizer = task.optimizer(self.parameters, config)
        self.schedule = task.schedule(self.optimizer, config, max_epochs) if task.schedule else None

    def choose_backend(self) -> None:
        """oneDNN or torch's own convolutions, and the memory formats of training and of evaluation."""
        on_cpu = self.device.type == "cpu"
        # Channels last halves a step of 16 CIFAR images or more against torch's default, on a CPU.
        fast = torch.channels_last if on_cpu and self.task.channels_last else torch.contiguous_format
        self.onednn = not (on_cpu and small_convolutions(self.model, self.train_examples, self.batch_size))
        self.train_format = fast if self.onednn else torch.contiguous_format
        self.evaluate_format = fast

    def run_epoch(self) -> dict[str, float]:
        """Trains one epoch, then validates.

        Returns:
            `loss` and each of the task's metrics on the validation part, `train_loss` (all of them means over
            examples), `train_s` and `validate_s` (seconds), `images_per_s` (training alone).
        """
        started = time.perf_counter()
        train_loss = self.train_epoch()
        trained = time.perf_counter()
        report = self.evaluate_examples(self.validation_examples)
        train_s = trained - started
        report["train_loss"] = train_loss
        report["train_s"] = train_s
        report["validate_s"] = time.perf_counter() - trained
        report["images_per_s"] = len(self.train_examples) / train_s
        return report

    def train_epoch(self) -> float:
        """Trains on every example once and counts the epoch; returns the mean loss over examples."""
        reseed(self.seed, epoch=self.epoch + 1)
        order = torch.randperm(len(self.train_examples))
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        self.model.train()
        with onednn(self.onednn):
            for inputs, targets in self.train_examples.batches(order, self.batch_size, self.train_format):
                if self.task.augment is not None:
                    inputs = self.task.augment(inputs)
                total.add_(self.train_step(inputs, targets), alpha=len(targets))
        if self.schedule is not None:
            self.schedule.step()
        self.epoch += 1
        return float(total) / len(self.train_examples)  # the epoch's one wait for the device

    def train_step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """One update of the parameters; returns the batch's mean loss, still on the device."""
        loss = self.loss(self.model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        for parameter in self.parameters:  # zero_grad does the same in 10 us more, of a small step's 460
            parameter.grad = None
        return loss.detach()

    def evaluate(self, arrays: Arrays) -> dict[str, float]:
        """`loss` and each of the task's metrics, means over the examples of `arrays`."""
        return self.evaluate_examples(Examples.of(arrays, self.task, self.device))

    @torch.inference_mode()
    def evaluate_examples(self, examples: Examples) -> dict[str, float]:
        measures = {"loss": self.loss, **self.task.metrics}
        totals = torch.zeros(len(measures), dtype=torch.float64, device=self.device)
        batch_size = max(self.batch_size, examples.chunk_length)
        self.model.eval()
        order = torch.arange(len(examples))
        for inputs, targets in examples.batches(order, batch_size, self.evaluate_format):
            outputs = self.model(inputs)
            values = [measure(outputs, targets) for measure in measures.values()]
            totals += torch.stack(values) * len(targets)
        return dict(zip(measures, (totals / len(examples)).tolist(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs to go on bit-equal; as in torch its tensors are the live ones."""
        return {
            "epoch": self.epoch,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], keep: Collection[str] = ()) -> None:
        """Goes on from `state`, which must come from the same task and the same shapes; it is not aliased.

        The optimizer's options named in `keep` stay as this setting has them: population based training
        copies another trial's state and changes its learning rate.
        """
        groups = self.optimizer.param_groups
        kept = [{name: group[name] for name in keep if name in group} for group in groups]
        self.epoch = state["epoch"]
        self.model.load_state_dict(state["model"])
        # Copied, because torch keeps the tensors of the optimizer's state that need no conversion.
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        for group, options in zip(self.optimizer.param_groups, kept, strict=True):
            group.update(options)
        if self.schedule is not None:
            self.schedule.load_state_dict(copy.deepcopy(state["schedule"]))


@dataclass(frozen=True)
class Examples:
    """One part of the data as tensors, and what is still to be done to a chunk of it."""

    inputs: Tensor
    targets: Tensor
    prepare: Callable[[Tensor], Tensor] | None

    @classmethod
    def of(cls, arrays: Arrays, task: Task, device: torch.device) -> Examples:
        """On a CPU views of the arrays, prepared as they are read; elsewhere prepared once and resident."""
        if len(arrays) == 0:
            raise ValueError("a part of the data has no examples: give it at least one")
        examples = cls(read_only_view(arrays.inputs), read_only_view(arrays.targets), task.prepare)
        if device.type == "cpu":
            return examples
        order, length = torch.arange(len(examples)), examples.chunk_length
        first, _ = next(examples.chunks(order, 1))
        resident = torch.empty((len(examples), *first.shape[1:]), dtype=first.dtype, device=device)
        chunks = examples.chunks(order, length)
        for part, (inputs, _) in zip(torch.split(resident, length), chunks, strict=True):
            part.copy_(inputs, non_blocking=True)
        return cls(resident, examples.targets.to(device), None)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def chunk_length(self) -> int:
        """Examples whose inputs hold CHUNK_VALUES together, at least one."""
        return max(1, CHUNK_VALUES // max(1, self.inputs[0].numel()))

    def chunks(self, order: Tensor, length: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Prepared copies of the examples, `length` at a time, in the order of the indices given."""
        for rows in torch.split(order.to(self.inputs.device), length):
            inputs = self.inputs.index_select(0, rows)
            yield (self.prepare(inputs) if self.prepare else inputs), self.targets.index_select(0, rows)

    def batches(
        self, order: Tensor, batch_size: int, memory_format: torch.memory_format
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Views of chunks of whole batches: gathering each batch alone costs 9 us, of a small step's 460."""
        length = max(1, self.chunk_length // batch_size) * batch_size
        for inputs, targets in self.chunks(order, length):
            inputs = inputs.contiguous(memory_format=memory_format)
            yield from zip(torch.split(inputs, batch_size), torch.split(targets, batch_size), strict=True)


def small_convolutions(model: nn.Module, examples: Examples, batch_size: int) -> bool:
    """Whether oneDNN's fixed cost of a call outweighs its faster arithmetic.

    Decided from shapes alone, never from timing, because the choice changes the last bits of the figures.
    Seven small networks at batch sizes 1 to 8, one thread: up to 1.4 million multiply-adds in the largest
    convolution of a batch a step without oneDNN took 0.50 to 1.04 of one with it (channels last), from 1.8
    million on 1.03 to 1.94. The tutorial's LeNet, ms a step without and with: 0.41 and 0.58 at batch size 2,
    0.58 and 0.69 at 4, 1.15 and 0.90 at 8.
    """
    if batch_size > 8:
        return False
    work = []

    def note(module: nn.Module, _: Any, output: Tensor) -> None:
        work.append(output[0].numel() * module.weight[0].numel())  # type: ignore[index]

    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    hooks = [part.register_forward_hook(note) for part in model.modules() if isinstance(part, kinds)]
    if hooks:
        model.eval()
        with torch.no_grad():
            model(next(examples.chunks(torch.zeros(1, dtype=torch.int64), 1))[0])
    for hook in hooks:
        hook.remove()
    return bool(work) and batch_size * max(work) <= SMALL_CONVOLUTION


@contextmanager
def onednn(enabled: bool) -> Iterator[None]:
    """Switches oneDNN off inside unless `enabled`; put back after, as other trials follow in the process."""
    before = bool(torch.backends.mkldnn.enabled)
    torch.backends.mkldnn.enabled = before and enabled  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before  # type: ignore[assignment]


def checked_batch_size(value: object) -> int:
    """The batch size as an int (searchers give numpy's too), at least 1; anything else is a ValueError."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"batch_size is {value!r}: give an integer of at least 1")
    return int(value)


def reseed(seed: int, *, epoch: int) -> None:
    """Starts every random stream from (seed, epoch); epoch 0 is the model's construction."""
    words = np.random.SeedSequence(seed, spawn_key=(epoch,)).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.manual_seed(int(words[2]))  # every CUDA device's stream too


def read_only_view(array: np.ndarray) -> Tensor:
    """The array as a tensor without a copy; nothing here writes through it, hence no need for the warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
