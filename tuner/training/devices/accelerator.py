"""The GPUs of this process: training asks torch about them through one object, `here`, which tests replace.

NVIDIA's GPUs and AMD's (a torch built for ROCm) have the same interface in torch, the device type `cuda`. Apple's (MPS)
and Intel's do not. Only methods that need torch import it, because a user's function may do without torch.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

from tuner.errors import OUT_OF_MEMORY
from tuner.errors.gate import text_of

if TYPE_CHECKING:
    import torch
    from torch import nn

# Text in an error -> its usual cause; the first match counts. After such an error, the process may be unable to use its
# GPU. HIP is AMD's counterpart of CUDA, and HSA is the runtime below HIP.
POISONED = {
    "device-side assert triggered": "a label or an index out of range: labels go from 0 to the model's outputs - 1",
    "illegal memory access": "an index out of range or a tensor of a wrong shape in a custom kernel",
    "CUDNN_STATUS_NOT_INITIALIZED": "no memory left for cuDNN's handle: fewer trials on this GPU, or smaller ones",
    "launch failure": "a kernel that read outside its tensors, or a faulty GPU",
    "CUDNN_STATUS": "a shape that cuDNN does not take, or no memory for its workspace",
    "CUBLAS_STATUS": "an index out of range before this call, or a wrong shape",
    "CUDA error": "an error of an earlier call, reported late: CUDA_LAUNCH_BLOCKING=1 shows which",
    "HIP error": "an error of an earlier call, reported late: AMD_SERIALIZE_KERNEL=3 shows which",
    "HSA_STATUS_ERROR": "a kernel that read outside its tensors, or a faulty GPU",
}


class Accelerator:
    """torch's CUDA devices as this process sees them: Ray shows it only the trial's GPUs, from index 0."""

    def check(self) -> None:
        """Raises a RuntimeError if torch can use no GPU although the trial reserves one; it says why and what to do."""
        import torch

        if torch.cuda.is_available():
            return
        built = "CUDA" if torch.version.cuda else "ROCm" if torch.version.hip else ""
        why = f"torch {torch.__version__} is built for CPUs only; install a torch for CUDA or ROCm"
        if built:
            why = f"torch {torch.__version__} is built for {built} and finds no GPU with a suitable driver"
            try:
                torch.cuda.init()  # type: ignore[no-untyped-call]
            except RuntimeError as error:
                why += f" ({str(error).partition('. ')[0].partition(chr(10))[0]})"
            why += "; install the driver"
        raise RuntimeError(f"the trial has a GPU from Ray, but {why}, or give --gpus-per-trial 0")

    def devices(self, first: str, num_devices: int) -> list[torch.device]:
        """A process's devices: `first` if it uses one device, else GPUs from index 0, or the CPU several times."""
        import torch

        device = torch.device(first)
        if device.type not in ("cpu", "cuda"):
            raise ValueError(
                f"device {first}: only cpu and cuda (NVIDIA, and AMD with a torch built for ROCm) are supported; "
                "use --gpus-per-trial 0"
            )
        several = device.type == "cuda" and num_devices > 1
        return [torch.device("cuda", index) if several else device for index in range(num_devices)]

    def use(self, device: str) -> None:
        """Makes a GPU the current one of this process, or does nothing for the CPU; raises the errors of `check`."""
        import torch

        if torch.device(device).type == "cuda":
            self.check()
            torch.cuda.set_device(device)

    def backend(self, device: str) -> str:
        """The name of the process group's backend; with ROCm, `nccl` is AMD's RCCL."""
        return "nccl" if device.startswith("cuda") else "gloo"

    def generators(self, devices: list[torch.device]) -> list[torch.Generator]:
        import torch

        gpus = [device for device in devices if device.type == "cuda"]
        if gpus:
            torch.cuda.init()  # type: ignore[no-untyped-call]  # before this call, torch has no generators of GPUs
        indices = [torch.cuda.current_device() if gpu.index is None else gpu.index for gpu in gpus]
        return [torch.cuda.default_generators[index] for index in indices]

    def replicated(self, model: nn.Module, devices: list[torch.device]) -> nn.Module:
        from torch import nn

        return nn.DataParallel(model, device_ids=devices)

    def limit(self, share: float) -> None:
        """Limits torch in this process to a share of the current GPU's memory; raises the errors of `check`.

        The CUDA context takes another 0.8 GB per process (on an H200).
        """
        import torch

        self.check()
        torch.cuda.set_per_process_memory_fraction(min(1.0, share))

    def in_use(self) -> bool:
        """Whether this process has used a GPU; does not import torch."""
        torch: Any = sys.modules.get("torch")
        return torch is not None and bool(torch.cuda.is_initialized())

    def empty_cache(self) -> None:
        if self.in_use():
            sys.modules["torch"].cuda.empty_cache()

    def uuid(self) -> str:
        """The current GPU's UUID as NVML knows it, without the leading `GPU-`; empty if torch does not know it."""
        return str(getattr(sys.modules["torch"].cuda.get_device_properties(), "uuid", ""))

    def memory_bytes(self) -> tuple[int, int]:
        """Bytes that torch has allocated on the current GPU: now, and their peak since the last call of this method."""
        cuda = sys.modules["torch"].cuda
        now, peak = cuda.memory_allocated(), cuda.max_memory_allocated()
        cuda.reset_peak_memory_stats()
        return now, peak


here = Accelerator()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is a failed allocation, after which process and device still work."""
    if isinstance(error, MemoryError) or "OutOfMemoryError" in type(error).__name__:
        return True
    return isinstance(error, RuntimeError) and any(text in text_of(error) for text in OUT_OF_MEMORY)


def usual_cause(text: str) -> str | None:
    """The usual cause of an error after which a process may be unable to use its GPU; None for any other error."""
    return next((usual for mark, usual in POISONED.items() if mark in text), None)


def release() -> None:
    gc.collect()
    here.empty_cache()
