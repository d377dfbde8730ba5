"""Resolves `--results`: a folder, or an object store with a working copy on this machine."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path


def is_uri(results: str) -> bool:
    """Whether `results` names an object store rather than a folder."""
    return re.match(r"[a-z][a-z0-9]*://", results) is not None


def local_root(results: str) -> Path:
    """The folder that experiments are written to on this machine: `results` itself, or the working copy of a URI."""
    if not is_uri(results):
        return Path(results)
    cache = Path(os.environ.get("TUNER_CACHE") or "~/.cache/tuner").expanduser()
    return cache / "results" / hashlib.sha256(results.rstrip("/").encode()).hexdigest()[:16]
