"""Measures the CPU, GPU and memory use of a trial once per epoch, without importing torch."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from tuner.training.devices import accelerator, nvml

STATM = Path("/proc/self/statm")
SKIPPED = 2  # first readings that `Growth` ignores, because caches fill, libraries load and CUDA chooses its kernels
STEPS = 5  # number of last epochs whose growth `Growth` considers
NEEDED = SKIPPED + STEPS + 1  # epochs that a trial trains before `Growth` can report anything
LEAST_BYTES = 1 << 20  # minimum growth in bytes per epoch that is reported


class Usage:
    """Measures this process and, once it has used CUDA, its current GPU."""

    def __init__(self) -> None:
        self._cpu_s, self._wall_s = time.process_time(), time.perf_counter()
        self._resident, self._allocated = Growth("rss_growth_bytes"), Growth("gpu_memory_growth_bytes")

    def read(self) -> dict[str, float]:
        """The resource use now and since the last call; figures that the machine does not report are left out.

        They are `cpu_percent` (100 = one core) and `rss_bytes`; on a GPU `gpu_percent` (of all its processes),
        `gpu_memory_bytes` (torch's allocations) and their peak, `gpu_memory_peak_bytes`; and those of `Growth`.
        """
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        figures: dict[str, float] = {"cpu_percent": round(100 * (cpu_s - self._cpu_s) / (wall_s - self._wall_s), 1)}
        self._cpu_s, self._wall_s = cpu_s, wall_s
        if STATM.exists():  # Linux
            resident = int(STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            figures |= {"rss_bytes": resident, **self._resident.after(resident)}
        if not accelerator.here.in_use():
            return figures
        if (percent := nvml.percent(accelerator.here.uuid())) is not None:
            figures["gpu_percent"] = percent
        allocated, peak = accelerator.here.memory_bytes()
        figures |= {"gpu_memory_bytes": allocated, "gpu_memory_peak_bytes": peak}
        return figures | self._allocated.after(allocated)


def of_workers(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Combines the figures of a trial's processes: averages `gpu_percent`, and adds up all other figures."""
    names = list(dict.fromkeys(name for each in figures for name in each))
    totals = {name: sum(each.get(name, 0) for each in figures) for name in names}
    return {name: total / len(figures) if name == "gpu_percent" else total for name, total in totals.items()}


class Growth:
    """Detects memory that keeps growing: in `STEPS` epochs it never fell, and its mean step was `LEAST_BYTES` or more.

    This mean leaves out the largest step, because LeNet on CIFAR-10 grows by 0 to 20 KiB per epoch, and once by 2 to 7
    MB. With a list that keeps every loss, LeNet grows by 3 to 12 MB, but only every two or three epochs.
    """

    def __init__(self, name: str) -> None:
        self._name, self._readings = name, list[int]()

    def after(self, reading: int) -> dict[str, float]:
        """Adds an epoch's memory in bytes; returns `{name: mean growth per epoch}` if it keeps growing, else `{}`."""
        self._readings.append(reading)
        window = self._readings[SKIPPED:][-STEPS - 1 :]
        steps = sorted(after - before for before, after in pairwise(window))
        if len(steps) < STEPS or steps[0] < 0 or sum(steps[:-1]) < LEAST_BYTES * (STEPS - 1):
            return {}
        return {self._name: sum(steps) // STEPS}
