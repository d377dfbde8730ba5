"""The number format of the forward and backward pass: fp32, bf16 by autocast, or fp16 by autocast with scaled losses.

The parameters and the optimizer's state stay in the model's own format, usually float32. With bf16 and fp16, the loss
and the metrics are computed from outputs converted to float32. On a CPU, fp16 works but saves no time: a step of a
small convolutional network took 2 times as long as with fp32 (bf16: 0.8 times, torch 2.15).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Runs forward pass, backward pass and optimizer step in a number format: fp32, bf16 or fp16.

    fp16 scales losses so that small gradients do not become zero. If gradients are not finite, `torch.amp.GradScaler`
    skips the step and halves the scale. This is common in the first steps, because the scale starts at 65536.
    """

    def __init__(self, name: object, device: torch.device) -> None:
        if not isinstance(name, str) or name not in DTYPES:
            raise ValueError(f"precision is {name!r}: give one of {', '.join(DTYPES)}")
        self.device, self.dtype = device, DTYPES[name]
        # Except with fp16, it scales by 1 and its state is empty.
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def forward(self, model: nn.Module, inputs: Tensor) -> Any:
        """Returns the model's outputs; with bf16 and fp16 as float32."""
        if self.dtype is None:
            return model(inputs)
        # Each pass has its own autocast context: it caches converted parameters, which a step would make wrong.
        with torch.autocast(self.device.type, self.dtype):
            outputs = model(inputs)
        return widened(outputs)

    def backward(self, loss: Tensor) -> None:
        """Adds the gradients of the loss to the parameters' gradients."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Updates the parameters from their gradients."""
        if self.scaler.is_enabled():
            # By default a fused optimizer skips the step itself. But torch 2.15's fused SGD then keeps uninitialized
            # momentum buffers, and the parameters are NaN one step later. With this flag False, the scaler skips the
            # step, which costs one wait for the device per step.
            optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
        self.scaler.step(optimizer)
        self.scaler.update()


def widened(outputs: Any) -> Any:
    """Converts bfloat16 and float16 tensors to float32, also in tuples, lists and dicts, not in their subclasses."""
    if isinstance(outputs, Tensor):
        return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs
    if type(outputs) in (tuple, list):
        return type(outputs)(map(widened, outputs))
    if type(outputs) is dict:
        return {name: widened(value) for name, value in outputs.items()}
    return outputs
