"""Normalizes images as networks for ImageNet expect them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # red, green and blue, on a scale of 0 to 1


def scale_and_shift(device: torch.device) -> tuple[Tensor, Tensor]:
    """Two tensors of shape (3, 1, 1): `scale * pixel + shift` normalizes pixels of 0 to 255."""
    mean, std = (255 * torch.tensor(values, device=device)[:, None, None] for values in (MEAN, STD))
    return 1 / std, -mean / std


class Normalize(nn.Module):
    """Normalizes uint8 pixels; returns floats unchanged, because the augmentation has already normalized them.

    It is a part of the model, so that bytes instead of floats go to the device, and a saved model takes raw pixels.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        scale, shift = scale_and_shift(torch.device("cpu"))
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, images: Tensor) -> Tensor:
        return images if images.is_floating_point() else (images * self.scale).add_(self.shift)
