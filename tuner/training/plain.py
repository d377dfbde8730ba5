"""Loads files of torch.save that have only tensors and plain values, because other objects may run code."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import torch

from tuner.training.devices.accelerator import is_out_of_memory


def load_plain(file: Path | BinaryIO, map_location: str | None = "cpu", mmap: bool = False) -> Any:
    """Loads a file of torch.save; raises ValueError that says what the file has if torch cannot load it safely."""
    try:
        return torch.load(file, map_location, weights_only=True, mmap=mmap)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ValueError(unplain(file) or f"has a content that torch cannot read ({_short(error)})") from None


def unplain(file: Path | BinaryIO) -> str:
    """Says what a file of torch.save has besides tensors and plain values, or ""; reads only names, no tensor."""
    try:
        if not isinstance(file, Path):
            file.seek(0)
        names = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except Exception as error:
        return f"has a content that torch cannot read ({_short(error)})"
    return f"has more than tensors and plain values ({', '.join(names)})" if names else ""


def _short(error: Exception) -> str:
    """Returns the part of torch's text that says what is wrong; the rest advises to run the file's code."""
    text = str(error).rpartition("WeightsUnpickler error:")[2]
    return next(filter(None, map(str.strip, text.splitlines())), "") or type(error).__name__
