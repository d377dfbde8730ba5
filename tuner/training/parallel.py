"""Strategies: how a training uses several processes or devices. A model is written for one device.

A strategy places the model on devices, wraps it for training, and selects the examples of this process. It weights
losses, combines the processes' gradients and sums, and computes a loss on the right device. `Training` calls it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tuner.training.batches import Examples
from tuner.training.devices import accelerator
from tuner.training.devices.compiled import compiled
from tuner.training.stages import Staged, devices_of_stages, stages_of
from tuner.training.task import Config, Task

Measure = Callable[[Any, Tensor], Tensor]
Batches = Iterator[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Worker:
    """The strategy of a trial, and the role of this process in it.

    Args:
        strategy: single, ddp, dp, model or pipeline.
        rank: this process's number in the trial, from 0.
        num_workers: number of processes of the trial; more than 1 only with ddp.
        num_devices: number of devices that this process uses; more than 1 only with dp, model and pipeline.
    """

    strategy: str = "single"
    rank: int = 0
    num_workers: int = 1
    num_devices: int = 1

    def devices(self, first: str) -> list[torch.device]:
        """Returns this process's devices: `first` if it uses one, else GPUs from index 0, or the CPU, repeated."""
        return accelerator.here.devices(first, self.num_devices)


class Single:
    """Trains in one process on one device. Its docstrings also describe subclasses that use several."""

    shrinks = True  # whether this process itself computes a batch in parts, if the batch does not fit in memory

    def __init__(self, worker: Worker, devices: list[torch.device], task: Task, config: Config) -> None:
        self.worker, self.devices, self.task, self.config = worker, devices, task, config

    def place(self, model: nn.Module) -> None:
        """Moves the model to its devices."""
        model.to(self.devices[0])

    def networks(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        """The modules that run the placed model: one for training, one for evaluation."""
        return (compiled(model, self.devices[0]) if self.task.compile else model), model

    def share_of(self, num_examples: int) -> int:
        """The most examples that one process gets of a batch of `num_examples`."""
        return num_examples

    def batches(self, examples: Examples, order: Tensor, batch_size: int, format: torch.memory_format) -> Batches:
        """Yields this process's part of each batch; `batch_size` counts the examples of all processes."""
        return examples.batches(order, batch_size, format)

    def rows(self, num_examples: int) -> Tensor:
        """The indices of the examples that this process evaluates."""
        return torch.arange(num_examples)

    def scale_loss(self, backward: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        """Wraps `backward` so that it weights the loss by the size of this process's part of the batch."""
        return backward

    def accumulating(self) -> AbstractContextManager[Any]:
        """A context for computing gradients to which another part of the batch will be added."""
        return nullcontext()

    def complete_gradients(self, parameters: list[nn.Parameter]) -> None:
        """With several processes, averages gradients that the backward pass has not averaged, before a step."""

    def total(self, sums: Tensor) -> Tensor:
        """Adds up sums over all processes."""
        return sums

    def broadcast_buffers(self, model: nn.Module) -> None:
        """With several processes, copies the buffers of rank 0's model to all, after an epoch of training."""

    def measure(self, measure: Measure) -> Measure:
        """Wraps a loss or metric: it takes outputs on the network's last device and returns its value on the first."""
        return measure


class DistributedDataParallel(Single):
    """Trains in several processes with a device each: torch's DistributedDataParallel on parts of each batch.

    All processes draw the same order, and each takes its part of every batch. So an epoch has every example once, in
    the same batches as with one process. The sizes of the parts differ by at most one example. Each loss is weighted
    by the size of its part, so that the gradients, which torch averages, are those of the whole batch.

    Batch norm normalizes over a process's part. Its running statistics are those of rank 0, as in torch's default, but
    copied once per epoch instead of before each forward pass.
    """

    weight = 1.0  # weight of the loss on this process's part of the current batch
    closing = False  # whether the current batch is too small for every process to get a part
    shrinks = False  # the others wait in a collective call, so `tuner.training.group` restarts all processes

    def networks(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        device_ids = self.devices if self.devices[0].type == "cuda" else None
        with warnings.catch_warnings():
            # torch 2.15 renamed `broadcast_buffers`; torch 2.9 does not know the new name.
            warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
            self.network = nn.parallel.DistributedDataParallel(
                model, device_ids=device_ids, broadcast_buffers=False, gradient_as_bucket_view=True
            )
        network = compiled(self.network, self.devices[0]) if self.task.compile else self.network
        return network, model

    def share_of(self, num_examples: int) -> int:
        return -(-num_examples // self.worker.num_workers)

    def part_of(self, num_examples: int) -> tuple[int, int]:
        """Start and end of this process's part in a batch of `num_examples`; the first ranks get the larger parts."""
        size, larger = divmod(num_examples, self.worker.num_workers)
        rank = self.worker.rank
        begin = rank * size + min(rank, larger)
        return begin, begin + size + (rank < larger)

    def batches(self, examples: Examples, order: Tensor, batch_size: int, format: torch.memory_format) -> Batches:
        num_workers = self.worker.num_workers
        if batch_size < num_workers:
            raise ValueError(f"batch_size {batch_size} is split over {num_workers} workers: give {num_workers} or more")
        parts = [part[slice(*self.part_of(len(part)))] for part in torch.split(order, batch_size)]
        last_size = len(order) - batch_size * (len(parts) - 1)
        sizes = [batch_size] * (len(parts) - 1) + [last_size]
        last = None
        if last_size < num_workers:  # some processes get no part of the last batch
            last = parts.pop()
            sizes.pop()
        if parts:
            read = examples.batches(torch.cat(parts), len(parts[0]), format)
            for (inputs, targets), size in zip(read, sizes, strict=True):
                self.weight = len(targets) * num_workers / size
                yield inputs, targets
        if last is not None:
            self.weight = len(last) * num_workers / last_size
            self.closing = True
            with self.network.no_sync():  # torch's hooks would wait for the processes without examples
                yield next(examples.batches(last, len(last), format)) if len(last) else self.nothing(examples)
            self.closing = False

    def nothing(self, examples: Examples) -> tuple[Tensor, Tensor]:
        """A batch without examples."""
        return examples.sample[:0].to(self.devices[0]), torch.empty(0, dtype=torch.int64, device=self.devices[0])

    def rows(self, num_examples: int) -> Tensor:
        return torch.arange(*self.part_of(num_examples))

    def scale_loss(self, backward: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        def weighed(loss: Tensor) -> None:
            backward(loss if self.weight == 1 else loss * self.weight)

        return weighed

    def accumulating(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self.network.no_sync()
        return context

    def complete_gradients(self, parameters: list[nn.Parameter]) -> None:
        if not self.closing:
            return  # torch has already averaged the gradients over the processes, during the backward pass
        for parameter in parameters:
            if parameter.requires_grad:
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                dist.all_reduce(gradient)
                parameter.grad = gradient / self.worker.num_workers

    def total(self, sums: Tensor) -> Tensor:
        dist.all_reduce(sums)
        return sums

    def broadcast_buffers(self, model: nn.Module) -> None:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


class DataParallel(Single):
    """Trains in one process that copies the model to each of its GPUs for each batch; slower than ddp, for comparison.

    With one device, or on a CPU, it trains as `Single` does. It refuses `Task.compile`.
    """

    def networks(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        if self.task.compile:
            raise ValueError(
                "Task.compile does not work with strategy dp, which copies the model for each batch; use ddp"
            )
        if self.devices[0].type != "cuda" or len(self.devices) == 1:
            return model, model
        return accelerator.here.replicated(model, self.devices), model


class ModelParallel(Single):
    """Trains in one process, with the model cut into stages that run one after another, each on its device."""

    def place(self, model: nn.Module) -> None:
        self.stages = stages_of(model, self.task, max(2, len(self.devices)))
        self.places = devices_of_stages(len(self.stages), self.devices)
        for stage, device in zip(self.stages, self.places, strict=True):
            stage.to(device)

    def networks(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        stages = self.stages
        if self.task.compile:
            stages = [compiled(stage, device) for stage, device in zip(stages, self.places, strict=True)]
        network = Staged(stages, self.places, self.split_size)
        return network, network

    @property
    def split_size(self) -> int | None:
        """How many examples go through a stage at once during training; None = the whole batch."""
        return None

    def measure(self, measure: Measure) -> Measure:
        def beside_the_outputs(outputs: Any, targets: Tensor) -> Tensor:
            return measure(outputs, targets.to(self.places[-1])).to(self.devices[0])

        return beside_the_outputs


class Pipeline(ModelParallel):
    """Trains as ModelParallel does, but with several micro-batches in flight, so that its GPUs work in parallel."""

    @property
    def split_size(self) -> int | None:
        size = self.config.get("split_size", self.task.split_size)
        if isinstance(size, bool) or size != int(size) or size < 1:
            raise ValueError(f"split_size is {size!r}: give an integer of at least 1")
        return int(size)


STRATEGIES: dict[str, type[Single]] = {
    "single": Single,
    "ddp": DistributedDataParallel,
    "dp": DataParallel,
    "model": ModelParallel,
    "pipeline": Pipeline,
}
