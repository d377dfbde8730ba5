"""Augments a batch of images: crop, flips, rotation, affine, colour jitter, and normalization as for ImageNet."""

from __future__ import annotations

import functools
import importlib.util
import logging

import torch
from torch import Tensor

from search_spaces.augmentation.batched import Strengths, draw_jitters, draw_warps, jitter, maps_of, warp
from search_spaces.shared.imagenet import scale_and_shift

logger = logging.getLogger(__name__)


def augment(images: Tensor, size: int, degrees: float, strengths: Strengths) -> Tensor:
    """Augments and normalizes (N, 3, H, W) uint8 images to (N, 3, size, size) float32, each image differently.

    A GPU augments all images at once. A CPU augments one image after another, in the compiled code of `fused.py` if
    numba is installed.

    Args:
        images: on the device that computes.
        size: height and width of the output, in pixels.
        degrees: the largest angle of the rotation and of the affine rotation.
        strengths: brightness, contrast, saturation and hue, as in torchvision's ColorJitter.
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
    """Whether numba is installed; logs a warning once if it is not."""
    is_installed = importlib.util.find_spec("numba") is not None
    if not is_installed:
        logger.warning("numba is not installed: augmenting on a CPU is 4 to 8 times slower; install '.[augment]'")
    return is_installed
