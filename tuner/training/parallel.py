"""Strategies: how a training uses several processes or devices. Users write a model for one device.

A strategy places the model, wraps it for training, selects the examples of this process, and combines the processes'
gradients and sums.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils import _pytree

from tuner.training.batches import Batch, Examples
from tuner.training.devices import accelerator
from tuner.training.devices.compiler import compiled
from tuner.training.task import Config, Task, whole_number

Measure = Callable[[Any, Tensor], Tensor]


class Single:
    """Trains in one process on one device; subclasses use several `devices`, or `num_workers` processes."""

    shrinks = True  # whether this process itself computes a batch in parts, if the batch does not fit in memory
    weight = 1.0  # the weight of the loss on this process's part of the current batch
    repeated = 1  # how many processes train on the same examples: above 1 if a batch has fewer examples than processes

    def __init__(
        self, task: Task, config: Config, devices: list[torch.device], rank: int = 0, num_workers: int = 1
    ) -> None:
        self.task, self.config, self.devices, self.rank, self.num_workers = task, config, devices, rank, num_workers

    def networks(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        """Moves a model to its devices; returns the module for training and the module for evaluation."""
        model.to(self.devices[0])
        return (compiled(model, self.devices[0]) if self.task.compile else model), model

    def share_of(self, num_examples: int) -> int:
        """The most examples that one process gets of a batch with `num_examples`."""
        return -(-num_examples // self.num_workers)

    def part_of(self, num_examples: int) -> tuple[int, int]:
        """Start and end of this process's part of `num_examples`; the first ranks get the larger parts."""
        size, larger = divmod(num_examples, self.num_workers)
        begin = self.rank * size + min(self.rank, larger)
        return begin, begin + size + (self.rank < larger)

    def batches(
        self, examples: Examples, order: Tensor, batch_size: int, format: torch.memory_format
    ) -> Iterator[Batch]:
        """Yields this process's part of each batch; `batch_size` counts the examples of all processes."""
        return examples.batches(order, batch_size, format)

    def accumulating(self) -> AbstractContextManager[Any]:
        """A context for the micro-batches before a batch's last one: processes exchange gradients only at the last."""
        return nullcontext()

    def total(self, sums: Tensor) -> Tensor:
        return sums

    def gathered(self, value: Any) -> list[Any]:
        """The values of all processes, in the order of their ranks; tensors in it are on this process's device."""
        return [value]

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Copies the buffers of rank 0's model to all processes, after an epoch of training."""

    def measure(self, measure: Measure) -> Measure:
        """Wraps a loss or metric so that it takes outputs on the last device and returns its value on the first."""
        return measure


class DistributedDataParallel(Single):
    """Trains in several processes with a device each: torch's DistributedDataParallel on parts of each batch.

    Each loss is weighted by the size of its part, so that the gradients, which torch averages, are those of the whole
    batch. A last batch with fewer examples than processes goes to every process. Batch norm normalizes over a process's
    part; its running statistics are those of rank 0, as in torch's default, but copied once per epoch.
    """

    shrinks = False  # other processes would wait in a collective call, so `tuner.training.group` restarts all processes

    def networks(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        device_ids = self.devices if self.devices[0].type == "cuda" else None
        model.to(self.devices[0])
        with warnings.catch_warnings():
            # torch 2.13 deprecated `broadcast_buffers`; torch 2.9 does not know the new option.
            warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
            self.network = nn.parallel.DistributedDataParallel(
                model, device_ids=device_ids, broadcast_buffers=False, gradient_as_bucket_view=True
            )
        return super().networks(self.network)[0], model

    def batches(
        self, examples: Examples, order: Tensor, batch_size: int, format: torch.memory_format
    ) -> Iterator[Batch]:
        if batch_size < self.num_workers:
            few = f"batch_size {batch_size} is split over {self.num_workers} workers"
            raise ValueError(f"{few}: give {self.num_workers} or more")
        *batches, last = torch.split(order, batch_size)
        if len(last) >= self.num_workers:
            batches.append(last)
        if batches:
            parts = [batch[slice(*self.part_of(len(batch)))] for batch in batches]
            read = examples.batches(torch.cat(parts), len(parts[0]), format)
            for (inputs, targets), batch in zip(read, batches, strict=True):
                self.weight = len(targets) * self.num_workers / len(batch)
                yield inputs, targets
        if len(last) < self.num_workers:  # all processes train on it: torch would wait for a process without examples
            self.weight, self.repeated = 1.0, self.num_workers
            yield from examples.batches(last, len(last), format)
            self.repeated = 1

    def accumulating(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self.network.no_sync()
        return context

    def total(self, sums: Tensor) -> Tensor:
        dist.all_reduce(sums)
        return sums

    def gathered(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.num_workers
        dist.all_gather_object(values, moved(value, "cpu"))
        return [moved(each, self.devices[0]) for each in values]

    def broadcast_buffers(self, model: nn.Module) -> None:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


class DataParallel(Single):
    """Trains in one process that copies the model to each of its GPUs for each batch; slower than ddp."""

    def networks(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        if self.task.compile:
            raise ValueError(
                "Task.compile does not work with strategy dp, which copies the model for each batch; use ddp"
            )
        model.to(self.devices[0])
        several = self.devices[0].type == "cuda" and len(self.devices) > 1
        return accelerator.here.replicated(model, self.devices) if several else model, model


class ModelParallel(Single):
    """Trains in one process, with the model cut into stages that run one after another, each on its device."""

    split_size: int | None = None  # how many examples go through a stage at once in training; None = the whole batch

    def networks(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        stages = stages_of(model, self.task, max(2, len(self.devices)))
        # Neighbouring stages share a device if there are more stages than devices.
        count = max(len(stages), len(self.devices))
        places = [self.devices[index * len(self.devices) // count] for index in range(len(stages))]
        for stage, device in zip(stages, places, strict=True):
            stage.to(device)
        if self.task.compile:
            stages = [compiled(stage, device) for stage, device in zip(stages, places, strict=True)]
        self.last = places[-1]
        network = Staged(stages, places, self.split_size)
        return network, network

    def measure(self, measure: Measure) -> Measure:
        return lambda outputs, targets: measure(outputs, targets.to(self.last)).to(self.devices[0])


class Pipeline(ModelParallel):
    """Trains as ModelParallel does, but with several micro-batches in flight, so that its GPUs work in parallel."""

    def networks(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        self.split_size = whole_number("split_size", self.config.get("split_size", self.task.split_size))
        return super().networks(model)


class Staged(nn.Module):
    """Runs stages one after another, each on its device; the outputs stay on the last device.

    In training with `split_size`, stage i - 1 computes micro-batch j + 1 while stage i computes micro-batch j, as in
    PyTorch's model parallel tutorial. `torch.distributed.pipelining` needs one process per stage and fixed shapes.
    """

    def __init__(self, stages: Sequence[nn.Module], devices: list[torch.device], split_size: int | None) -> None:
        super().__init__()
        self.stages, self.devices, self.split_size = nn.ModuleList(stages), devices, split_size

    def forward(self, inputs: Tensor) -> Tensor:
        # In a tick, stages compute different parts, the last stage first. In the first and last ticks, not all work.
        split = self.training and self.split_size is not None
        parts = list(torch.split(inputs, self.split_size)) if split else [inputs]  # type: ignore[arg-type]
        for tick in range(len(parts) + len(self.stages) - 1):
            for stage in reversed(range(len(self.stages))):
                if 0 <= (part := tick - stage) < len(parts):
                    some = parts[part].to(self.devices[stage], non_blocking=True)
                    parts[part] = self.stages[stage](some)
        return torch.cat(parts) if len(parts) > 1 else parts[0]


def moved(value: Any, device: torch.device | str) -> Any:
    return _pytree.tree_map_only(Tensor, lambda each: each.to(device), value)


def stages_of(model: nn.Module, task: Task, num_stages: int) -> list[nn.Module]:
    """Cuts a model by `Task.stages`, or an nn.Sequential by `cut`; ValueError unless each parameter is in one stage."""
    if task.stages is not None:
        stages = list(task.stages(model))
    elif isinstance(model, nn.Sequential) and len(model) >= 2:
        stages = cut(model, min(num_stages, len(model)))
    else:
        raise ValueError(
            f"{type(model).__name__} is no nn.Sequential of 2 or more layers: cut it into stages with Task(stages=...)"
        )
    for name, parameter in model.named_parameters():
        holders = sum(any(parameter is each for each in stage.parameters()) for stage in stages)
        if holders != 1:
            raise ValueError(f"Task.stages: parameter {name} is in {holders} stages; each must be in one")
    return stages


def cut(model: nn.Sequential, num_stages: int) -> list[nn.Module]:
    """Cuts the layers into contiguous stages of at least one layer, with about equal numbers of parameters."""
    layers = list(model)
    counts = [sum(parameter.numel() for parameter in layer.parameters()) for layer in layers]
    stages: list[nn.Module] = []
    begin, passed = 0, 0
    for stage in range(num_stages):
        end, left = begin + 1, num_stages - stage - 1
        passed += counts[begin]
        # A layer belongs to the stage that contains its middle parameter; every later stage must get a layer.
        while end < len(layers) - left and (
            left == 0 or (passed + counts[end] / 2) * num_stages <= sum(counts) * (stage + 1)
        ):
            passed += counts[end]
            end += 1
        stages.append(nn.Sequential(*layers[begin:end]))
        begin = end
    return stages


STRATEGIES: dict[str, type[Single]] = {
    "single": Single,
    "ddp": DistributedDataParallel,
    "dp": DataParallel,
    "model": ModelParallel,
    "pipeline": Pipeline,
}
