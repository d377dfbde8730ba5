"""Creates the CIFAR-10 sample that ships with tuner from the complete data set; takes 3 s.

    python -m search_spaces.datasets.make_cifar10_sample DATA_DIR [OUT]

It writes the sheets and labels to OUT (default: the folder of the shipped sample). It prints the sha256 for
SAMPLE_SHA256 in cifar10_files.py and for the sample's README.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from search_spaces.datasets.cifar10_files import (
    NUM_CLASSES,
    SAMPLE,
    SHEET_COLUMNS,
    SHEET_ROWS,
    digest,
    load_complete,
    read_sheets,
)
from tuner.training.data import Arrays


def first_of_each_class(part: Arrays, count: int) -> Arrays:
    """The first `count` images of each class, in the order of the data set."""
    by_class = [np.flatnonzero(part.targets == label)[:count] for label in range(NUM_CLASSES)]
    rows = np.sort(np.concatenate(by_class))
    return Arrays(part.inputs[rows], part.targets[rows])


def write_sheets(part: Arrays, folder: Path, split: str) -> None:
    """Writes `part` as lossless sheets of 20 rows of 25 images, and its classes as a line of digits."""
    per_sheet = SHEET_ROWS * SHEET_COLUMNS
    for number in range(len(part) // per_sheet):
        images = part.inputs[number * per_sheet : (number + 1) * per_sheet]
        grid = images.reshape(SHEET_ROWS, SHEET_COLUMNS, 3, 32, 32).transpose(0, 3, 1, 4, 2)
        sheet = Image.fromarray(grid.reshape(SHEET_ROWS * 32, SHEET_COLUMNS * 32, 3))
        # All 12 sheets take 13.0 MB as PNG and 10.0 MB as WebP. WebP's highest effort gives 9.9 MB, in 126 s not 3 s.
        sheet.save(folder / f"{split}_{number}.webp", lossless=True, quality=80, method=4)
    (folder / f"{split}_labels.txt").write_text("".join(map(str, part.targets)) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Creates the CIFAR-10 sample that ships with tuner.")
    parser.add_argument("data_dir", type=Path, help="folder with the complete data set, in either layout")
    parser.add_argument("out", type=Path, nargs="?", default=SAMPLE, help="folder to write to (default: %(default)s)")
    arguments = parser.parse_args()
    complete = load_complete(arguments.data_dir)
    assert complete.test is not None
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_sheets(first_of_each_class(complete.train, 500), arguments.out, "train")
    write_sheets(first_of_each_class(complete.test, 100), arguments.out, "test")
    print(digest(read_sheets(arguments.out, "train"), read_sheets(arguments.out, "test")))


if __name__ == "__main__":
    main()
