"""Reads the state of NVIDIA GPUs from their driver (NVML)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND = 9, 12  # NVML's results on a machine without NVIDIA's driver


@dataclass(frozen=True)
class Device:
    """The current state of one GPU; values that the driver does not report (with MIG, `percent`) are None or empty."""

    index: int
    name: str
    percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    celsius: float | None = None
    watts: float | None = None
    pids: tuple[int, ...] = ()  # the processes that compute on the GPU


def devices() -> list[Device]:
    """Every NVIDIA GPU of this machine, independent of CUDA_VISIBLE_DEVICES; empty if no driver answers."""
    import pynvml

    if not if_supported(lambda: pynvml.nvmlInit() or True):
        return []
    try:
        return [_device(pynvml, index) for index in range(if_supported(pynvml.nvmlDeviceGetCount) or 0)]
    finally:
        pynvml.nvmlShutdown()


def trouble() -> str:
    """Why NVIDIA's driver does not answer although it is installed; empty if it answers, or if there is none."""
    import pynvml

    try:
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
        return ""
    except pynvml.NVMLError as error:
        absent = getattr(error, "value", LIBRARY_NOT_FOUND) in (LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED)
        return "" if absent else f"NVIDIA's driver does not answer: {error}".rstrip(".")


def percent(uuid: str) -> float | None:
    """The percentage of the last second (or less) in which any process ran a kernel on a GPU; None if unknown.

    `uuid` is the GPU's, without the leading `GPU-`.
    """
    import pynvml

    def ask() -> float:
        pynvml.nvmlInit()  # NVML stays open in this process, so that later calls are fast
        return float(pynvml.nvmlDeviceGetUtilizationRates(pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")).gpu)

    return if_supported(ask)


def if_supported(ask: Callable[[], T]) -> T | None:
    """The result of NVML calls; None if a call fails, as it does on a lost GPU or a GPU that does not support it."""
    import pynvml

    try:
        return ask()
    except pynvml.NVMLError:
        return None


def _device(driver: Any, index: int) -> Device:
    try:
        handle = driver.nvmlDeviceGetHandleByIndex(index)
        name = driver.nvmlDeviceGetName(handle)
    except driver.NVMLError as error:  # a lost GPU, or one that this user may not read; the others are still shown
        return Device(index, f"cannot be read ({error})")
    memory = if_supported(lambda: driver.nvmlDeviceGetMemoryInfo(handle))
    milliwatts = if_supported(lambda: driver.nvmlDeviceGetPowerUsage(handle))
    running = if_supported(lambda: driver.nvmlDeviceGetComputeRunningProcesses(handle))
    return Device(
        index=index,
        name=name,
        percent=if_supported(lambda: float(driver.nvmlDeviceGetUtilizationRates(handle).gpu)),
        memory_used_bytes=memory and memory.used,
        memory_total_bytes=memory and memory.total,
        celsius=if_supported(lambda: float(driver.nvmlDeviceGetTemperature(handle, driver.NVML_TEMPERATURE_GPU))),
        watts=milliwatts and milliwatts / 1000,
        pids=tuple(process.pid for process in running or ()),
    )
