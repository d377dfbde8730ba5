"""Chooses the convolution kernels of a CPU (oneDNN or torch's own) from a model's shapes and the batch size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tuner.training.batches import Examples

SMALL_CONVOLUTION = 1_500_000  # multiply-adds per batch, up to which a model's largest convolution is small


def small_convolutions(model: nn.Module, examples: Examples, batch_size: int) -> bool:
    """Whether the convolutions are so small that oneDNN's fixed cost per call outweighs its faster arithmetic.

    False for batch sizes above 8, or without convolutions. Leaves a model with convolutions in eval mode. The choice
    changes the last bits of the metrics. It does not depend on timing, so that it is the same in every run.

    Measured with seven small networks at batch sizes 1 to 8 and one thread, as the time of a step without oneDNN
    divided by the time with it (channels last): 0.50 to 1.04 if the largest convolution takes up to 1.4 million
    multiply-adds per batch, 1.03 to 1.94 from 1.8 million on. The tutorial's LeNet takes 0.41 ms per step without
    and 0.58 ms with oneDNN at batch size 2, 0.58 and 0.69 ms at 4, 1.15 and 0.90 ms at 8.
    """
    if batch_size > 8:
        return False
    work = []

    def note(module: nn.Module, _: Any, output: Tensor) -> None:
        work.append(output[0].numel() * module.weight[0].numel())  # type: ignore[index]

    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    hooks = [part.register_forward_hook(note) for part in model.modules() if isinstance(part, kinds)]
    if hooks:
        model.eval()
        with torch.no_grad():
            model(examples.sample)
    for hook in hooks:
        hook.remove()
    return bool(work) and batch_size * max(work) <= SMALL_CONVOLUTION


@contextmanager
def onednn(enabled: bool) -> Iterator[None]:
    """Switches oneDNN off in the `with` block unless `enabled`; restores it afterwards for the process's next trial."""
    before = bool(torch.backends.mkldnn.enabled)
    torch.backends.mkldnn.enabled = before and enabled  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before  # type: ignore[assignment]
