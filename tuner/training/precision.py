"""The arithmetic of the forward and backward pass: fp32 as it is, bf16 by autocast, fp16 with scaled losses.

The parameters, the optimizer's state, the loss and the metrics stay in the model's own precision (float32) in each.
On a CPU all three run. There fp16 is for finding out what it does to a setting, not for speed: a step of a small
convolutional network took twice the time of fp32, bf16 0.8 of it (torch 2.15).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Precision:
    """fp32, and what the others keep of it: how outputs and gradients are computed, and how a step is made."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def forward(self, model: nn.Module, inputs: Tensor) -> Any:
        """What the model returns for the inputs; floating-point tensors in it are float32 or wider."""
        return model(inputs)

    def backward(self, loss: Tensor) -> None:
        """Adds the gradients of the loss to those there are."""
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Updates the parameters from their gradients."""
        optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Numbers that change from step to step; none but with fp16."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state; one of another precision is left alone."""


class Bf16(Precision):
    """Matrix products and convolutions in bfloat16: float32's range, 8 bits of precision."""

    dtype = torch.bfloat16

    def forward(self, model: nn.Module, inputs: Tensor) -> Any:
        # Left after each pass: autocast keeps the parameters it has converted, and a step makes those stale.
        with torch.autocast(self.device.type, self.dtype):
            outputs = model(inputs)
        return widened(outputs)


class Fp16(Bf16):
    """Matrix products and convolutions in float16, losses scaled so that small gradients do not become zero.

    A step whose gradients are not finite is left out and halves the scale, as `torch.amp.GradScaler` does it; the
    first steps of a training often are, while the scale comes down from 65536.
    """

    dtype = torch.float16

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.scaler = torch.amp.GradScaler(device.type)

    def backward(self, loss: Tensor) -> None:
        super().backward(self.scaler.scale(loss))

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        # The scaler leaves it to a fused optimizer to skip a step, and torch 2.15's fused SGD then keeps momentum
        # buffers that nothing has written: the parameters were NaN one step later. Without this mark the scaler
        # skips such a step itself, for one wait for the device a step.
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
    """The precision of that name on the device; ValueError where there is none."""
    if not isinstance(name, str) or name not in PRECISIONS:
        raise ValueError(f"precision is {name!r}: give one of {', '.join(PRECISIONS)}")
    return PRECISIONS[name](device)


def widened(outputs: Any) -> Any:
    """The outputs with bfloat16 and float16 tensors, also inside tuples, lists and dictionaries, as float32."""
    if isinstance(outputs, Tensor):
        return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs
    if type(outputs) in (tuple, list):
        return type(outputs)(map(widened, outputs))
    if type(outputs) is dict:
        return {name: widened(value) for name, value in outputs.items()}
    return outputs
