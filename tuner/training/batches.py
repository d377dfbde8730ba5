"""Yields batches of examples on a trial's device: from memory, or from files or a dataset by loader processes."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from tuner.training.beside import generators_in, seed_all, set_states, states_of
from tuner.training.data import Arrays, DataError, DataSplit, Files, Mapped, read_examples
from tuner.training.task import Task, kept_streams, reseed

# Numbers in a chunk of prepared inputs: those of 341 CIFAR images. With 6 times as many, an image takes twice as long.
CHUNK_VALUES = 2**20
ALIGNMENT = 64  # bytes, of torch's allocator
Batch = tuple[Tensor, Tensor]  # inputs and targets
Decoded = Batch | DataError
Rows = tuple[int, list[int]]  # a checksum of the epoch's order, and the indices of a batch's examples


class Examples:
    """Reads one part of the data (training, validation or test); `first` is its first stored input, shape (1, ...)."""

    chunk_length = 1  # how many examples are efficient to read at once, whatever the batch size

    def __init__(self, part: DataSplit, task: Task, device: torch.device, first: Tensor) -> None:
        self.part, self.device = part, device
        self.prepare = task.prepare or (lambda inputs: inputs)
        self.sample = self.prepare(first)  # (1, ...), as the model takes it, on the CPU

    def __len__(self) -> int:
        return len(self.part)

    def batches(self, order: Tensor, batch_size: int, memory_format: torch.memory_format) -> Iterator[Batch]:
        """Yields batches of prepared inputs and targets on the device, in the given order; the last may be smaller."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the loader processes that read these examples, if there are any; may be called twice."""


def examples_of(part: DataSplit, task: Task, device: torch.device) -> Examples:
    """Prepares a part for reading; raises ValueError if it is empty, DataError if its first example is unreadable."""
    if len(part) == 0:
        raise ValueError("the training, validation or test part of the data has no examples: give it at least one")
    return ArrayExamples(part, task, device) if isinstance(part, Arrays) else LoadedExamples(part, task, device)


class ArrayExamples(Examples):
    """Reads arrays in memory, many examples at once; never writes to them. A GPU gets a copy of the stored data."""

    def __init__(self, part: Arrays, task: Task, device: torch.device) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nothing writes to it
            inputs, targets = torch.from_numpy(part.inputs), torch.from_numpy(part.targets)
        super().__init__(part, task, device, inputs[:1].clone())
        self.inputs, self.targets = inputs.to(device), targets.to(device)
        self.chunk_length = max(1, CHUNK_VALUES // max(1, self.sample.numel()))

    def batches(self, order: Tensor, batch_size: int, memory_format: torch.memory_format) -> Iterator[Batch]:
        """Yields batches as views of chunks: copying each batch alone would add 9 us to a training step of 460 us.

        A CPU sums products in another order if a matrix does not begin at a multiple of ALIGNMENT, as tensors do. Such
        views are copied, so that a trial has the losses of a plain loop, to the last bit.
        """
        length = max(1, self.chunk_length // batch_size) * batch_size
        for rows in torch.split(order.to(self.device), length):
            inputs = self.prepare(self.inputs.index_select(0, rows)).contiguous(memory_format=memory_format)
            targets = self.targets.index_select(0, rows)
            for some, labels in zip(torch.split(inputs, batch_size), torch.split(targets, batch_size), strict=True):
                yield some if some.data_ptr() % ALIGNMENT == 0 else some.clone(), labels


class LoadedExamples(Examples, Dataset[Decoded]):
    """Reads batches from files or a dataset in loader processes, ahead of the training.

    The first batch starts one loader process for each thread of torch; they live until `close`.
    """

    def __init__(self, part: Files | Mapped, task: Task, device: torch.device) -> None:
        self.files = part
        self.loader: DataLoader[Decoded] | None = None
        self.order: list[Rows] = []  # the batches of the current epoch
        self.generators = generators_in(part)
        before = states_of(self.generators)
        with kept_streams():
            first, _ = whole(self[0, [0]])
        set_states(self.generators, before)
        super().__init__(part, task, device, first)

    def batches(self, order: Tensor, batch_size: int, memory_format: torch.memory_format) -> Iterator[Batch]:
        key = zlib.crc32(order.numpy().tobytes())
        self.order[:] = [(key, rows.tolist()) for rows in torch.split(order, batch_size)]
        if self.loader is None:
            self.loader = DataLoader(
                self,
                sampler=self.order,  # the loader reads this list at the start of each epoch
                batch_size=None,  # each item of `order` is a batch
                num_workers=max(1, torch.get_num_threads()),
                pin_memory=self.device.type == "cuda",
                persistent_workers=True,
                # A spawned process needs seconds to import torch, and cannot get a `decode` that cannot be pickled.
                multiprocessing_context="fork",
                generator=torch.Generator(),  # otherwise the loader draws from torch's global stream
            )
        for decoded in self.loader:
            inputs, targets = (part.to(self.device, non_blocking=True) for part in whole(decoded))
            yield self.prepare(inputs).contiguous(memory_format=memory_format), targets

    def close(self) -> None:
        iterator = self.loader._iterator if self.loader is not None else None
        self.loader = None
        if iterator is not None:
            iterator._shutdown_workers()  # type: ignore[attr-defined]

    def __getitem__(self, batch: Rows) -> Decoded:
        """Reads a batch, mostly in a loader process; returns any DataError, since a raised one would be a traceback."""
        key, rows = batch
        # A dataset may draw random numbers, for example to augment. Seeded by the epoch's order and the batch's first
        # index, the numbers depend neither on the number of loader processes nor on a resume.
        reseed(key, epoch=rows[0], devices=False)  # CUDA, before its start, would keep each seed with a traceback
        seed_all(self.generators, key, rows[0])
        try:
            inputs, targets = read_examples(self.files, rows)
        except DataError as error:
            return error
        # The batch keeps the memory order of the first input: images are decoded channels last, which trains faster.
        axes = np.argsort([-stride for stride in inputs[0].strides], kind="stable")
        examples = [example.transpose(axes) for example in inputs]
        kind = np.result_type(*{each.dtype for each in examples})
        stacked = torch.from_numpy(np.empty((len(examples), *examples[0].shape), kind))
        if get_worker_info():
            # Now, while it is empty: the process that trains gets this memory.
            stacked.share_memory_()  # type: ignore[no-untyped-call]
        np.stack(examples, out=stacked.numpy())
        return stacked.permute(0, *(np.argsort(axes) + 1).tolist()), torch.from_numpy(targets)


def whole(decoded: Decoded) -> Batch:
    """Returns a decoded batch, or raises the DataError that a loader process returned instead."""
    if isinstance(decoded, DataError):
        raise decoded
    return decoded
