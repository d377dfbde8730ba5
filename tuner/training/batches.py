"""Examples as batches of tensors on a trial's device, whether they are held in memory or decoded from files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tuner.training.data import Arrays, Files
from tuner.training.loader import FileExamples
from tuner.training.task import Task

CHUNK_VALUES = 2**20  # input values gathered at once, 341 CIFAR images: 6 times as many take twice the time


class Examples(Protocol):
    """One part of the data, ready to be read.

    Attributes:
        sample: one input as the model takes it, of shape (1, ...), on the CPU.
    """

    sample: Tensor

    def __len__(self) -> int: ...

    @property
    def chunk_length(self) -> int:
        """Examples worth handling at once, whatever the batch size; at least one."""

    def batches(
        self, order: Tensor, batch_size: int, memory_format: torch.memory_format
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Prepared inputs and targets on the device, in the order of the indices given; the last may be smaller."""

    def close(self) -> None:
        """Ends the processes that load examples, if any; may be called twice."""


def examples_of(part: Arrays | Files, task: Task, device: torch.device) -> Examples:
    """The part of the data as the trial reads it. ValueError where it has no examples."""
    if len(part) == 0:
        raise ValueError("a part of the data has no examples: give it at least one")
    if isinstance(part, Files):
        return FileExamples(part, task.prepare, device)
    return ArrayExamples(part, task.prepare, device)


class ArrayExamples:
    """Arrays, gathered and prepared in bulk, never written to.

    On a CPU the tensors are views of the arrays. Elsewhere they are copied once, as stored: prepared they may be
    many times larger (CIFAR-10 at 112 x 112 takes 7.5 GB as floats, 0.15 GB as stored).
    """

    def __init__(self, arrays: Arrays, prepare: Callable[[Tensor], Tensor] | None, device: torch.device) -> None:
        self.inputs, self.targets = read_only_view(arrays.inputs), read_only_view(arrays.targets)
        self.prepare = prepare
        first = self.inputs[:1].clone()
        self.sample = prepare(first) if prepare else first
        if device.type != "cpu":
            self.inputs, self.targets = self.inputs.to(device), self.targets.to(device)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def chunk_length(self) -> int:
        """Examples whose prepared inputs hold CHUNK_VALUES together, at least one."""
        return max(1, CHUNK_VALUES // max(1, self.sample.numel()))

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

    def close(self) -> None:
        """Nothing runs."""


def read_only_view(array: np.ndarray) -> Tensor:
    """The array as a tensor without a copy; nothing here writes through it, hence no need for the warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
