"""The number format of the forward and backward pass: fp32, bf16 by autocast, or fp16 by autocast with scaled losses.

The parameters and the optimizer's state stay in the model's own format, usually float32. With bf16 and fp16, the loss
and the metrics are computed from outputs converted to float32. On a CPU, fp16 works but saves no time: a step of a
small convolutional network took 2 times as long as with fp32 (bf16: 0.8 times, torch 2.15).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Precision:
    """Runs forward pass, backward pass and optimizer step in the model's format; base class of the other precisions."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def forward(self, model: nn.Module, inputs: Tensor) -> Any:
        """Returns the model's outputs; bf16 and fp16 convert half-precision tensors among them to float32."""
        return model(inputs)

    def backward(self, loss: Tensor) -> None:
        """Adds the gradients of the loss to the parameters' gradients."""
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Updates the parameters from their gradients."""
        optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """The state that changes from step to step; empty except with fp16 (the scale of the loss)."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state of this precision; ignores one of another precision."""


class Bf16(Precision):
    """Computes matrix products and convolutions in bfloat16: float32's range, 8 bits of precision."""

    dtype = torch.bfloat16

    def forward(self, model: nn.Module, inputs: Tensor) -> Any:
        # Each pass has its own autocast context: it caches converted parameters, which a step would make wrong.
        with torch.autocast(self.device.type, self.dtype):
            outputs = model(inputs)
        return widened(outputs)


class Fp16(Bf16):
    """Computes matrix products and convolutions in float16; scales losses so that small gradients do not become zero.

    If gradients are not finite, `torch.amp.GradScaler` skips the step and halves the scale. This is common in the first
    steps of a training, because the scale starts at 65536.
    """

    dtype = torch.float16

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.scaler = torch.amp.GradScaler(device.type)

    def backward(self, loss: Tensor) -> None:
        super().backward(self.scaler.scale(loss))

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        # By default a fused optimizer skips the step itself. But torch 2.15's fused SGD then keeps uninitialized
        # momentum buffers, and the parameters are NaN one step later. With this flag False, the scaler skips the step,
        # which costs one wait for the device per step.
        optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
        self.scaler.step(optimizer)
        self.scaler.update()

    def state_dict(self) -> dict[str, Any]:
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.scaler.load_state_dict(state)


PRECISIONS: dict[str, type[Precision]] = {"fp32": Precision, "bf16": Bf16, "fp16": Fp16}


def precision_named(name: object, device: torch.device) -> Precision:
    """Builds the precision with this name for a device; raises a ValueError for an unknown name."""
    if not isinstance(name, str) or name not in PRECISIONS:
        raise ValueError(f"precision is {name!r}: give one of {', '.join(PRECISIONS)}")
    return PRECISIONS[name](device)


def widened(outputs: Any) -> Any:
    """Converts bfloat16 and float16 tensors to float32, also in tuples, lists and dicts, not in their subclasses."""
    if isinstance(outputs, Tensor):
        return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs
    if type(outputs) in (tuple, list):
        return type(outputs)(map(widened, outputs))
    if type(outputs) is dict:
        return {name: widened(value) for name, value in outputs.items()}
    return outputs
