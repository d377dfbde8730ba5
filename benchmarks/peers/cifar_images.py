"""`search_spaces/cifar.py` on the images that all sides of a benchmark share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.peers import workload
from search_spaces import cifar
from tuner.training.data import Arrays, Splits


def images(data_dir: Path | None) -> Splits:
    return Splits(Arrays(*workload.load_images("train")), Arrays(*workload.load_images("validation")))


space = replace(cifar.space, task=replace(cifar.space.task, data=images), mutable=())
