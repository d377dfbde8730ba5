"""A model cut into stages on several devices: one after another, or as a pipeline with micro-batches in flight.

The schedule is the two-stage one of PyTorch's model parallel tutorial for any number of stages: while stage i has
micro-batch j, stage i - 1 has micro-batch j + 1. One process issues the work of all stages and CUDA devices compute
it side by side; autograd runs each device's part of the backward pass in a thread of its own.

`torch.distributed.pipelining` holds fewer activations at once, but needs a process a stage, shapes fixed in
advance, and a state spread over the processes. Here the loop, the checkpoints and the gradients stay those of one
process, and so do the losses.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tuner.training.task import Task


class Staged(nn.Module):
    """Runs stages one after another, each on its device; the outputs stay on the last one's.

    Args:
        stages: modules that take and return one tensor, the last one anything that a loss takes if not split.
        devices: one a stage.
        split_size: examples that go through a stage at once while training; None = all. Evaluation never splits.
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
        return torch.cat(self.in_flight(torch.split(inputs, self.split_size)))

    def in_flight(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The outputs of each part; at each tick every stage has another part, the last stage's first."""
        num_stages = len(self.stages)
        current, outputs = list(parts), []
        for tick in range(len(parts) + num_stages - 1):
            for stage in reversed(range(num_stages)):
                part = tick - stage
                if 0 <= part < len(parts):
                    current[part] = self.run_stage(stage, current[part])
                    if stage == num_stages - 1:
                        outputs.append(current[part])
        return outputs

    def run_stage(self, index: int, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.stages[index](inputs.to(self.devices[index], non_blocking=True))
        return outputs


def stages_of(model: nn.Module, task: Task, num_stages: int) -> list[nn.Module]:
    """The stages that the task cuts its model into; an nn.Sequential without a cut is cut by its parameters.

    Raises:
        ValueError: the model cannot be cut, or a parameter of it is in no stage or in two.
    """
    if task.stages is not None:
        stages = list(task.stages(model))
    elif isinstance(model, nn.Sequential) and len(model) >= 2:
        stages = cut(model, min(num_stages, len(model)))
    else:
        raise ValueError(f"{type(model).__name__} is not cut into stages: give Task(stages=...)")
    for name, parameter in model.named_parameters():
        holders = sum(any(parameter is each for each in stage.parameters()) for stage in stages)
        if holders != 1:
            raise ValueError(f"Task.stages: parameter {name} is in {holders} stages; each must be in one")
    return stages


def cut(model: nn.Sequential, num_stages: int) -> list[nn.Module]:
    """Contiguous parts of the layers with about as many parameters each, at least one layer a part."""
    layers = list(model)
    counts = [sum(parameter.numel() for parameter in layer.parameters()) for layer in layers]
    stages: list[nn.Module] = []
    begin, passed = 0, 0
    for stage in range(num_stages):
        end, left = begin + 1, num_stages - stage - 1
        passed += counts[begin]
        # A layer belongs to the stage in which its middle lies, as long as every later stage gets one.
        while end < len(layers) - left and (
            left == 0 or (passed + counts[end] / 2) * num_stages <= sum(counts) * (stage + 1)
        ):
            passed += counts[end]
            end += 1
        stages.append(nn.Sequential(*layers[begin:end]))
        begin = end
    return stages


def devices_of_stages(num_stages: int, devices: Sequence[torch.device]) -> list[torch.device]:
    """A device a stage; neighbouring stages share one where there are more stages than devices."""
    return [devices[stage * len(devices) // max(num_stages, len(devices))] for stage in range(num_stages)]
