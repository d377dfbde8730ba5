"""Which kernels a CPU convolves with, chosen from shapes: the choice changes the last digits, so never from timing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tuner.training.batches import Examples

SMALL_CONVOLUTION = 1_500_000  # multiply-adds a batch, see `small_convolutions`


def small_convolutions(model: nn.Module, examples: Examples, batch_size: int) -> bool:
    """Whether oneDNN's fixed cost of a call outweighs its faster arithmetic.

    Decided from shapes alone, never from timing, because the choice changes the last bits of the figures.
    Seven small networks at batch sizes 1 to 8, one thread: up to 1.4 million multiply-adds in the largest
    convolution of a batch a step without oneDNN took 0.50 to 1.04 of one with it (channels last), from 1.8
    million on 1.03 to 1.94. The tutorial's LeNet, ms a step without and with: 0.41 and 0.58 at batch size 2,
    0.58 and 0.69 at 4, 1.15 and 0.90 at 8.
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
    """Switches oneDNN off inside unless `enabled`; put back after, as other trials follow in the process."""
    before = bool(torch.backends.mkldnn.enabled)
    torch.backends.mkldnn.enabled = before and enabled  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before  # type: ignore[assignment]
