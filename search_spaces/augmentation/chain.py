"""The augmentation of a batch: crop, flips, rotation, affine, colour jitter and ImageNet's normalisation."""

from __future__ import annotations

import functools
import importlib.util
import logging

import torch
from torch import Tensor

from search_spaces.augmentation.draws import Strengths, draw_jitters, draw_warps
from search_spaces.augmentation.jitter import jitter
from search_spaces.augmentation.warp import maps_of, warp
from search_spaces.shared.imagenet import scale_and_shift

logger = logging.getLogger(__name__)


def augment(images: Tensor, size: int, degrees: float, strengths: Strengths) -> Tensor:
    """(N, 3, H, W) uint8 as (N, 3, size, size) float32, normalised, each image with its own draws.

    A GPU handles all images at once; a CPU one after the other, by the kernel of `fused.py` where numba is installed.

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
    if images.device.type == "cpu" and has_numba():
        from search_spaces.augmentation.fused import augmented  # numba takes a second to import

        return augmented(images, maps, jitters, output)
    scale, shift = scale_and_shift(images.device)
    warp(images, maps, output)
    if jitters:
        jitter(output, jitters)
    return output.mul_(scale).add_(shift)


@functools.cache
def has_numba() -> bool:
    """Whether numba is installed; says so once where it is not."""
    found = importlib.util.find_spec("numba") is not None
    if not found:
        logger.warning("numba is not installed: augmenting on a CPU is 4 to 8 times slower; give it the extra augment")
    return found
