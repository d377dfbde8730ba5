"""Seals checkpoints that have other objects than tensors, since loading them can run code.

A folder of results may come from anywhere, and so may its journal: neither proves who wrote a file. The key does. It is
made of a secret in the user's cache (`tuner.record.data_folders.seal_key`), and trials get it by the variable KEY.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

KEY, TRUSTED = "TUNER_SEAL_KEY", "TUNER_SEAL_TRUSTED"  # environment variables; TRUSTED is 1 with --trust, else empty
SEAL = ".seal"  # ends the name of the file beside a checkpoint's file


def is_code(file: Path) -> str:
    """Say what a file of torch.save has besides tensors and plain values, or ""."""
    from tuner.training.plain import unplain  # imports torch, which not every search needs

    return unplain(file)


def seal(file: Path) -> None:
    """Seal a file of torch.save that has more than tensors and plain values; reads it at about 1 GB/s."""
    if is_code(file) and (key := os.environ.get(KEY)):
        seal_of(file).write_text(_sum_of(file, key))


def seal_of(file: Path) -> Path:
    return file.with_name(file.name + SEAL)


def has_key(file: Path, key: str) -> bool:
    """Whether the seal of a file was made with the key, for its present content; anybody could use an empty key."""
    try:
        is_there = key and file.is_file() and seal_of(file).is_file()  # no pipes, for which a reader would wait
        return bool(is_there) and hmac.compare_digest(seal_of(file).read_bytes(), _sum_of(file, key).encode())
    except OSError:
        return False


def why_unsafe(file: Path) -> str:
    """Say why a trial must not load a file of torch.save; empty if it is plain, sealed by this search, or trusted."""
    if os.environ.get(TRUSTED) or not (why := is_code(file)) or has_key(file, os.environ.get(KEY, "")):
        return ""
    return f"{file.name} {why}, and this search has not saved it so on this machine; check it, then resume with --trust"


def _sum_of(file: Path, key: str) -> str:
    with file.open("rb") as content:
        return hmac.new(key.encode(), hashlib.file_digest(content, "sha256").digest(), "sha256").hexdigest()
