"""torch's compiler: compiles networks for `Task.compile`, and is not imported before code needs it."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import torch
from torch import nn

NAME = "torch._dynamo"


def compiled(network: nn.Module, device: torch.device) -> nn.Module:
    """Returns a wrapper that torch compiles at its first batch; it has the network's parameters, as `_orig_mod.NAME`.

    Raises RuntimeError for a CPU without a C++ compiler; torch itself would raise an error only at the first batch.
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
    wrapped: nn.Module = torch.compile(network)  # type: ignore[assignment]
    return wrapped


def import_compiler_late() -> None:
    """Puts a stand-in for `torch._dynamo` in its place, unless the module is already loaded.

    Importing the module takes 1.1 s and 150 MB per process. Every torch optimizer imports it (torch 2.9 to 2.15), but
    uses only two of its functions in eager code, where they do nothing.
    """
    if NAME not in sys.modules:
        sys.modules[NAME] = torch._dynamo = StandIn(NAME)


class StandIn(ModuleType):
    """Has the functions that an optimizer uses; other names, except most that begin with `__`, load the real module."""

    graph_break = staticmethod(lambda: None)

    @staticmethod
    def disable(function: Any = None, *arguments: Any, **options: Any) -> Any:
        return function or (lambda function: function)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # code that only inspects modules needs no compiler
            raise AttributeError(name)
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]
        return getattr(importlib.import_module(NAME), name)
