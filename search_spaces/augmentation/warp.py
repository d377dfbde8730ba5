"""Random resized crop, flips, rotation and affine of a batch.

Pixels are resampled as torchvision's transforms of these names do it, bilinearly with antialiasing for the crop and
from the nearest pixel for the rotations, but twice in the place of five times: flips and both rotations are one map.
Where torchvision rounds to the nearest pixel twice, here it is once. What a rotation brings in from outside its frame
is black.

A pixel is one number, red + 256 green + 65,536 blue, on its way through the map: one look-up instead of three.
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
    """Where the pixels of N outputs come from; columns and rows of the output each have their part in it.

    Args:
        boxes: of each image left, top, width and height of the crop, in pixels of the input.
        across: (N, 2, 1, size): x and y in pixels of the resized crop, a column's part.
        down: (N, 2, size, 1): what a row adds.
        centres: (1, size): where the columns of an output lie in its frame, which goes from -1 to 1.
        middle, half: (N, size, 1): the columns of a row that lie further from the middle than half come from outside
            of a frame.
    """

    boxes: list[list[int]]
    across: Tensor
    down: Tensor
    centres: Tensor
    middle: Tensor
    half: Tensor


def maps_of(warps: Warps, size: int, device: torch.device) -> Maps:
    """The maps of size x size outputs, on the device."""
    centres = (torch.arange(size) * 2 + 1) / size - 1
    second = rotations(warps.affine)
    both = warps.flip[:, :, None] * (rotations(warps.rotation) @ second)
    across = (both[:, :, :1] * centres + 1) * (size / 2)
    down = both[:, :, 1:] * centres * (size / 2)
    # Each frame has two pairs of sides: |a x + b y| < 1, which for a given y is an interval of x.
    a, b = torch.cat([second, both], dim=1)[..., None].unbind(2)
    a = torch.where(a.abs() < 1e-6, 1e-6, a)
    middle, half = -b / a * centres, 1 / a.abs()
    first, last = (middle - half).amax(1)[..., None], (middle + half).amin(1)[..., None]
    tensors = (across[:, :, None], down[..., None], centres[None], (first + last) / 2, (last - first) / 2)
    return Maps(warps.crop.tolist(), *(tensor.to(device, non_blocking=True) for tensor in tensors))


def rotations(degrees: Tensor) -> Tensor:
    """(N, 2, 2): from where in a frame a pixel comes that is turned counter-clockwise; y points down."""
    radians = degrees * (math.pi / 180)
    cos, sin = radians.cos(), radians.sin()
    return torch.stack([cos, -sin, sin, cos], dim=1).view(-1, 2, 2)


def warp(images: Tensor, maps: Maps, out: Tensor) -> Tensor:
    """(N, 3, H, W) uint8 pixels into `out`, (N, 3, size, size) float32, still 0 to 255; returns it."""
    num, size = len(images), out.shape[-1]
    black = size * size  # the index of a black pixel behind the others
    pixels = images.new_empty((num, black + 1), dtype=torch.float32)
    pixels[:, :black] = packed_crops(images, maps.boxes, size)
    pixels[:, black] = 0
    index = sources(maps, size).clamp_(0, black).int().view(num, -1)
    unpack(gathered(pixels, index).view(num, size, size), out)
    return out


def packed_crops(images: Tensor, boxes: list[list[int]], size: int) -> Tensor:
    """(N, size * size) packed pixels of the crops, enlarged or reduced to size x size."""
    parts = [
        resized(image[None, :, top : top + height, left : left + width].float(), size)
        for image, (left, top, width, height) in zip(images, boxes, strict=True)
    ]
    weights = images.new_tensor((RED, GREEN, BLUE), dtype=torch.float32)[:, None, None]
    return torch.cat(parts).round_().mul_(weights).sum(1).view(len(images), -1)


def resized(image: Tensor, size: int) -> Tensor:
    return functional.interpolate(image, size=(size, size), mode="bilinear", antialias=True)


def sources(maps: Maps, size: int) -> Tensor:
    """(N, size, size) float32: the index of the crop's pixel that each comes from; far beyond the last one for none."""
    x, y = ((across + down).floor_() for across, down in zip(maps.across.unbind(1), maps.down.unbind(1), strict=True))
    outside = (maps.centres - maps.middle).abs_().sub_(maps.half).clamp_(min=0)
    return x.add_(y, alpha=size).add_(outside, alpha=1e12)


def gathered(pixels: Tensor, index: Tensor) -> Tensor:
    """(N, M) of the pixels (N, L) at the index (N, M), int32."""
    # index_select is a third faster than gather, but takes one index for all.
    index = index + torch.arange(len(pixels), dtype=torch.int32, device=index.device)[:, None] * pixels.shape[1]
    return pixels.view(-1).index_select(0, index.view(-1))


def unpack(packed: Tensor, out: Tensor) -> None:
    """(N, H, W) packed pixels into `out`, (N, 3, H, W)."""
    red, green, blue = out.unbind(1)
    torch.mul(packed, 1 / BLUE, out=blue).floor_()
    torch.sub(packed, blue, alpha=BLUE, out=red)
    torch.mul(red, 1 / GREEN, out=green).floor_()
    red.sub_(green, alpha=GREEN)
