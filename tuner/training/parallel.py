"""What a strategy does to a training, applied from outside: a model file stays single-device.

The training asks its strategy at six places: where the model goes, what runs it while training, which examples of a
batch are this process's, how a loss weighs, what is summed over processes, and where a loss is computed. `Single`
answers each with "as it is", and costs nothing.
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
from tuner.training.compiled import compiled
from tuner.training.stages import Staged, devices_of_stages, stages_of
from tuner.training.task import Config, Task

Measure = Callable[[Any, Tensor], Tensor]
Batches = Iterator[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Worker:
    """Which process of a trial this one is.

    Args:
        strategy: single, ddp, dp, model or pipeline.
        rank: of this process, from 0.
        num_workers: processes of the trial; above 1 with ddp alone.
        num_devices: devices that this process uses; above 1 with dp, model and pipeline alone.
    """

    strategy: str = "single"
    rank: int = 0
    num_workers: int = 1
    num_devices: int = 1

    def devices(self, first: str) -> list[torch.device]:
        """The devices of this process: the first ones that it sees, or the CPU in the place of each."""
        device = torch.device(first)
        if device.type == "cuda" and self.num_devices > 1:
            return [torch.device("cuda", index) for index in range(self.num_devices)]
        return [device] * self.num_devices


class Single:
    """One process, one device."""

    shrinks = True  # a batch that does not fit can be computed in parts without another process

    def __init__(self, worker: Worker, devices: list[torch.device], task: Task, config: Config) -> None:
        self.worker, self.devices, self.task, self.config = worker, devices, task, config

    def place(self, model: nn.Module) -> None:
        """Moves the model to its devices."""
        model.to(self.devices[0])

    def networks(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        """What runs the placed model while training, and what while evaluating."""
        return (compiled(model, self.devices[0]) if self.task.compile else model), model

    def share_of(self, num_examples: int) -> int:
        """The most examples of a batch of that size that one process gets."""
        return num_examples

    def batches(self, examples: Examples, order: Tensor, batch_size: int, format: torch.memory_format) -> Batches:
        """This process's part of each batch; `batch_size` is that of all processes together."""
        return examples.batches(order, batch_size, format)

    def rows(self, num_examples: int) -> Tensor:
        """The examples that this process evaluates."""
        return torch.arange(num_examples)

    def weighing(self, backward: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        """`backward` of a mean over this process's part of a batch."""
        return backward

    def accumulating(self) -> AbstractContextManager[Any]:
        """Holds inside what computes gradients to which more will be added."""
        return nullcontext()

    def complete_gradients(self, parameters: list[nn.Parameter]) -> None:
        """Called when this process's gradients are there, before the step."""

    def total(self, sums: Tensor) -> Tensor:
        """The sums over all processes."""
        return sums

    def equalise(self, model: nn.Module) -> None:
        """Leaves the same model in every process, after an epoch of training."""

    def measure(self, measure: Measure) -> Measure:
        """A loss or metric of outputs where the network leaves them, as a value on the first device."""
        return measure


class DistributedDataParallel(Single):
    """One process a worker, each with a device: torch's DistributedDataParallel over shards of each batch.

    All processes draw the same order and take each their part of every batch, so that an epoch has every example
    once, in the batches that one process would have. Parts differ by one example at most; a loss counts by its part's
    size, so that the gradients, averaged by torch, are those of the whole batch.

    Batch norm normalises by a process's part; its running statistics are those of rank 0, as torch's own default
    has them, copied once an epoch instead of before each forward pass.
    """

    weight = 1.0  # of the loss of this process's part of the batch at hand
    closing = False  # the batch at hand leaves some processes without a part
    shrinks = False  # the others stand in a collective call: `tuner.training.group` starts all of them anew

    def networks(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        device_ids = self.devices if self.devices[0].type == "cuda" else None
        with warnings.catch_warnings():
            # torch 2.15 has a new name for it, which 2.9 does not take.
            warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
            self.network = nn.parallel.DistributedDataParallel(
                model, device_ids=device_ids, broadcast_buffers=False, gradient_as_bucket_view=True
            )
        network = compiled(self.network, self.devices[0]) if self.task.compile else self.network
        return network, model

    def share_of(self, num_examples: int) -> int:
        return -(-num_examples // self.worker.num_workers)

    def part_of(self, num_examples: int) -> tuple[int, int]:
        """Where in a batch of that size this process's part begins and ends; sizes differ by one, larger ones first."""
        size, larger = divmod(num_examples, self.worker.num_workers)
        rank = self.worker.rank
        begin = rank * size + min(rank, larger)
        return begin, begin + size + (rank < larger)

    def batches(self, examples: Examples, order: Tensor, batch_size: int, format: torch.memory_format) -> Batches:
        num_workers = self.worker.num_workers
        if batch_size < num_workers:
            raise ValueError(f"batch_size is {batch_size}, of all workers together: give {num_workers} workers as many")
        parts = [part[slice(*self.part_of(len(part)))] for part in torch.split(order, batch_size)]
        last_size = len(order) - batch_size * (len(parts) - 1)
        sizes = [batch_size] * (len(parts) - 1) + [last_size]
        last = None
        if last_size < num_workers:  # some have no part of the last batch
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
            with self.network.no_sync():  # torch's hooks would wait for those without examples
                yield next(examples.batches(last, len(last), format)) if len(last) else self.nothing(examples)
            self.closing = False

    def nothing(self, examples: Examples) -> tuple[Tensor, Tensor]:
        """A batch without examples."""
        return examples.sample[:0].to(self.devices[0]), torch.empty(0, dtype=torch.int64, device=self.devices[0])

    def rows(self, num_examples: int) -> Tensor:
        return torch.arange(*self.part_of(num_examples))

    def weighing(self, backward: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        def weighed(loss: Tensor) -> None:
            backward(loss if self.weight == 1 else loss * self.weight)

        return weighed

    def accumulating(self) -> AbstractContextManager[Any]:
        held: AbstractContextManager[Any] = self.network.no_sync()
        return held

    def complete_gradients(self, parameters: list[nn.Parameter]) -> None:
        if not self.closing:
            return  # torch has averaged them while they were computed
        for parameter in parameters:
            if parameter.requires_grad:
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                dist.all_reduce(gradient)
                parameter.grad = gradient / self.worker.num_workers

    def total(self, sums: Tensor) -> Tensor:
        dist.all_reduce(sums)
        return sums

    def equalise(self, model: nn.Module) -> None:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


class DataParallel(Single):
    """One process that copies the model to each of its GPUs for each batch; slower than ddp, kept to compare with.

    With one device it is the model itself.
    """

    def networks(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        if self.task.compile:
            raise ValueError(
                "Task.compile does not go with strategy dp, which copies the model anew each batch; use ddp"
            )
        if self.devices[0].type != "cuda" or len(self.devices) == 1:
            return model, model
        return nn.DataParallel(model, device_ids=self.devices), model


class ModelParallel(Single):
    """One process, the model cut into stages that run one after another, each on a device of its own."""

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
        """Examples that go through a stage at once while training; None = all."""
        return None

    def measure(self, measure: Measure) -> Measure:
        def beside_the_outputs(outputs: Any, targets: Tensor) -> Tensor:
            return measure(outputs, targets.to(self.places[-1])).to(self.devices[0])

        return beside_the_outputs


class Pipeline(ModelParallel):
    """As ModelParallel, with micro-batches in flight, so that all stages compute at once."""

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
