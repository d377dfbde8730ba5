"""How images are normalised for networks made for ImageNet."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of red, green and blue, on the scale of 0 to 1


def scale_and_shift(device: torch.device) -> tuple[Tensor, Tensor]:
    """Two (3, 1, 1): pixels of 0 to 255 are normalised by the one times the pixel plus the other."""
    mean, std = (255 * torch.tensor(values, device=device)[:, None, None] for values in (MEAN, STD))
    return 1 / std, -mean / std


class Normalize(nn.Module):
    """uint8 pixels as normalised values; floats are taken for normalised already, which an augmentation returns.

    Part of the model, so that bytes are what goes to the device, and that a saved model takes plain pixels.
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
