"""Applies colour jitter to a batch in place, for pixels of 0 to 255; changes and clips as torchvision does."""

from __future__ import annotations

import math
from collections import defaultdict

import torch
from torch import Tensor

from search_spaces.augmentation.draws import BRIGHTNESS, CONTRAST, HUE, SATURATION, Jitters

GREY = (0.2989, 0.587, 0.114)  # the weights of red, green and blue in grey, as in torchvision


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
