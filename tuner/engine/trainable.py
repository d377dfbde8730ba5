"""Turns a trial's function into the class that Ray runs in a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray import tune
from ray.tune.trainable import wrap_function


class StillTrainingError(Exception):
    """The last trial's function has not ended, so its worker cannot run another one."""


def trainable_of(function: Callable[[dict[str, Any]], Any], bundles: list[dict[str, float]]) -> type:
    """Returns Ray's trainable of a function, with the resources of one trial.

    A worker that cannot be reset raises. Ray's own trainable answers False, for which Ray's controller marks the next
    trial, which has done nothing yet, as failed and never tells its searcher.
    """
    base: Any = wrap_function(function)

    class TrialFunction(base):
        def reset_config(self, new_config: dict[str, Any]) -> bool:
            if not super().reset_config(new_config):
                raise StillTrainingError("the last trial's function has not ended")
            return True

    made: type = tune.with_resources(TrialFunction, tune.PlacementGroupFactory(bundles))
    return made
