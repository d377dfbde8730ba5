"""Random resized crop, both flips, rotation, affine and colour jitter of a batch, each image with its own draws."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from search_spaces.augmentation.jitter import JitterDraws, jitter
from search_spaces.augmentation.warp import WarpDraws, warp

Strengths = tuple[float, float, float, float]
# Images that a CPU handles at once: of 1, 2, 4 and 8, two take the least time, as what they need stays in its cache.
CPU_CHUNK = 2


@cache
def draws(size: int, degrees: float, strengths: Strengths) -> tuple[WarpDraws, JitterDraws]:
    """What draws; making it takes 0.5 ms."""
    return WarpDraws(size, degrees), JitterDraws(*strengths)


def augment(images: Tensor, size: int, degrees: float, strengths: Strengths) -> Tensor:
    """(N, 3, H, W) uint8 as (N, 3, size, size) float32, pixels of 0 to 255; draws from torch's stream on the CPU.

    Args:
        images: on the device that does the work.
        size: height and width of what comes out, in pixels.
        degrees: the largest angle of the rotation and of the affine.
        strengths: of brightness, contrast, saturation and hue, as torchvision's ColorJitter takes them.
    """
    draw_warps, draw_jitters = draws(size, degrees, strengths)
    warps, jitters = draw_warps(images.shape), draw_jitters(images.shape) if any(strengths) else None
    length = CPU_CHUNK if images.device.type == "cpu" else len(images)
    output = images.new_empty((len(images), 3, size, size), dtype=torch.float32)
    for start in range(0, len(images), length):
        part = slice(start, start + length)
        warped = warp(images[part], warps[part], size)
        output[part] = jitter(warped, jitters[part]) if jitters else warped
    return output
