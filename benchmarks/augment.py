"""Augmentation in batches against torchvision's transforms image by image, on one core.

    python benchmarks/augment.py [--num-images 32] [--repeats 9]

Both sides start from the same decoded pictures in memory, 256 x 256, as PIL images and as one uint8 tensor, and end
with one normalised float batch of 224 x 224. Both make a random resized crop, flips, a rotation and an affine of up to
45 degrees and colour jitter, all drawn for each image. They take turns; times are medians of the CPU time of the
process, which has one thread: other processes lengthen it less than the clock's. The second comparison is without
jitter, which is what a `ColorJitter()` without arguments does.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from PIL import Image
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1]))  # started as a file, not as a module, in a plain checkout

from search_spaces.augmentation import chain
from search_spaces.augmentation.chain import augment
from search_spaces.augmentation.draws import Strengths
from search_spaces.datasets.cifar10_files import load_sample

CANVAS, SIZE, DEGREES = 256, 224, 45.0


def pictures(num_images: int) -> list[Image.Image]:
    """Photographs of the shipped sample, enlarged: how long a hue takes PIL depends on the colours."""
    inputs = load_sample("").train.inputs[:num_images].transpose(0, 2, 3, 1)
    return [Image.fromarray(np.ascontiguousarray(pixels)).resize((CANVAS, CANVAS)) for pixels in inputs]


def by_image(images: list[Image.Image], strengths: Strengths) -> Callable[[], Tensor]:
    """The transforms that a torchvision ImageFolder is given, and a loader's collation."""
    from torchvision import transforms

    chain = transforms.Compose(
        [
            transforms.RandomResizedCrop(SIZE),
            transforms.RandomHorizontalFlip(),
            transforms.RandomVerticalFlip(),
            transforms.RandomRotation(DEGREES),
            transforms.RandomAffine(DEGREES),
            transforms.ColorJitter(*strengths),
            transforms.ToTensor(),
            transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )
    return lambda: torch.stack([chain(image) for image in images])


def in_batch(stored: Tensor, strengths: Strengths) -> Callable[[], Tensor]:
    """What a trial of `imagefolder` does with a batch from its loader."""
    return lambda: augment(stored, SIZE, DEGREES, strengths)


def without_numba(work: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The same where numba is not installed: by torch's operations, as on a GPU."""

    def run() -> Tensor:
        with mock.patch.object(chain, "has_numba", lambda: False):
            return work()

    return run


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def compare(sides: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each side, after one turn to warm up."""
    turns = [{name: seconds(work) for name, work in sides.items()} for _ in range(1 + repeats)][1:]
    return {name: statistics.median(turn[name] for turn in turns) for name in sides}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-images", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    from search_spaces.imagefolder import STRENGTHS  # imports Ray and torchvision, which `--help` does without

    torch.set_num_threads(1)
    torch.manual_seed(0)
    images = pictures(options.num_images)
    # Channels last, as the loader's processes leave a batch.
    stored = torch.from_numpy(np.stack([np.asarray(image) for image in images])).permute(0, 3, 1, 2)
    for title, strengths in (("colour jitter", STRENGTHS), ("no colour jitter", (0.0, 0.0, 0.0, 0.0))):
        sides = {
            "image by image (PIL)": by_image(images, strengths),
            "in batches": in_batch(stored, strengths),
            "in batches, without numba": without_numba(in_batch(stored, strengths)),
        }
        times = compare(sides, options.repeats)
        slow, fast, _ = times.values()
        print(f"{title}: {slow / fast:.2f} times as many images a second in batches")
        for name, took in times.items():
            print(f"  {name:<28}{len(images) / took:>8,.0f} images/s {took / len(images) * 1e3:>7.3f} ms an image")


if __name__ == "__main__":
    main()
