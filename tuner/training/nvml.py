"""NVIDIA devices as their driver tells of them (NVML); an empty list where there is no driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Device:
    """One device now. A field is None where the driver does not tell it, as of a MIG slice; `pids` of what computes."""

    index: int
    name: str
    percent: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    celsius: float | None
    watts: float | None
    pids: tuple[int, ...]


def devices() -> list[Device]:
    """Every device of this machine, whatever CUDA_VISIBLE_DEVICES says."""
    with nvml() as driver:
        if driver is None:
            return []
        return [_device(driver, index) for index in range(driver.nvmlDeviceGetCount())]


class Busy:
    """How busy one device is, asked often: the driver stays open.

    Args:
        uuid: the device's, as torch and NVML both have it, without the leading `GPU-`.
    """

    def __init__(self, uuid: str) -> None:
        self._driver = _opened()
        self._handle = None
        if self._driver is not None:
            self._handle = told(lambda: self._driver.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))

    def percent(self) -> float | None:
        """0 to 100: the share of the last sampling period (up to 1 s) with a kernel of any process; None = not told."""
        if self._handle is None:
            return None
        return told(lambda: float(self._driver.nvmlDeviceGetUtilizationRates(self._handle).gpu))


@contextmanager
def nvml() -> Iterator[Any]:
    """The library between its init and its shutdown; None where there is no driver."""
    driver = _opened()
    try:
        yield driver
    finally:
        if driver is not None:
            driver.nvmlShutdown()


def _opened() -> Any:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def told(ask: Callable[[], T]) -> T | None:
    """The answer, or None where this device or driver has none."""
    import pynvml

    try:
        return ask()
    except pynvml.NVMLError:
        return None


def _device(driver: Any, index: int) -> Device:
    handle = driver.nvmlDeviceGetHandleByIndex(index)
    memory = told(lambda: driver.nvmlDeviceGetMemoryInfo(handle))
    milliwatts = told(lambda: driver.nvmlDeviceGetPowerUsage(handle))
    running = told(lambda: driver.nvmlDeviceGetComputeRunningProcesses(handle))
    return Device(
        index=index,
        name=driver.nvmlDeviceGetName(handle),
        percent=told(lambda: float(driver.nvmlDeviceGetUtilizationRates(handle).gpu)),
        memory_used_bytes=memory and memory.used,
        memory_total_bytes=memory and memory.total,
        celsius=told(lambda: float(driver.nvmlDeviceGetTemperature(handle, driver.NVML_TEMPERATURE_GPU))),
        watts=milliwatts and milliwatts / 1000,
        pids=tuple(process.pid for process in running or ()),
    )
