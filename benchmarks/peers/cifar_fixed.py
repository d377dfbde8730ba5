"""The settings of `benchmarks.end_to_end` as a space: `search_spaces/cifar.py` with a fixed list."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ray import tune

from benchmarks.peers import cifar_images, workload

settings = workload.load().settings
# A grid over whole settings: `batch_size` must be a parameter of its own for the training loop to see it.
index = tune.grid_search(list(range(len(settings))))


def column(name: str) -> Any:
    """The parameter `name` of the setting that the grid is at."""
    return tune.sample_from(lambda spec: settings[spec.config["index"]][name])


space = replace(cifar_images.space, params={"index": index, **{name: column(name) for name in settings[0]}})
