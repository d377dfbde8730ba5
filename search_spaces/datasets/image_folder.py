"""A folder of images a class as `Files`: checked in the driver, decoded by the trials' loaders."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from tuner.training.data import DataError, Files, Splits

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff")
# What such files hold, whatever they are called: of others Pillow starts programs (EPS) or keeps many frames (GIF).
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "TIFF")
# Files whose headers are read before a search: all, or so many spread evenly. From memory 8 threads read them in 1.6 s.
MOST_CHECKED = 20_000
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # `opened` refuses such a file
MOST_SCANS = 100  # of a progressive JPEG, which has about 10: each is a pass over all pixels and takes 130 bytes
LAYOUTS = "DIR/train/CLASS/*.jpg with DIR/val and DIR/test as wanted, or DIR/CLASS/*.jpg"


def image_folder(data_dir: Path | None, canvas: int) -> Splits:
    """The images under `data_dir`, as uint8 (3, canvas, canvas) and the index of their class by name.

    With a folder `train`, the folders `val` and `test` beside it are the other parts, where they are; without one,
    all is training data. `num_classes` is among the constants.

    Raises:
        DataError: no folder is named, or a class folder is missing or empty, or a file is no image.
    """
    if data_dir is None:
        raise DataError(f"this space ships no data: give --data-dir DIR with {LAYOUTS}")
    if not data_dir.is_dir():
        raise DataError(f"--data-dir {data_dir}: no such folder; give one with {LAYOUTS}")
    decode = partial(decoded, canvas=canvas)
    train_dir = data_dir / "train" if (data_dir / "train").is_dir() else data_dir
    classes = class_names(train_dir)
    train = labelled(train_dir, classes, decode)
    others = {}
    for name in ("val", "test") if train_dir != data_dir else ():
        if (data_dir / name).is_dir():
            others[name] = labelled(data_dir / name, classes, decode)
    return Splits(
        train,
        others.get("val"),
        others.get("test"),
        source=f"{len(train):,} training images of {len(classes)} classes in {data_dir}",
        constants={"num_classes": len(classes)},
    )


def class_names(folder: Path) -> list[str]:
    """The names of the folders in `folder`, sorted; DataError unless there are two at least."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if len(names) < 2:
        raise DataError(f"{folder}: {len(names)} class folders, two or more are needed: {LAYOUTS}")
    return names


def labelled(folder: Path, classes: list[str], decode: partial[np.ndarray]) -> Files:
    """The images of each class's folder in `folder`; DataError names a folder or a file that is not as it must be."""
    if unknown := sorted(set(class_names(folder)) - set(classes)):
        raise DataError(f"{folder / unknown[0]}: no such class in the training part; rename or remove the folder")
    paths: list[bytes] = []
    targets: list[int] = []
    for label, name in enumerate(classes):
        if not (folder / name).is_dir():
            raise DataError(f"{folder / name}: no such folder, but the training part has the class; add its images")
        found = list(image_paths(folder / name))
        if not found:
            raise DataError(f"{folder / name}: no image ({', '.join(EXTENSIONS)}); add some or remove the folder")
        paths += found
        targets += [label] * len(found)
    check_headers(paths)
    return Files(np.array(paths), np.array(targets, np.int64), decode)


def image_paths(folder: Path) -> Iterator[bytes]:
    """The image files below `folder`, in an order that does not depend on the file system."""
    for parent, folders, names in os.walk(folder.absolute()):
        folders.sort()
        for name in sorted(names):
            if name.lower().endswith(EXTENSIONS) and not name.startswith("."):
                yield os.fsencode(os.path.join(parent, name))


def check_headers(paths: list[bytes]) -> None:
    """DataError names the first file that is no image. What is broken behind its header shows when it is decoded."""
    step = max(1, -(-len(paths) // MOST_CHECKED))
    with ThreadPoolExecutor(max_workers=8) as pool:
        for path, error in zip(paths[::step], pool.map(header_error, paths[::step]), strict=True):
            if error:
                raise DataError(f"{os.fsdecode(path)}: no image: {error}; replace or remove the file")


def header_error(path: bytes) -> str:
    try:
        with opened(os.fsdecode(path)):
            return ""
    except Image.UnidentifiedImageError:
        return "empty" if os.path.getsize(path) == 0 else f"its content is none of {', '.join(FORMATS)}"
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        return str(error)


def opened(path: str) -> Image.Image:
    """The image, of which only the header is read; ValueError for one of more pixels than Pillow warns of.

    A file of 0.5 MB may hold 170 million of them, of which decoding takes 1.2 GB in each process.
    """
    if not os.path.isfile(path):
        raise ValueError("no regular file")  # a pipe would keep its reader waiting
    image = Image.open(path, formats=FORMATS)
    most = Image.MAX_IMAGE_PIXELS
    if most and image.width * image.height > most:
        image.close()
        raise ValueError(f"{image.width} x {image.height} pixels are more than {most:,}; make it smaller")
    return image


def decoded(path: str, canvas: int) -> np.ndarray:
    """The middle square of the image, as uint8 (3, canvas, canvas) RGB in the memory order of (canvas, canvas, 3).

    Raises:
        ValueError: a JPEG of more than `MOST_SCANS` scans, with which 1 MB takes an hour to decode.
    """
    with opened(path) as image:
        if image.info.get("progressive") and Path(path).read_bytes().count(b"\xff\xda") > MOST_SCANS:
            raise ValueError(f"{path}: a JPEG of more than {MOST_SCANS} scans; save it again")
        image.draft("RGB", (canvas, canvas))  # a large JPEG is decoded at a half to an eighth of its size
        square = ImageOps.fit(image.convert("RGB"), (canvas, canvas), Image.Resampling.BILINEAR)
    return np.asarray(square).transpose(2, 0, 1)
