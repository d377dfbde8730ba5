"""The number format of the forward and backward pass: fp32, bf16 by autocast, or fp16 by autocast with scaled losses.

The parameters and the optimizer's state stay in the model's own format, usually float32. With bf16 and fp16, the loss
and the metrics are computed from outputs converted to float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Runs the forward and backward pass in a number format, and steps the optimizer.

    fp16 scales losses so that small gradients do not become zero. If gradients are not finite, `torch.amp.GradScaler`
    skips the step and halves the scale. This is common in the first steps.
    """

    def __init__(self, name: object, device: torch.device) -> None:
        if not isinstance(name, str) or name not in DTYPES:
            raise ValueError(f"precision is {name!r}: give one of {', '.join(DTYPES)}")
        self.device, self.dtype = device, DTYPES[name]
        # Without fp16, the scaler scales by 1, and its state is empty.
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def forward(self, model: nn.Module, inputs: Tensor) -> Any:
        if self.dtype is None:
            return model(inputs)
        # One context per pass: autocast caches converted parameters, which are stale after an optimizer step.
        with torch.autocast(self.device.type, self.dtype):
            outputs = model(inputs)
        halves = torch.bfloat16, torch.float16
        return _pytree.tree_map_only(Tensor, lambda out: out.float() if out.dtype in halves else out, outputs)

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.scaler.is_enabled():
            # A fused optimizer skips the step by itself; torch 2.15's SGD then keeps uninitialized momentum buffers,
            # which make the parameters NaN one step later. With this flag False, the scaler skips the step.
            optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
        self.scaler.step(optimizer)
        self.scaler.update()
