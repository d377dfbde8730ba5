"""Reads a data set with one folder of images per class; the driver checks the files, the trials decode them."""

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
# Allowed contents, whatever the extension. For other formats, Pillow starts programs (EPS) or keeps many frames (GIF).
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "TIFF")
# The most files whose headers are checked before a search, spread evenly. 8 threads take 1.6 s if they are cached.
MOST_CHECKED = 20_000
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # `opened` refuses such a file
MOST_SCANS = 100  # a progressive JPEG has about 10 scans; each takes 130 bytes, and is a pass over all pixels
LAYOUTS = "DIR/train/CLASS/*.jpg with optional DIR/val and DIR/test, or DIR/CLASS/*.jpg"


def image_folder(data_dir: Path | None, canvas: int) -> Splits:
    """The images in `data_dir` as uint8 (3, canvas, canvas), with class indices in the order of the class names.

    If there is a folder `train`, then `val` and `test` beside it are optional parts. Without `train`, all images are
    training data. The constants contain `num_classes`.

    Raises:
        DataError: --data-dir is missing, a class folder is missing or empty, or a file is not an image.
    """
    if data_dir is None:
        raise DataError(f"this space ships no data: give --data-dir DIR with {LAYOUTS}")
    if not data_dir.is_dir():
        raise DataError(f"--data-dir {data_dir}: no such folder; give a folder with {LAYOUTS}")
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
    """The sorted names of the folders in `folder`; raises a DataError if there are fewer than two."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if len(names) < 2:
        raise DataError(f"{folder}: {len(names)} class folders, but 2 or more are needed: {LAYOUTS}")
    return names


def labelled(folder: Path, classes: list[str], decode: partial[np.ndarray]) -> Files:
    """The images in the class folders of `folder`; a DataError names the first folder or file that is wrong."""
    if unknown := sorted(set(class_names(folder)) - set(classes)):
        raise DataError(f"{folder / unknown[0]}: no such class in the training part; rename or remove the folder")
    paths: list[bytes] = []
    targets: list[int] = []
    for label, name in enumerate(classes):
        if not (folder / name).is_dir():
            raise DataError(f"{folder / name}: no such folder, but the training part has the class; add its images")
        images = list(image_paths(folder / name))
        if not images:
            raise DataError(f"{folder / name}: no image ({', '.join(EXTENSIONS)}); add some or remove the folder")
        paths += images
        targets += [label] * len(images)
    check_headers(paths)
    return Files(np.array(paths), np.array(targets, np.int64), decode)


def image_paths(folder: Path) -> Iterator[bytes]:
    """Yields the image files below `folder`, in the same order on every file system."""
    for parent, folders, names in os.walk(folder.absolute()):
        folders.sort()
        for name in sorted(names):
            if name.lower().endswith(EXTENSIONS) and not name.startswith("."):
                yield os.fsencode(os.path.join(parent, name))


def check_headers(paths: list[bytes]) -> None:
    """Raises a DataError that names the first file without a valid image header; the pixels are not checked."""
    step = max(1, -(-len(paths) // MOST_CHECKED))
    with ThreadPoolExecutor(max_workers=8) as pool:
        for path, error in zip(paths[::step], pool.map(header_error, paths[::step]), strict=True):
            if error:
                raise DataError(f"{os.fsdecode(path)}: not an image: {error}; replace or remove the file")


def header_error(path: bytes) -> str:
    try:
        with opened(os.fsdecode(path)):
            return ""
    except Image.UnidentifiedImageError:
        return "empty" if os.path.getsize(path) == 0 else f"its content is none of {', '.join(FORMATS)}"
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        return str(error)


def opened(path: str) -> Image.Image:
    """Opens an image and reads only its header; raises a ValueError if it has more pixels than Pillow's limit.

    A file of 0.5 MB may contain 170 million pixels, whose decoding takes 1.2 GB in each process.
    """
    if not os.path.isfile(path):
        raise ValueError("not a regular file")  # reading a pipe could block
    image = Image.open(path, formats=FORMATS)
    most = Image.MAX_IMAGE_PIXELS
    if most and image.width * image.height > most:
        image.close()
        raise ValueError(f"{image.width} x {image.height} pixels are more than {most:,}; make it smaller")
    return image


def decoded(path: str, canvas: int) -> np.ndarray:
    """Decodes the middle square of an image to uint8 (3, canvas, canvas) RGB, channels last in memory.

    Raises:
        ValueError: the file is a JPEG with more than `MOST_SCANS` scans: 1 MB of scans takes an hour to decode.
    """
    with opened(path) as image:
        if image.info.get("progressive") and Path(path).read_bytes().count(b"\xff\xda") > MOST_SCANS:
            raise ValueError(f"{path}: a JPEG with more than {MOST_SCANS} scans; save it again")
        image.draft("RGB", (canvas, canvas))  # decodes a large JPEG at 1/2 to 1/8 of its size
        square = ImageOps.fit(image.convert("RGB"), (canvas, canvas), Image.Resampling.BILINEAR)
    return np.asarray(square).transpose(2, 0, 1)
