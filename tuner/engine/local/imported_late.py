"""Corrects Ray's settings if Ray was imported before this package, for example in a notebook's first cell."""

from __future__ import annotations

import logging

import ray
from ray._private import ray_constants

logger = logging.getLogger(__name__)


def correct() -> None:
    """Corrects a constant that Ray set at its import; warns in one line if this process has already started Ray."""
    # While this constant is True, Ray builds an environment per session under `uv run`, which takes 60 s.
    ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False
    if ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.SCRIPT_MODE:
        logger.warning(
            "Ray was started before tuner was imported: a trial without a GPU may train on GPU 0, and the working "
            "directory of a trial may differ from this one; import tuner before ray.init(), or call ray.shutdown()"
        )
