"""Turns a trial's function into the class that Ray runs in a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray import tune
from ray.tune.trainable import wrap_function


class StillTrainingError(Exception):
    """The function of the worker's previous trial still runs, so the worker cannot start another trial."""


def trainable_of(function: Callable[[dict[str, Any]], Any], bundles: list[dict[str, float]]) -> type:
    """Returns a Ray trainable class for a function, with the resources of one trial.

    It raises if a worker cannot be reset for the next trial. Ray's own trainable returns False instead. Ray's
    controller then marks the next trial as failed, although it has not started, and never informs the searcher.
    """
    base: Any = wrap_function(function)

    class TrialFunction(base):
        def reset_config(self, new_config: dict[str, Any]) -> bool:
            if not super().reset_config(new_config):
                raise StillTrainingError("the last trial's function has not ended")
            return True

    made: type = tune.with_resources(TrialFunction, tune.PlacementGroupFactory(bundles))
    return made
