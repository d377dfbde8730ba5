"""Colour jitter of a batch: factors and the order of the four changes drawn for each image, as torchvision does.

Images are handled in groups that make the same change at the same step, in place and on the scale of 0 to 255.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from kornia.augmentation.random_generator import ColorJitterGenerator
from torch import Tensor

LUMA = (0.2989, 0.587, 0.114)  # grey of red, green and blue, torchvision's


@dataclass(frozen=True)
class Jitters:
    """The parameters of a batch of N images.

    Args:
        factors: (N, 4): brightness, contrast, saturation (1 changes nothing), hue (in turns, 0 changes nothing).
        order: (N, 4): the columns of `factors` in the order in which they are applied.
    """

    factors: Tensor
    order: Tensor

    def __getitem__(self, rows: slice) -> Jitters:
        return Jitters(self.factors[rows], self.order[rows])


class JitterDraws:
    """Draws what torchvision's ColorJitter of the same strengths draws, for each image."""

    def __init__(self, brightness: float, contrast: float, saturation: float, hue: float) -> None:
        self.generator = ColorJitterGenerator(brightness, contrast, saturation, hue)

    def __call__(self, shape: torch.Size) -> Jitters:
        """Draws from torch's stream on the CPU for a batch of this shape, (N, 3, H, W)."""
        drawn = self.generator(shape)
        names = ("brightness", "contrast", "saturation", "hue")
        factors = torch.stack([drawn[f"{name}_factor"] for name in names], dim=1)
        return Jitters(factors, torch.rand(shape[0], 4).argsort(dim=1))  # kornia draws one order for the whole batch


def jitter(images: Tensor, jitters: Jitters) -> Tensor:
    """Changes (N, 3, H, W) float pixels of 0 to 255 in place, and returns them.

    A GPU makes each change at once to all images that have it at the same step; a CPU takes image by image, which
    fits its cache.
    """
    factors = jitters.factors.to(images.device, non_blocking=True)[:, :, None, None, None]
    orders = jitters.order.tolist()
    if images.device.type == "cpu":
        for row, order in enumerate(orders):
            for index in order:
                CHANGES[index](images[row : row + 1], factors[row : row + 1, index])
        return images
    for step in range(4):
        for index, change in enumerate(CHANGES):
            chosen = [row for row, order in enumerate(orders) if order[step] == index]
            rows = torch.tensor(chosen, device=images.device)
            images[rows] = change(images[rows], factors[rows, index])
    return images


def brightness(images: Tensor, factors: Tensor) -> Tensor:
    return images.mul_(factors).clamp_(0, 255)


def contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Away from the image's mean grey, or towards it."""
    mean = (images.mean((2, 3)) * images.new_tensor(LUMA)).sum(1)[:, None, None, None]
    return images.mul_(factors).add_(mean * (1 - factors)).clamp_(0, 255)


def saturation(images: Tensor, factors: Tensor) -> Tensor:
    """Away from each pixel's grey, or towards it."""
    red, green, blue = LUMA
    grey = (images[:, :1] * red).add_(images[:, 1:2], alpha=green).add_(images[:, 2:], alpha=blue)
    return images.mul_(factors).add_(grey.mul_(1 - factors)).clamp_(0, 255)


def hue(images: Tensor, turns: Tensor) -> Tensor:
    """Turns each pixel's hue by -0.5 to 0.5, at the same value and saturation of HSV.

    Let V and m be the largest and the smallest of a pixel's channels, S their sum, C = V - m, and x how far the
    pixel's hue is from a channel's own, in sixths of a turn. On the hexcone, in all six cases,

        C |x| = V + S - 2m - 2 channel, and x has the sign of green - blue for red (blue - red, red - green);
        channel = clamp(m - C + | C |x| - 3C |, m, V), for x between -6 and 6,

    so that turning adds to x, and there is neither a division nor a case.
    """
    red, green, blue = images.unbind(1)
    largest, smallest = torch.maximum(red, green), torch.minimum(red, green)
    torch.maximum(largest, blue, out=largest)
    torch.minimum(smallest, blue, out=smallest)
    sign = torch.empty_like(images)
    for channel, (one, other) in enumerate(((green, blue), (blue, red), (red, green))):
        torch.sub(one, other, out=sign[:, channel])
    sign.mul_(1e9).clamp_(-1, 1)
    around = (red + green).add_(blue).add_(largest).sub_(smallest, alpha=2)
    x = torch.sub(around[:, None], images, alpha=2, out=images).mul_(sign)
    chroma = largest - smallest
    x.add_((chroma * (turns[:, 0] * 6))[:, None]).abs_().sub_((chroma * 3)[:, None]).abs_()
    x.add_((smallest - chroma)[:, None])
    return torch.clamp(x, smallest[:, None], largest[:, None], out=images)


CHANGES = (brightness, contrast, saturation, hue)  # the columns of `Jitters.factors`
