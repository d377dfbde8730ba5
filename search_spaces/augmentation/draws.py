"""Draws the random parameters of torchvision's transforms of the same names, for a whole batch at once.

All draws use torch's random stream on the CPU, so that a seed gives the same parameters on every device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

Strengths = tuple[float, float, float, float]  # brightness, contrast, saturation, hue
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
ATTEMPTS = 10  # attempts to draw a crop within the image, as in torchvision


@dataclass(frozen=True)
class Warps:
    """The parameters of RandomResizedCrop, both flips, RandomRotation and RandomAffine for N images.

    Args:
        crop: (N, 4) int64: left, top, width and height of the crop, in pixels of the input.
        flip: (N, 2): -1 if the crop is mirrored left to right, or top to bottom, else 1.
        rotation: (N,): degrees, counter-clockwise, about the centre of the flipped crop.
        affine: (N,): degrees of a second rotation, which rotates the frame after the first rotation.
    """

    crop: Tensor
    flip: Tensor
    rotation: Tensor
    affine: Tensor


@dataclass(frozen=True)
class Jitters:
    """The parameters of ColorJitter for N images.

    Args:
        factors: (N, 4): brightness, contrast, saturation (1 changes nothing), hue (in turns, 0 changes nothing).
        order: (N, 4): the columns of `factors` in the order in which they are applied.
    """

    factors: Tensor
    order: Tensor


def draw_warps(num: int, height: int, width: int, degrees: float) -> Warps:
    """Draws the parameters for `num` images of height x width; both angles lie between -degrees and degrees."""
    flip = 1 - 2 * torch.randint(2, (num, 2)).float()
    rotation, affine = torch.empty(2, num).uniform_(-degrees, degrees)
    return Warps(draw_crops(num, height, width), flip, rotation, affine)


def draw_crops(
    num: int,
    height: int,
    width: int,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """Draws crops as (num, 4) int64, see `Warps.crop`.

    A crop is the first of ten attempts that lies within the image. If none does, it is the largest allowed crop in the
    middle of the image.

    Args:
        scale: the smallest and largest area of a crop, as a share of the image's area.
        ratio: the smallest and largest width of a crop divided by its height.
    """
    area = height * width * torch.empty(num, ATTEMPTS).uniform_(*scale)
    proportion = torch.empty(num, ATTEMPTS).uniform_(*map(math.log, ratio)).exp()
    # Float64, because torchvision computes with Python floats.
    sizes = torch.stack([area.double().mul(proportion), area.double().div(proportion)], dim=2).sqrt().round().long()
    limits = torch.tensor([width, height])
    fits = ((sizes > 0) & (sizes <= limits)).all(2)
    allowed = min(max(width / height, ratio[0]), ratio[1])
    largest = torch.tensor([min(width, round(height * allowed)), min(height, round(width / allowed))])
    any_fits = fits.any(1, keepdim=True)
    size = torch.where(any_fits, sizes[torch.arange(num), fits.int().argmax(1)], largest)
    room = limits - size
    corner = torch.where(any_fits, torch.rand(num, 2).mul(room + 1).long(), room // 2)
    return torch.cat([corner, size], dim=1)


def draw_jitters(num: int, strengths: Strengths) -> Jitters:
    """Draws the parameters of ColorJitter for `num` images; all orders have the same probability.

    A factor lies between 1 - strength and 1 + strength, at least 0; a hue between -strength and strength.
    """
    spread = torch.tensor(strengths)
    middle = torch.tensor([1.0, 1.0, 1.0, 0.0])
    low, high = middle - spread, middle + spread
    low[:3].clamp_(min=0)
    factors = low + torch.rand(num, 4) * (high - low)
    return Jitters(factors, torch.rand(num, 4).argsort(dim=1))
