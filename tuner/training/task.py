"""Task: the functions of a user's that say what a trial trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from tuner.training.data import Splits

Config = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Task:
    """The functions from which a trial gets its training loop, checkpoints, exact resume and figures.

    Args:
        data: `data(data_dir) -> Splits`; `data_dir` is a Path, or None when the user named none.
        model: `model(config) -> nn.Module`, single-device and on the CPU; the service moves it.
        optimizer: `optimizer(parameters, config) -> Optimizer`.
        loss: `loss(outputs, targets) -> Tensor` (a mean over the batch); cross-entropy when None.
        training_loss: `training_loss(outputs, targets, config) -> Tensor` (a mean over the batch), minimised in
            the place of `loss` where that depends on the setting (label smoothing, say); `loss` is still what
            is measured on the validation part, so that settings can be compared by it.
        metrics: name -> `metric(outputs, targets) -> Tensor`, a mean over the batch; reported on the
            validation part beside `loss`.
        schedule: `schedule(optimizer, config, max_epochs) -> LRScheduler`, stepped once an epoch.
        prepare: `prepare(inputs) -> Tensor`, from stored inputs (uint8 images, say) to what the model takes;
            called in bulk on the trial's device, deterministic, the same for training and evaluation.
        augment: `augment(inputs) -> Tensor` on a prepared training batch, on the trial's device.
        batch_size: used where the space does not search `batch_size`.
        validation_fraction: the part of `train` held out where `data` returns no validation part, in (0, 1).
        channels_last: the model takes 4-D inputs and never calls `view` on what a convolution returns, so the
            faster memory format may be used.
        compile: compile the network for training by torch.compile (a C++ compiler is needed on a CPU). The figures
            may then differ in their last digits from one process to the next.
        stages: `stages(model) -> [module, ...]`, for the strategies model and pipeline: the model's own layers in
            parts, each a module that takes what the last one returned; a model that is an nn.Sequential needs none.
        split_size: examples of a micro-batch of the strategy pipeline, where the space does not search `split_size`.
    """

    data: Callable[[Path | None], Splits]
    model: Callable[[Config], nn.Module]
    optimizer: Callable[[Iterable[nn.Parameter], Config], torch.optim.Optimizer]
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    training_loss: Callable[[Tensor, Tensor, Config], Tensor] | None = None
    metrics: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = field(default_factory=dict)
    schedule: Callable[[torch.optim.Optimizer, Config, int], Any] | None = None
    prepare: Callable[[Tensor], Tensor] | None = None
    augment: Callable[[Tensor], Tensor] | None = None
    batch_size: int = 32
    validation_fraction: float = 0.2
    channels_last: bool = False
    compile: bool = False
    stages: Callable[[nn.Module], Sequence[nn.Module]] | None = None
    split_size: int = 20
