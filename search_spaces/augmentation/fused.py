"""Augments an image on a CPU with code compiled by numba; from the crop on, a row of pixels stays in the L1 cache.

It computes the same as `batched.py`, which a GPU runs. On a CPU that takes about 60 torch operations, each of which
reads and writes up to 0.6 MB of an image. This code passes over an image twice; the second pass is needed only because
a change of contrast needs the mean of all pixels.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from search_spaces.augmentation.batched import (
    BRIGHTNESS,
    CONTRAST,
    GREY,
    HUE,
    SATURATION,
    Jitters,
    Maps,
    hue_steps,
    resized,
)  # fmt: skip
from search_spaces.shared.imagenet import scale_and_shift

RED, GREEN, BLUE = (np.float32(part) for part in GREY)
LEAST, MOST = np.float32(0), np.float32(255)  # float32, because an int or float64 would make the loops float64
# The flags allow numba to vectorize the loops: no value is NaN, and the order of sums does not matter.
compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath={"nnan", "nsz", "reassoc", "contract"})


def augmented(images: Tensor, maps: Maps, jitters: Jitters | None, out: Tensor) -> Tensor:
    """Augments and normalizes (N, 3, H, W) uint8 images into `out`, (N, 3, size, size) float32; returns `out`."""
    size = out.shape[-1]
    scale, shift = (values.flatten().numpy() for values in scale_and_shift(images.device))
    places = [part.flatten(1).numpy() for part in (maps.middle, maps.half)]
    lines = [part.flatten(2).numpy() for part in (maps.across, maps.down)]
    changes = jitters.order.int().numpy() if jitters else np.empty((len(images), 0), np.int32)
    factors = jitters.factors.numpy() if jitters else np.empty((len(images), 4), np.float32)
    steps = [hue_steps(float(turn)) if jitters else 0 for turn in factors[:, HUE]]
    centres = maps.centres.flatten().numpy()
    for row, (left, top, width, height) in enumerate(maps.boxes):
        part = images[row : row + 1, :, top : top + height, left : left + width]
        crop = resized(part.contiguous(memory_format=torch.channels_last), size)[0].permute(1, 2, 0).numpy()
        one = [each[row] for each in (*lines, *places)]
        fill(crop, *one, centres, changes[row], factors[row], steps[row], scale, shift, out[row].numpy())
    return out


@compiled
def fill(crop, across, down, middle, half, centres, changes, factors, steps, scale, shift, out):  # type: ignore[no-untyped-def]
    """Augments one image: its crop, (size, size, 3) uint8, into `out`, (3, size, size).

    The other arguments are rows of `Maps` and `Jitters`.
    """
    size = len(crop)
    first = len(changes)  # the number of changes before the contrast; all of them if there is no contrast
    for index in range(len(changes)):
        if changes[index] == CONTRAST:
            first = index
    total = np.float32(0)
    for y in range(size):
        red, green, blue = out[0, y], out[1, y], out[2, y]
        look_up(crop, across, down[:, y], middle[y], half[y], centres, red, green, blue)
        for index in range(first):
            change(changes[index], factors, steps, red, green, blue)
        if first < len(changes):
            for x in range(size):
                total += RED * red[x] + GREEN * green[x] + BLUE * blue[x]
    mean = total / np.float32(size * size)
    for y in range(size):
        red, green, blue = out[0, y], out[1, y], out[2, y]
        for index in range(first, len(changes)):
            if changes[index] == CONTRAST:
                for values in (red, green, blue):
                    for x in range(size):
                        values[x] = clipped(mean + factors[CONTRAST] * (values[x] - mean))
            else:
                change(changes[index], factors, steps, red, green, blue)
        for x in range(size):
            red[x] = red[x] * scale[0] + shift[0]
            green[x] = green[x] * scale[1] + shift[1]
            blue[x] = blue[x] * scale[2] + shift[2]


@compiled
def look_up(crop, across, down, middle, half, centres, red, green, blue):  # type: ignore[no-untyped-def]
    """Fills a row of the output from the crop's pixels; a pixel from outside the crop is black."""
    last = np.float32(len(crop) - 1)
    for x in range(len(red)):
        if abs(centres[x] - middle) > half:
            red[x] = green[x] = blue[x] = LEAST
        else:
            column = int(within(np.floor(across[0, x] + down[0]), LEAST, last))
            line = int(within(np.floor(across[1, x] + down[1]), LEAST, last))
            red[x], green[x], blue[x] = crop[line, column, 0], crop[line, column, 1], crop[line, column, 2]


@compiled
def change(index, factors, steps, red, green, blue):  # type: ignore[no-untyped-def]
    """Changes the brightness, saturation or hue of a row in place."""
    factor = factors[index]
    if index == BRIGHTNESS:
        for values in (red, green, blue):
            for x in range(len(values)):
                values[x] = clipped(values[x] * factor)
    elif index == SATURATION:
        for x in range(len(red)):
            grey = RED * red[x] + GREEN * green[x] + BLUE * blue[x]
            red[x] = clipped(grey + factor * (red[x] - grey))
            green[x] = clipped(grey + factor * (green[x] - grey))
            blue[x] = clipped(grey + factor * (blue[x] - grey))
    elif index == HUE:
        for _ in range(abs(steps)):
            if steps > 0:
                turn(factor * np.float32(6) / np.float32(steps), red, green, blue)
            else:  # backwards: the channels in reverse order
                turn(factor * np.float32(6) / np.float32(steps), blue, green, red)


@compiled
def turn(part, first, second, third):  # type: ignore[no-untyped-def]
    """One step of `batched.hue`: turns the hue by at most 1/12, from the first channel towards the second."""
    for x in range(len(first)):
        a, b, c = first[x], second[x], third[x]
        largest, smallest = max(a, b, c), min(a, b, c)
        reach = (largest - smallest) * part
        low, high = smallest + reach, largest - reach
        first[x] = within(a + within(b, low, high) - b, smallest, largest)
        second[x] = within(b + within(c, low, high) - c, smallest, largest)
        third[x] = within(c + within(a, low, high) - a, smallest, largest)


@compiled
def within(value, least, most):  # type: ignore[no-untyped-def]
    return min(max(value, least), most)


@compiled
def clipped(value):  # type: ignore[no-untyped-def]
    return min(max(value, LEAST), MOST)
