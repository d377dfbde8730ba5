"""Delays the import of torch's compiler: it takes 1.1 s in each process, and eager training does not need it.

A torch optimizer imports `torch._dynamo` when it is built (torch 2.9 to 2.15). It uses only two functions of it, which
do nothing in eager code. `torchvision` imports one function of `torch._dynamo.utils`, which it may never call.
`import_compiler_late` replaces both modules by stand-ins with these functions. Any other submodule or attribute of a
stand-in loads the real compiler, except for names such as `__doc__`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

NAME, UTILS = "torch._dynamo", "torch._dynamo.utils"


def import_compiler_late() -> None:
    """Makes `import torch._dynamo` cheap until code needs the compiler; does nothing if it is already loaded."""
    if NAME not in sys.modules:
        import torch

        sys.modules[NAME] = torch._dynamo = StandIn(NAME)
        sys.modules[UTILS] = Utils(UTILS)


class StandIn(ModuleType):
    """Has the two functions of `torch._dynamo` that eager training uses; other public names load the real module."""

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """Does nothing: eager code has no compiled graph to end."""

    @staticmethod
    def disable(fn: Callable[..., Any], recursive: bool = True, **options: Any) -> Callable[..., Any]:
        """Returns the function unchanged: eager code has no compiled graph to exclude it from."""
        return fn

    def __getattr__(self, name: str) -> Any:
        package = self.__name__ == NAME and name == "__path__"  # what the import of a submodule asks for
        if name.startswith("__") and not package:  # code that only inspects modules needs no compiler
            raise AttributeError(name)
        return getattr(real(self.__name__), name)


def is_compile_supported(device_type: Any) -> Any:
    """Asks the real compiler whether it can compile for a device."""
    return real(UTILS).is_compile_supported(device_type)


is_compile_supported._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as the compiler's own is marked


class Utils(StandIn):
    """Has the function of `torch._dynamo.utils` that torchvision imports; other public names load the real module."""

    is_compile_supported = staticmethod(is_compile_supported)


def real(name: str) -> ModuleType:
    """Returns the real module of a stand-in's name; imports the compiler if needed."""
    for stand_in in (NAME, UTILS):
        if isinstance(sys.modules.get(stand_in), StandIn):
            del sys.modules[stand_in]
    return importlib.import_module(name)
