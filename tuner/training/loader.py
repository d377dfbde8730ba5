"""Examples decoded from files by processes of the trial's own, as many as it has CPUs, and ended with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tuner.training.data import DataError, Files

Decoded = tuple[Tensor, Tensor] | DataError


class FileExamples:
    """Files, decoded batch by batch ahead of the training.

    As many processes decode as torch has threads when the first batch is asked for, which are a trial's CPUs; they
    stay over the epochs until `close`. Neither their number nor their speed changes what is read in which order.
    On a GPU batches come through pinned memory, copied while the device computes.
    """

    def __init__(self, files: Files, prepare: Callable[[Tensor], Tensor] | None, device: torch.device) -> None:
        self.decoder = Decoder(files)
        self.prepare = prepare
        self.device = device
        self.loader: DataLoader[Decoded] | None = None
        self.order: list[list[int]] = []  # of the epoch being read, its batches
        first, _ = whole(self.decoder[[0]])
        self.sample = prepare(first) if prepare else first

    def __len__(self) -> int:
        return len(self.decoder.files)

    @property
    def chunk_length(self) -> int:
        """1: a batch is decoded by one process, so larger ones than are asked for only make the others wait."""
        return 1

    def batches(
        self, order: Tensor, batch_size: int, memory_format: torch.memory_format
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Prepared inputs and targets on the device; DataError names a file that cannot be decoded."""
        self.order[:] = [rows.tolist() for rows in torch.split(order, batch_size)]
        if self.loader is None:
            self.loader = self.started()
        for decoded in self.loader:
            inputs, targets = (part.to(self.device, non_blocking=True) for part in whole(decoded))
            if self.prepare is not None:
                inputs = self.prepare(inputs)
            yield inputs.contiguous(memory_format=memory_format), targets

    def started(self) -> DataLoader[Decoded]:
        """The loader; its processes start when it is first read, and begin each epoch with `order` as it is then."""
        return DataLoader(
            self.decoder,
            sampler=self.order,  # read anew each epoch
            batch_size=None,  # each index is a batch
            num_workers=max(1, torch.get_num_threads()),
            pin_memory=self.device.type == "cuda",
            persistent_workers=True,
            # Forked, a process is there in 12 ms instead of the seconds that importing torch takes, and a `decode`
            # from a file that no process could import goes along. It never touches the device.
            multiprocessing_context="fork",
            # Else a loader draws from torch's own stream, and the figures would depend on how data is stored.
            generator=torch.Generator(),
        )

    def close(self) -> None:
        """Ends the processes now: a worker of Ray goes on to the next trial, and a traceback may hold this object."""
        iterator = self.loader._iterator if self.loader is not None else None
        self.loader = None
        if iterator is not None:
            iterator._shutdown_workers()  # type: ignore[attr-defined]


class Decoder(Dataset[Decoded]):
    """What a loader's process runs: batches of indices to batches of tensors."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def __getitem__(self, rows: list[int]) -> Decoded:
        """The inputs and targets of these examples; an error is returned, as a raised one arrives as a traceback."""
        try:
            inputs = [self.decode(row) for row in rows]
        except DataError as error:
            return error
        # In the memory order of the first: pictures are decoded with their channels last, and train faster so.
        axes = np.argsort([-stride for stride in inputs[0].strides], kind="stable")
        batch = np.stack([example.transpose(axes) for example in inputs]).transpose(0, *np.argsort(axes) + 1)
        return torch.from_numpy(batch), torch.from_numpy(self.files.targets[rows])

    def decode(self, row: int) -> np.ndarray:
        path = os.fsdecode(bytes(self.files.paths[row]))
        try:
            return self.files.decode(path)
        except Exception as error:  # whatever a user's function raises
            raise DataError(f"{path} cannot be decoded: {type(error).__name__}: {error}") from error


def whole(decoded: Decoded) -> tuple[Tensor, Tensor]:
    """The tensors; raises what a process of the loader met."""
    if isinstance(decoded, DataError):
        raise decoded
    return decoded
