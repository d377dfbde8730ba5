"""Applies `torch.compile` to a network, as `Task.compile` requests."""

from __future__ import annotations

import torch
from torch import nn


def compiled(network: nn.Module, device: torch.device) -> nn.Module:
    """Returns a wrapper that torch compiles at its first batch; the wrapper shares the network's parameters.

    The names of the parameters in the original network do not change.

    Raises:
        RuntimeError: torch needs a C++ compiler on a CPU, and there is none. Torch's own error is a page long and
            appears only at the first batch.
    """
    import torch._inductor.config
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    if device.type == "cpu":
        try:
            get_cpp_compiler()
        except InvalidCxxCompiler:
            raise RuntimeError(
                "Task.compile needs a C++ compiler on a CPU: install g++, or leave out compile=True"
            ) from None
    # Compiles in this process: a trial has few CPUs, and separate compiler processes would stay alive beside it.
    torch._inductor.config.compile_threads = 1
    network_: nn.Module = torch.compile(network)  # type: ignore[assignment]
    return network_
