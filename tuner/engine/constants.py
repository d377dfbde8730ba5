"""Corrects constants that Ray reads from the environment when it is imported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ray._private import ray_constants


@contextmanager
def without_clusters() -> Iterator[None]:
    """Makes Ray start nodes on 127.0.0.1, as it does on systems where it supports no clusters."""
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def no_environment_of_uv() -> None:
    """Keeps Ray from building an environment per session under `uv run`, which takes 60 s."""
    ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False
