"""Limits a process to its trial's share of a GPU's memory."""

from __future__ import annotations


def hold_to_share(gpus: float) -> None:
    """Limits this process to a share of the current GPU's memory; a share of 1 or more removes the limit.

    Above the limit an allocation raises torch.OutOfMemoryError, because the other memory belongs to other trials. The
    limit applies to torch's allocator; the CUDA context takes another 0.3 to 0.6 GB per process.

    Args:
        gpus: the number of GPUs of this process, above 0; may be a fraction.
    """
    import torch

    torch.cuda.set_per_process_memory_fraction(min(1.0, gpus))
