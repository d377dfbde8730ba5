"""torch's compiler: compiles networks for `Task.compile`, and is not imported before code needs it.

Its import takes 1.1 s and 150 MB in each process. A torch optimizer imports `torch._dynamo` when it is built (torch
2.9 to 2.15), but in eager code uses only two functions of it, which do nothing there. torchvision imports one function
of `torch._dynamo.utils`, which it may never call. `import_compiler_late` replaces both modules by stand-ins with these
functions. Any other public attribute or submodule of a stand-in loads the real compiler.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import torch
from torch import nn

NAME, UTILS = "torch._dynamo", "torch._dynamo.utils"


def compiled(network: nn.Module, device: torch.device) -> nn.Module:
    """Wraps a network; torch compiles the wrapper at its first batch. The network's parameters and names stay.

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
    wrapped: nn.Module = torch.compile(network)  # type: ignore[assignment]
    return wrapped


def import_compiler_late() -> None:
    """Makes `import torch._dynamo` cheap until code needs the compiler; does nothing if it is already loaded."""
    if NAME not in sys.modules:
        sys.modules[NAME] = torch._dynamo = StandIn(NAME)
        sys.modules[UTILS] = StandIn(UTILS)


def is_compile_supported(device_type: Any) -> Any:
    """Asks the real compiler whether it can compile for a device."""
    return real(UTILS).is_compile_supported(device_type)


is_compile_supported._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as the compiler's own is marked


class StandIn(ModuleType):
    """Has the functions that eager code asks for; any other public name loads the real module."""

    graph_break = staticmethod(lambda *arguments, **options: None)  # eager code has no compiled graph to end
    is_compile_supported = staticmethod(is_compile_supported)

    @staticmethod
    def disable(function: Any = None, *arguments: Any, **options: Any) -> Any:
        """Returns the function unchanged: eager code has no compiled graph to exclude it from."""
        return function or real(NAME).disable(function, *arguments, **options)

    def __getattr__(self, name: str) -> Any:
        package = self.__name__ == NAME and name == "__path__"  # what the import of a submodule asks for
        if name.startswith("__") and not package:  # code that only inspects modules needs no compiler
            raise AttributeError(name)
        return getattr(real(self.__name__), name)


def real(name: str) -> ModuleType:
    """Returns the real module of a stand-in's name; imports the compiler if needed."""
    for stand_in in (NAME, UTILS):
        if isinstance(sys.modules.get(stand_in), StandIn):
            del sys.modules[stand_in]
    return importlib.import_module(name)
