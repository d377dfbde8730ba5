"""`torch.compile`, as an option of a task."""

from __future__ import annotations

import torch
from torch import nn


def compiled(network: nn.Module, device: torch.device) -> nn.Module:
    """The network compiled at its first batch; it shares the parameters, and their names in the model stay.

    Raises:
        RuntimeError: no C++ compiler is there, which on a CPU torch needs. Its own error is a page long and comes
            with the first batch.
    """
    import torch._inductor.config
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    if device.type == "cpu":
        try:
            get_cpp_compiler()
        except InvalidCxxCompiler:
            raise RuntimeError(
                "Task.compile needs a C++ compiler on a CPU: install g++, or leave compile out"
            ) from None
    # A trial's CPUs are few, and processes that compile would stay beside it.
    torch._inductor.config.compile_threads = 1
    network_: nn.Module = torch.compile(network)  # type: ignore[assignment]
    return network_
