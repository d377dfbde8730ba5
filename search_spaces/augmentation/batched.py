"""Draws the parameters of torchvision's transforms of the same names, and applies them to a whole batch of images.

All draws use torch's random stream on the CPU, so that a seed gives the same parameters on every device.

The crop is resampled bilinearly with antialiasing, and the rotations take the nearest pixel, as in torchvision. But
torchvision resamples five times, this module twice: flips and both rotations are one map. So it rounds to the nearest
pixel once instead of twice. Pixels that a rotation takes from outside the frame are black. The map handles a pixel as
one number, red + 256 green + 65,536 blue, which needs one look-up instead of three.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Strengths = tuple[float, float, float, float]  # brightness, contrast, saturation, hue
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
ATTEMPTS = 10  # attempts to draw a crop within the image, as in torchvision
RED, GREEN, BLUE = 1, 256, 65536  # a packed pixel is below 2**24, which a float32 holds exactly
GREY = (0.2989, 0.587, 0.114)  # the weights of red, green and blue in grey, as in torchvision


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


def jitter(images: Tensor, jitters: Jitters) -> Tensor:
    """Changes (N, 3, H, W) float pixels of 0 to 255 in place, and returns them.

    Images with the same change at the same step are changed together.
    """
    factors, orders = jitters.factors.tolist(), jitters.order.tolist()
    for step in range(4):
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row, order in enumerate(orders):
            index = order[step]
            groups[index, hue_steps(factors[row][HUE]) if index == HUE else 0].append(row)
        for (index, steps), rows in groups.items():
            chosen = torch.tensor(rows, device=images.device)
            factor = jitters.factors[rows, index].to(images.device)[:, None, None, None]
            images[chosen] = change(images[chosen], index, factor, steps)
    return images


def change(images: Tensor, index: int, factor: Tensor, steps: int) -> Tensor:
    """Applies one of the four changes; `factor` has shape (N, 1, 1, 1), and `steps` is for `hue`."""
    if index == HUE:
        return hue(images, factor, steps)
    return {BRIGHTNESS: brightness, CONTRAST: contrast, SATURATION: saturation}[index](images, factor)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    return images.mul_(factor).clamp_(0, 255)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Moves pixels away from the image's mean grey (factor above 1) or towards it (below 1)."""
    return torch.lerp(grey(images.mean((2, 3), keepdim=True)), images, factor, out=images).clamp_(0, 255)


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Moves each pixel away from its own grey (factor above 1) or towards it (below 1)."""
    return torch.lerp(grey(images), images, factor, out=images).clamp_(0, 255)


def grey(images: Tensor) -> Tensor:
    """The grey values of the pixels, of shape (N, 1, H, W)."""
    red, green, blue = images.split(1, dim=1)
    return (red * GREY[0]).add_(green, alpha=GREY[1]).add_(blue, alpha=GREY[2])


def hue_steps(turn: float) -> int:
    """The number of steps of at most 1/12 turn that make up a turn; negative for a backward turn."""
    return int(math.copysign(math.ceil(abs(turn) * 12), turn))


def hue(images: Tensor, turn: Tensor, steps: int) -> Tensor:
    """Turns each pixel's hue by -0.5 to 0.5 turns, in `hue_steps(turn)` steps; keeps its saturation and value (HSV).

    Let V be the largest and m the smallest channel of a pixel. Over one turn of the hue, a channel stays at V for a
    third of the turn, falls to m over a sixth, stays at m for a third, and rises over a sixth. The next channel does
    the same a third of a turn later. So a turn by k sixths raises a channel by k (V - m) while the next channel is at
    m, and lowers it while the next one is at V. If the next channel is closer than k (V - m) to m or V, the change is
    the difference. For k from 0 to 1/2 this is

        channel + clamp(next, m + k (V - m), V - k (V - m)) - next, clamped to m..V,

    without a division or a case distinction. A backward turn uses the previous channel instead of the next one.
    """
    forwards = 1 if steps > 0 else -1
    channels = images.split(1, dim=1)
    for _ in range(abs(steps)):
        largest, smallest = torch.maximum(*channels[:2]), torch.minimum(*channels[:2])
        torch.maximum(largest, channels[2], out=largest)
        torch.minimum(smallest, channels[2], out=smallest)
        reach = (largest - smallest).mul_(turn * (6 / steps))
        low, high = smallest + reach, torch.sub(largest, reach, out=reach)
        moves = [torch.clamp(channel, low, high).sub_(channel) for channel in channels]
        for index, channel in enumerate(channels):
            channel.add_(moves[(index + forwards) % 3]).clamp_(smallest, largest)
    return images
