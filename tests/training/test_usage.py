"""The figures of a trial's process, memory that grows, and a trial's share of a GPU."""

import time

import pytest
import torch

from tuner.record.report_keys import USAGE
from tuner.training.devices import usage
from tuner.training.devices.accelerator import Accelerator
from tuner.training.devices.usage import LEAST_BYTES, SKIPPED, STEPS, Growth, Usage

MIB = 1 << 20


def growth_over(readings):
    growth = Growth("growth")
    return [growth.after(reading).get("growth") for reading in readings]


def test_what_grows_is_told_with_its_growth():
    growth = growth_over(range(0, 20 * 3 * MIB, 3 * MIB))
    first = SKIPPED + STEPS
    assert growth[:first] == [None] * first and growth[first:] == [3 * MIB] * (20 - first)
    jumps = [0, 0, 0, 0, 5, 5, 11, 11, 17]
    assert growth_over([reading * MIB for reading in jumps])[-2:] == [11 * MIB // 5, 17 * MIB // 5]
    assert growth_over([i * 2 * MIB for i in range(10)] + [18 * MIB] * 6)[-1] is None  # it has ended


@pytest.mark.parametrize(
    "mib",
    [
        [100, 300, 400, 401, 401, 401, 401, 401, 401, 401],  # warm-up, then flat
        [100, 300, 400, 400, 400, 450, 450, 450, 450, 450],  # a heap that is extended once
        [100, 300, 400, 500, 450, 500, 450, 500, 450, 500],  # up and down
        [100, 300, 400, 399, 398, 397, 396, 395, 394, 393],  # shrinks
        [epoch * (1 - 1 / LEAST_BYTES) for epoch in range(20)],  # too little
        [0, 0, 0, 0, 0, 0, 500, 500],  # one large step
    ],
)
def test_other_memory_is_no_growth(mib):
    assert growth_over([round(reading * MIB) for reading in mib]) == [None] * len(mib)


def test_the_figures_are_those_of_the_process(monkeypatch, tmp_path):
    cpu_s, wall_s = iter([1.0, 1.05, 1.06, 1.06]), iter([7.0, 7.1, 7.2, 7.3])
    monkeypatch.setattr(time, "process_time", lambda: next(cpu_s))
    monkeypatch.setattr(time, "perf_counter", lambda: next(wall_s))
    figures = Usage()
    busy, idle = figures.read(), figures.read()
    assert (busy["cpu_percent"], idle["cpu_percent"]) == (50.0, 10.0)
    assert busy["rss_bytes"] > 50 * MIB  # torch alone
    assert set(busy) <= USAGE
    monkeypatch.setattr(usage, "STATM", tmp_path / "none")
    assert set(figures.read()) == {"cpu_percent"}


@pytest.mark.parametrize(("gpus", "fraction"), [(0.25, 0.25), (1, 1.0), (2, 1.0)])
def test_a_share_is_the_cap_and_a_whole_device_lifts_it(monkeypatch, gpus, fraction):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", asked.append)
    Accelerator().limit(gpus)
    assert asked == [fraction]
