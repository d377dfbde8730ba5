"""The augmentation of a batch: crop, flips, rotation, affine, colour jitter and ImageNet's normalisation."""

from __future__ import annotations

import torch
from torch import Tensor

from search_spaces.augmentation.draws import Strengths, draw_jitters, draw_warps
from search_spaces.augmentation.jitter import jitter
from search_spaces.augmentation.warp import maps_of, warp
from search_spaces.shared.imagenet import scale_and_shift


def augment(images: Tensor, size: int, degrees: float, strengths: Strengths) -> Tensor:
    """(N, 3, H, W) uint8 as (N, 3, size, size) float32, normalised, each image with its own draws.

    A GPU handles all images at once, a CPU one after the other, which stays in its cache from the crop to the end.

    Args:
        images: on the device that does the work.
        size: height and width of what comes out, in pixels.
        degrees: the largest angle of the rotation and of the affine.
        strengths: of brightness, contrast, saturation and hue, as torchvision's ColorJitter takes them.
    """
    num, _, height, width = images.shape
    maps = maps_of(draw_warps(num, height, width, degrees), size, images.device)
    jitters = draw_jitters(num, strengths) if any(strengths) else None
    output = images.new_empty((num, 3, size, size), dtype=torch.float32)
    scale, shift = scale_and_shift(images.device)
    length = 1 if images.device.type == "cpu" else num
    for start in range(0, num, length):
        part = slice(start, start + length)
        warped = warp(images[part], maps[part], output[part])
        if jitters:
            jitter(warped, jitters[part])
        warped.mul_(scale).add_(shift)
    return output
