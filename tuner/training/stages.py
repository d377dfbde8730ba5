"""Cuts a model into stages on several devices, which run one after another or as a pipeline of micro-batches.

The schedule is that of PyTorch's model parallel tutorial: while stage i computes micro-batch j, stage i - 1 computes
micro-batch j + 1. One process issues the work of all stages; autograd's backward pass has one thread per device.
`torch.distributed.pipelining` needs less memory for activations, but one process per stage, fixed shapes and split
checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tuner.training.task import Task


class Staged(nn.Module):
    """Runs stages one after another, each on its device; the outputs stay on the last device.

    Args:
        stages: modules that take and return one tensor; without a split, the last may return what the loss accepts.
        devices: one device per stage.
        split_size: how many examples go through a stage at once in training (evaluation: all); None = the whole batch.
    """

    def __init__(self, stages: Sequence[nn.Module], devices: Sequence[torch.device], split_size: int | None) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.devices = list(devices)
        self.split_size = split_size

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training or self.split_size is None or len(inputs) <= self.split_size:
            for index in range(len(self.stages)):
                inputs = self.run_stage(index, inputs)
            return inputs
        # At each tick the stages compute different parts, the last stage first. Some idle in the first and last ticks.
        parts = list(torch.split(inputs, self.split_size))
        for tick in range(len(parts) + len(self.stages) - 1):
            for stage in reversed(range(len(self.stages))):
                if 0 <= (part := tick - stage) < len(parts):
                    parts[part] = self.run_stage(stage, parts[part])
        return torch.cat(parts)

    def run_stage(self, index: int, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.stages[index](inputs.to(self.devices[index], non_blocking=True))
        return outputs


def stages_of(model: nn.Module, task: Task, num_stages: int) -> list[nn.Module]:
    """The stages of a model as `Task.stages` cuts it; without `Task.stages`, an nn.Sequential is cut by `cut`.

    Raises a ValueError if the model cannot be cut, or one of its parameters is in no stage or in several.
    """
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


def devices_of_stages(num_stages: int, devices: Sequence[torch.device]) -> list[torch.device]:
    """The device of each stage; neighbouring stages share a device if there are more stages than devices."""
    return [devices[stage * len(devices) // max(num_stages, len(devices))] for stage in range(num_stages)]
