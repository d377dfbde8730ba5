"""Images of noise."""

import numpy as np
from PIL import Image


def add(folder, name="0.jpg", size=(40, 30)):
    """Adds an image to a folder; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / name)
    return folder / name
