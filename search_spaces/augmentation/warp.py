"""Applies the random resized crop, flips, rotation and affine of a batch.

The crop is resampled bilinearly with antialiasing, and the rotations take the nearest pixel, as in torchvision. But
torchvision resamples five times, this module twice: flips and both rotations are one map. So it rounds to the nearest
pixel once instead of twice. Pixels that a rotation takes from outside the frame are black.

The map handles a pixel as one number, red + 256 green + 65,536 blue, which needs one look-up instead of three.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from search_spaces.augmentation.draws import Warps

RED, GREEN, BLUE = 1, 256, 65536  # a packed pixel is below 2**24, which a float32 holds exactly


@dataclass(frozen=True)
class Maps:
    """For each pixel of N outputs, its source position in the crop, as the sum of a column's part and a row's part.

    Args:
        boxes: left, top, width and height of each image's crop, in pixels of the input.
        across: (N, 2, 1, size): the part of each column in the source x and y, in pixels of the resized crop.
        down: (N, 2, size, 1): the part of each row.
        centres: (1, size): the positions of the output's columns in its frame, from -1 to 1.
        middle, half: (N, size, 1): in each row, columns further than `half` from `middle` have their source outside
            the frame.
    """

    boxes: list[list[int]]
    across: Tensor
    down: Tensor
    centres: Tensor
    middle: Tensor
    half: Tensor


def maps_of(warps: Warps, size: int, device: torch.device) -> Maps:
    """Computes the maps for outputs of size x size, on the device."""
    centres = (torch.arange(size) * 2 + 1) / size - 1
    second = rotations(warps.affine)
    both = warps.flip[:, :, None] * (rotations(warps.rotation) @ second)
    across = (both[:, :, :1] * centres + 1) * (size / 2)
    down = both[:, :, 1:] * centres * (size / 2)
    # A source is inside the frame if |a x + b y| < 1 for both pairs of sides; for each y this is an interval of x.
    a, b = torch.cat([second, both], dim=1)[..., None].unbind(2)
    a = torch.where(a.abs() < 1e-6, 1e-6, a)
    middle, half = -b / a * centres, 1 / a.abs()
    first, last = (middle - half).amax(1)[..., None], (middle + half).amin(1)[..., None]
    tensors = (across[:, :, None], down[..., None], centres[None], (first + last) / 2, (last - first) / 2)
    return Maps(warps.crop.tolist(), *(tensor.to(device, non_blocking=True) for tensor in tensors))


def rotations(degrees: Tensor) -> Tensor:
    """Matrices (N, 2, 2) that map an output position to its source in a counter-clockwise rotation; y points down."""
    radians = degrees * (math.pi / 180)
    cos, sin = radians.cos(), radians.sin()
    return torch.stack([cos, -sin, sin, cos], dim=1).view(-1, 2, 2)


def warp(images: Tensor, maps: Maps, out: Tensor) -> Tensor:
    """Warps (N, 3, H, W) uint8 pixels into `out`, (N, 3, size, size) float32 of 0 to 255; returns `out`."""
    num, size = len(images), out.shape[-1]
    black = size * size  # the index of an additional black pixel after the others
    pixels = images.new_empty((num, black + 1), dtype=torch.float32)
    pixels[:, :black] = packed_crops(images, maps.boxes, size)
    pixels[:, black] = 0
    index = sources(maps, size).clamp_(0, black).int().view(num, -1)
    unpack(gathered(pixels, index).view(num, size, size), out)
    return out


def packed_crops(images: Tensor, boxes: list[list[int]], size: int) -> Tensor:
    """Resizes the crops to size x size; returns their packed pixels, (N, size * size)."""
    parts = [
        resized(image[None, :, top : top + height, left : left + width].float(), size)
        for image, (left, top, width, height) in zip(images, boxes, strict=True)
    ]
    weights = images.new_tensor((RED, GREEN, BLUE), dtype=torch.float32)[:, None, None]
    return torch.cat(parts).round_().mul_(weights).sum(1).view(len(images), -1)


def resized(image: Tensor, size: int) -> Tensor:
    return functional.interpolate(image, size=(size, size), mode="bilinear", antialias=True)


def sources(maps: Maps, size: int) -> Tensor:
    """The index of each output pixel's source in the crop, (N, size, size) float32; huge if it lies outside."""
    x, y = ((across + down).floor_() for across, down in zip(maps.across.unbind(1), maps.down.unbind(1), strict=True))
    outside = (maps.centres - maps.middle).abs_().sub_(maps.half).clamp_(min=0)
    return x.add_(y, alpha=size).add_(outside, alpha=1e12)


def gathered(pixels: Tensor, index: Tensor) -> Tensor:
    """Gathers pixels (N, L) at an int32 index (N, M); returns (N, M)."""
    # index_select is a third faster than gather, but takes a single index for all rows.
    index = index + torch.arange(len(pixels), dtype=torch.int32, device=index.device)[:, None] * pixels.shape[1]
    return pixels.view(-1).index_select(0, index.view(-1))


def unpack(packed: Tensor, out: Tensor) -> None:
    """Unpacks (N, H, W) packed pixels into `out`, (N, 3, H, W)."""
    red, green, blue = out.unbind(1)
    torch.mul(packed, 1 / BLUE, out=blue).floor_()
    torch.sub(packed, blue, alpha=BLUE, out=red)
    torch.mul(red, 1 / GREEN, out=green).floor_()
    red.sub_(green, alpha=GREEN)
