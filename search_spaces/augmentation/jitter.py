"""Colour jitter of a batch, in place and on the scale of 0 to 255: each change is torchvision's, clipped like it."""

from __future__ import annotations

import math
from collections import defaultdict

import torch
from torch import Tensor

from search_spaces.augmentation.draws import BRIGHTNESS, CONTRAST, HUE, SATURATION, Jitters

GREY = (0.2989, 0.587, 0.114)  # the parts of red, green and blue in it, torchvision's


def jitter(images: Tensor, jitters: Jitters) -> Tensor:
    """Changes (N, 3, H, W) float pixels of 0 to 255 in place, and returns them.

    Each change is made at once to all images that have it at the same step.
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
    """One of the four changes; factors are (N, 1, 1, 1), `steps` as `hue` takes them."""
    if index == HUE:
        return hue(images, factor, steps)
    return {BRIGHTNESS: brightness, CONTRAST: contrast, SATURATION: saturation}[index](images, factor)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    return images.mul_(factor).clamp_(0, 255)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Away from the image's mean grey, or towards it."""
    return torch.lerp(grey(images.mean((2, 3), keepdim=True)), images, factor, out=images).clamp_(0, 255)


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Away from each pixel's grey, or towards it."""
    return torch.lerp(grey(images), images, factor, out=images).clamp_(0, 255)


def grey(images: Tensor) -> Tensor:
    """(N, 1, H, W)"""
    red, green, blue = images.split(1, dim=1)
    return (red * GREY[0]).add_(green, alpha=GREY[1]).add_(blue, alpha=GREY[2])


def hue_steps(turn: float) -> int:
    """How many steps of a twelfth of a turn at most make the turn, negative for one backwards."""
    return int(math.copysign(math.ceil(abs(turn) * 12), turn))


def hue(images: Tensor, turn: Tensor, steps: int) -> Tensor:
    """Turns each pixel's hue by -0.5 to 0.5, at the same value and saturation of HSV, in `hue_steps(turn)` steps.

    Around the hexcone each channel is at the largest value V for a third of a turn, goes down to the smallest m over
    a sixth, stays there for a third and comes up over a sixth; the next channel does so a third of a turn later. Thus
    a turn by k sixths moves a channel up by k (V - m) while the next one is at m, and down while that one is at V;
    where that one is less than k (V - m) from either, by the difference. For k of 0 to 1/2 this is

        channel + clamp(next, m + k (V - m), V - k (V - m)) - next, within m to V,

    without a division or a case. Backwards, the channel before takes the place of the next one.
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
