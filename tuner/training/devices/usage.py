"""Measures the CPU, GPU and memory use of a trial once per epoch, and limits the GPU memory that it may use.

Only `hold_to_share` imports torch, in `accelerator`: a function that trains without torch need not wait for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from tuner.training.devices import accelerator
from tuner.training.devices.nvml import Busy

STATM = Path("/proc/self/statm")
SKIPPED = 2  # first readings that `Growth` ignores: caches fill, libraries load, and CUDA chooses its kernels
STEPS = 5  # number of last epochs whose growth `Growth` considers
NEEDED = SKIPPED + STEPS + 1  # epochs that a trial trains before `Growth` can report anything
LEAST_BYTES = 1 << 20  # minimum growth per epoch for it to be reported


class Usage:
    """Measures this process and, once it has used CUDA, its current GPU."""

    def __init__(self) -> None:
        self._cpu_s, self._wall_s = time.process_time(), time.perf_counter()
        self._resident, self._allocated = Growth(), Growth()
        self._busy: Busy | None = None

    def read(self) -> dict[str, float]:
        """The resource use now and since the last call; figures that the machine does not report are left out.

        Returns:
            `cpu_percent` (100 = one core) since the last call, and `rss_bytes`. On a GPU also `gpu_percent` (all its
            processes), `gpu_memory_bytes` (torch's allocations in this process), and their peak since the last call,
            `gpu_memory_peak_bytes`. If memory keeps growing, also `rss_growth_bytes` and `gpu_memory_growth_bytes`.
        """
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        figures: dict[str, float] = {"cpu_percent": round(100 * (cpu_s - self._cpu_s) / (wall_s - self._wall_s), 1)}
        self._cpu_s, self._wall_s = cpu_s, wall_s
        if (resident := resident_bytes()) is not None:
            figures |= {"rss_bytes": resident, **self._resident.named("rss_growth_bytes", resident)}
        return figures | self._of_the_gpu()

    def _of_the_gpu(self) -> dict[str, float]:
        if not accelerator.here.in_use():
            return {}
        if self._busy is None:
            self._busy = Busy(accelerator.here.uuid())
        percent, (allocated, peak) = self._busy.percent(), accelerator.here.memory_bytes()
        figures = {} if percent is None else {"gpu_percent": percent}
        figures |= {"gpu_memory_bytes": allocated, "gpu_memory_peak_bytes": peak}
        return figures | self._allocated.named("gpu_memory_growth_bytes", allocated)


def of_workers(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Combines the figures of a trial's processes: averages `gpu_percent`, and adds up all other figures."""
    names = list(dict.fromkeys(name for each in figures for name in each))
    totals = {name: sum(each.get(name, 0) for each in figures) for name in names}
    return {name: total / len(figures) if name == "gpu_percent" else total for name, total in totals.items()}


class Growth:
    """Detects memory that keeps growing, and ignores warm-up.

    Memory keeps growing if it never fell in the last `STEPS` epochs after the warm-up, and if the mean step without
    the largest one is at least `LEAST_BYTES`.

    Measured: LeNet on CIFAR-10 grows by 0 to 20 KiB per epoch. Once, usually in the first 3 of 14 epochs, its heap is
    extended by 2 to 7 MB. With a list that keeps every loss it grows by 2.5 to 5 MB per epoch, but in jumps of 3 to
    12 MB every two or three epochs. A rule that requires growth in every epoch would miss this. A rule on the mean
    alone would also report the extended heap.
    """

    def __init__(self) -> None:
        self._readings: list[int] = []

    def add(self, reading: int) -> int | None:
        """Adds an epoch's memory reading; returns the mean growth in bytes per epoch over the last `STEPS` epochs.

        Returns None if the memory does not keep growing as the class defines it, or if there are too few readings.
        """
        self._readings.append(reading)
        window = self._readings[SKIPPED:][-STEPS - 1 :]
        steps = sorted(after - before for before, after in pairwise(window))
        if len(steps) < STEPS or steps[0] < 0 or sum(steps[:-1]) < LEAST_BYTES * (STEPS - 1):
            return None
        return sum(steps) // STEPS

    def named(self, name: str, reading: int) -> dict[str, float]:
        """Adds a memory reading; returns `{name: growth}` if the memory keeps growing, else an empty dictionary."""
        grown = self.add(reading)
        return {} if grown is None else {name: grown}


def resident_bytes() -> int | None:
    """The resident memory of this process in bytes; None on a system without /proc."""
    try:
        return int(STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def hold_to_share(gpus: float) -> None:
    """Limits this process to a share of the current GPU's memory; a share of 1 or more removes the limit.

    The limit applies to torch's allocator; the CUDA context takes another 0.3 to 0.6 GB per process.

    Args:
        gpus: the number of GPUs of this process, above 0; may be a fraction.

    Raises:
        RuntimeError: torch can use no GPU here.
    """
    accelerator.here.check()
    accelerator.here.limit(gpus)
