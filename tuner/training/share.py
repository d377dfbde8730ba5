"""A trial's share of a GPU's memory."""

from __future__ import annotations


def hold_to_share(gpus: float) -> None:
    """Caps this process's CUDA memory on the current device at that share of it; 1 and above lift the cap.

    Beyond it an allocation fails with torch.OutOfMemoryError, although the device may have more: that belongs to the
    other trials. The cap is torch's allocator's; the CUDA context, 0.3 to 0.6 GB a process, comes on top.

    Args:
        gpus: of this process, above 0.
    """
    import torch

    torch.cuda.set_per_process_memory_fraction(min(1.0, gpus))
