"""The figures of a trial's process, memory that grows, and a trial's share of a GPU."""

import ctypes
import gc
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from tuner.record.report_keys import USAGE
from tuner.training.devices import nvml, usage
from tuner.training.devices.usage import LEAST_BYTES, SKIPPED, STEPS, Growth, Usage, hold_to_share

MIB = 1 << 20
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def growth_over(readings):
    growth = Growth("growth")
    return [growth.after(reading).get("growth") for reading in readings]


def test_what_grows_is_told_with_its_growth():
    growth = growth_over(range(0, 20 * 3 * MIB, 3 * MIB))
    first = SKIPPED + STEPS
    assert growth[:first] == [None] * first and growth[first:] == [3 * MIB] * (20 - first)


@pytest.mark.parametrize(
    "readings",
    [
        [100, 300, 400, 401, 401, 401, 401, 401, 401, 401],  # warm-up, then flat
        [100, 300, 400, 400, 400, 450, 450, 450, 450, 450],  # a heap that is extended once
        [100, 300, 400, 500, 450, 500, 450, 500, 450, 500],  # up and down
        [100, 300, 400, 399, 398, 397, 396, 395, 394, 393],  # shrinks
    ],
)
def test_warm_up_and_a_heap_that_is_extended_are_not_growth(readings):
    assert growth_over([reading * MIB for reading in readings]) == [None] * len(readings)


def test_growth_that_comes_in_jumps_is_told():
    jumps = [0, 0, 0, 0, 5, 5, 11, 11, 17]
    assert growth_over([reading * MIB for reading in jumps])[-2:] == [11 * MIB // 5, 17 * MIB // 5]


def test_small_change_and_one_large_step_are_no_growth():
    assert set(growth_over(range(0, 20 * (LEAST_BYTES - 1), LEAST_BYTES - 1))) == {None}
    small = [0, 0, 0, 1, 2, 3, 500 * MIB, 500 * MIB + 1]
    assert set(growth_over(small)) == {None}


def test_growth_that_ends_is_not_told_any_more():
    assert growth_over([i * 2 * MIB for i in range(10)] + [18 * MIB] * 6)[-1] is None


def test_the_figures_are_those_of_the_process(monkeypatch):
    cpu_s, wall_s = iter([1.0, 1.05, 1.06]), iter([7.0, 7.1, 7.2])
    monkeypatch.setattr(time, "process_time", lambda: next(cpu_s))
    monkeypatch.setattr(time, "perf_counter", lambda: next(wall_s))
    figures = Usage()
    busy, idle = figures.read(), figures.read()
    assert (busy["cpu_percent"], idle["cpu_percent"]) == (50.0, 10.0)
    assert busy["rss_bytes"] > 50 * MIB  # torch alone
    assert set(busy) <= USAGE


def test_a_model_whose_losses_are_kept_is_told():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # else the graphs lie in memory that earlier tests of this process have freed
    kept, figures = [], Usage()
    model = torch.nn.Linear(64, 512)
    growth = []
    for _ in range(SKIPPED + STEPS + 3):
        kept.extend(
            model(torch.ones(1000, 64)).sigmoid().sum() for _ in range(4)
        )  # each graph holds 2 MB and its input
        growth.append(figures.read().get("rss_growth_bytes"))
    least = 4 * 1000 * 512 * 4
    assert least < growth[-1] < 3 * least


def test_a_machine_that_tells_nothing_has_no_columns(monkeypatch, tmp_path):
    monkeypatch.setattr(usage, "STATM", tmp_path / "none")
    assert set(Usage().read()) == {"cpu_percent"}


class Cuda:
    """torch.cuda as a device of 100 MiB of which a little more is taken each time."""

    def __init__(self):
        self.taken, self.peak_reset = 0, 0

    def is_initialized(self):
        return True

    def get_device_properties(self):
        return SimpleNamespace(uuid="5f3a")

    def memory_allocated(self):
        self.taken += 2 * MIB
        return self.taken

    def max_memory_allocated(self):
        return 60 * MIB

    def reset_peak_memory_stats(self):
        self.peak_reset += 1


def test_a_gpu_adds_its_figures(monkeypatch):
    cuda = Cuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(nvml, "percent", lambda uuid: 87.0 if uuid == "5f3a" else None)
    figures = Usage()
    read = [figures.read() for _ in range(SKIPPED + STEPS + 1)]
    assert (read[0]["gpu_percent"], read[0]["gpu_memory_bytes"]) == (87, 2 * MIB)
    assert read[0]["gpu_memory_peak_bytes"] == 60 * MIB and cuda.peak_reset == len(read)
    assert read[-1]["gpu_memory_growth_bytes"] == 2 * MIB and set(read[-1]) <= USAGE


@pytest.mark.parametrize(("gpus", "fraction"), [(0.25, 0.25), (0.5, 0.5), (1, 1.0), (2, 1.0)])
def test_a_share_is_the_cap_and_a_whole_device_lifts_it(monkeypatch, gpus, fraction):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", asked.append)
    hold_to_share(gpus)
    assert asked == [fraction]


@pytest.mark.cuda
@needs_cuda
def test_a_share_holds_on_a_device():
    quarter = torch.cuda.get_device_properties().total_memory // 4
    hold_to_share(0.25)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(quarter + 64 * MIB, dtype=torch.uint8, device="cuda")
    hold_to_share(1)
    assert torch.empty(quarter + 64 * MIB, dtype=torch.uint8, device="cuda").numel()


@pytest.mark.cuda
@needs_cuda
def test_the_figures_of_a_device():
    tensor = torch.ones(32 * MIB, dtype=torch.uint8, device="cuda")
    read = Usage().read()
    assert read["gpu_memory_peak_bytes"] >= read["gpu_memory_bytes"] >= tensor.numel()
    assert 0 <= read.get("gpu_percent", 0) <= 100
