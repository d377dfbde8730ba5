"""Corrects Ray's settings if Ray was imported before this package, for example in a notebook's first cell."""

from __future__ import annotations

import logging

import ray

from tuner.engine import constants

logger = logging.getLogger(__name__)


def correct() -> None:
    """Corrects what Ray read from the environment at import; warns in one line if Ray already has workers."""
    constants.no_environment_of_uv()
    if ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.SCRIPT_MODE:
        logger.warning(
            "Ray was started before tuner was imported: a trial without a GPU may train on GPU 0, and the working "
            "directory of a trial may differ from this one; import tuner before ray.init(), or call ray.shutdown()"
        )
