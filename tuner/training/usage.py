"""What a trial uses of its machine, read once an epoch, and whether its memory grows. No import of torch: a function
that trains without it is not made to wait.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from tuner.training.nvml import Busy

STATM = Path("/proc/self/statm")
SKIPPED = 2  # epochs in which caches fill, libraries load and CUDA chooses its kernels
STEPS = 5  # epochs that are looked at together
LEAST_BYTES = 1 << 20  # an epoch


class Usage:
    """Reads the figures of this process and, once CUDA has been used, of its current device."""

    def __init__(self) -> None:
        self._cpu_s, self._wall_s = time.process_time(), time.perf_counter()
        self._resident, self._allocated = Growth(), Growth()
        self._busy: Busy | None = None

    def read(self) -> dict[str, float]:
        """The figures since the last call; what the machine does not tell is left out.

        Returns:
            `cpu_percent` (100 = one core), `rss_bytes`; on a GPU `gpu_percent` (of the device, all its processes),
            `gpu_memory_bytes` and `gpu_memory_peak_bytes` (torch's in this process); where memory grows,
            `rss_growth_bytes` and `gpu_memory_growth_bytes` (an epoch).
        """
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        figures: dict[str, float] = {"cpu_percent": round(100 * (cpu_s - self._cpu_s) / (wall_s - self._wall_s), 1)}
        self._cpu_s, self._wall_s = cpu_s, wall_s
        if (resident := resident_bytes()) is not None:
            figures |= {"rss_bytes": resident, **self._resident.named("rss_growth_bytes", resident)}
        return figures | self._of_the_gpu()

    def _of_the_gpu(self) -> dict[str, float]:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return {}
        if self._busy is None:
            self._busy = Busy(str(torch.cuda.get_device_properties().uuid))
        percent, allocated = self._busy.percent(), torch.cuda.memory_allocated()
        figures = {} if percent is None else {"gpu_percent": percent}
        figures |= {"gpu_memory_bytes": allocated, "gpu_memory_peak_bytes": torch.cuda.max_memory_allocated()}
        torch.cuda.reset_peak_memory_stats()
        return figures | self._allocated.named("gpu_memory_growth_bytes", allocated)


def of_workers(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The figures of a trial in several processes: percentages of GPUs as their mean, all else added up."""
    names = list(dict.fromkeys(name for each in figures for name in each))
    totals = {name: sum(each.get(name, 0) for each in figures) for name in names}
    return {name: total / len(figures) if name == "gpu_percent" else total for name, total in totals.items()}


class Growth:
    """Tells growth from warm-up: the first epochs aside, the last `STEPS` never fell and, without the largest of them,
    grew by `LEAST_BYTES` an epoch.

    LeNet on CIFAR-10 takes 0 to 20 KiB in an epoch, and 2 to 7 MB once where its heap is extended, mostly in the first
    three of 14 epochs. The same with a list that keeps every loss grows by 2.5 to 5 MB an epoch, but in jumps of 3 to
    12 MB, one in two or three epochs: to ask for growth in every epoch would miss it, to ask for the mean alone would
    tell of a heap.
    """

    def __init__(self) -> None:
        self._readings: list[int] = []

    def add(self, reading: int) -> int | None:
        """Bytes an epoch over the last `STEPS`, where the readings so far are growth; else None."""
        self._readings.append(reading)
        window = self._readings[SKIPPED:][-STEPS - 1 :]
        steps = sorted(after - before for before, after in pairwise(window))
        if len(steps) < STEPS or steps[0] < 0 or sum(steps[:-1]) < LEAST_BYTES * (STEPS - 1):
            return None
        return sum(steps) // STEPS

    def named(self, name: str, reading: int) -> dict[str, float]:
        """The growth under its name, or nothing."""
        grown = self.add(reading)
        return {} if grown is None else {name: grown}


def resident_bytes() -> int | None:
    """This process's memory that is in RAM; None where there is no /proc."""
    try:
        return int(STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
