"""Reads examples from files or a dataset in loader processes of the trial."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tuner.training.data import DataError, Files, Mapped, read_examples
from tuner.training.streams import kept_streams, reseed

Decoded = tuple[Tensor, Tensor] | DataError
Batch = tuple[int, list[int]]  # a checksum of the epoch's order, and the indices of the batch's examples


class LoadedExamples:
    """Reads examples batch by batch, ahead of the training.

    At the first batch it starts as many loader processes as torch has threads. They live until `close`. Their number
    and speed do not change the order of the examples. For a GPU, batches go through pinned memory and are copied while
    the device computes.
    """

    def __init__(self, part: Files | Mapped, prepare: Callable[[Tensor], Tensor] | None, device: torch.device) -> None:
        self.decoder = Decoder(part)
        self.prepare = prepare
        self.device = device
        self.loader: DataLoader[Decoded] | None = None
        self.order: list[Batch] = []  # the batches of the current epoch
        with kept_streams():
            first, _ = whole(self.decoder[0, [0]])
        self.sample = prepare(first) if prepare else first

    def __len__(self) -> int:
        return len(self.decoder.part)

    @property
    def chunk_length(self) -> int:
        """1, as a loader process decodes a whole batch alone: a larger batch would leave the other processes idle."""
        return 1

    def batches(
        self, order: Tensor, batch_size: int, memory_format: torch.memory_format
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields prepared inputs and targets on the device; raises a DataError that names an unreadable example."""
        key = zlib.crc32(order.numpy().tobytes())
        self.order[:] = [(key, rows.tolist()) for rows in torch.split(order, batch_size)]
        if self.loader is None:
            self.loader = self.started()
        for decoded in self.loader:
            inputs, targets = (part.to(self.device, non_blocking=True) for part in whole(decoded))
            if self.prepare is not None:
                inputs = self.prepare(inputs)
            yield inputs.contiguous(memory_format=memory_format), targets

    def started(self) -> DataLoader[Decoded]:
        """Builds the loader. Its processes start at the first read; each epoch reads the batches then in `order`."""
        return DataLoader(
            self.decoder,
            sampler=self.order,  # the loader reads this list at the start of each epoch
            batch_size=None,  # each item of `order` is a batch
            num_workers=max(1, torch.get_num_threads()),
            pin_memory=self.device.type == "cuda",
            persistent_workers=True,
            # A forked process starts in 12 ms; a spawned one needs seconds to import torch. Forking also works with
            # a `decode` function that cannot be pickled. The process never touches the device.
            multiprocessing_context="fork",
            # Without its own generator, a loader draws from torch's global stream. The metrics would then depend on
            # whether examples are in memory or in files.
            generator=torch.Generator(),
        )

    def close(self) -> None:
        """Ends the loader processes now. Garbage collection would be too late: a Ray worker trains several trials."""
        iterator = self.loader._iterator if self.loader is not None else None
        self.loader = None
        if iterator is not None:
            iterator._shutdown_workers()  # type: ignore[attr-defined]


class Decoder(Dataset[Decoded]):
    """Turns a batch of indices into a batch of tensors, in a loader process; for the sample, in the trial's process."""

    def __init__(self, part: Files | Mapped) -> None:
        self.part = part

    def __getitem__(self, batch: Batch) -> Decoded:
        """Returns the inputs and targets of a batch, or a DataError, since a raised one would arrive as a traceback."""
        key, rows = batch
        # A dataset may draw random numbers, for example to augment. Seeded by the epoch's order and the batch's first
        # index, they depend neither on the number of processes nor on a resume.
        reseed(key, epoch=rows[0])
        try:
            inputs, targets = read_examples(self.part, rows)
        except DataError as error:
            return error
        # The batch keeps the memory order of the first input: images are decoded channels last, which trains faster.
        axes = np.argsort([-stride for stride in inputs[0].strides], kind="stable")
        batched = np.stack([example.transpose(axes) for example in inputs]).transpose(0, *np.argsort(axes) + 1)
        return torch.from_numpy(batched), torch.from_numpy(targets)


def whole(decoded: Decoded) -> tuple[Tensor, Tensor]:
    """Returns a batch's decoded inputs and targets; raises the DataError if a loader process returned that instead."""
    if isinstance(decoded, DataError):
        raise decoded
    return decoded
