"""Delays the import of torch's compiler: it takes 1.1 s in each process, and eager training does not need it.

A torch optimizer imports `torch._dynamo` when it is built (torch 2.9 to 2.15). It uses only two functions of it, which
do nothing in eager code. `import_compiler_late` replaces the module by a stand-in with these two functions. Any other
submodule or attribute of the stand-in loads the real compiler, except for names such as `__doc__`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"


def import_compiler_late() -> None:
    """Makes `import torch._dynamo` cheap until code needs the compiler; does nothing if it is already loaded."""
    if NAME not in sys.modules:
        import torch

        sys.modules[NAME] = torch._dynamo = StandIn(NAME)


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
        if name.startswith("__") and name != "__path__":  # code that only inspects modules needs no compiler
            raise AttributeError(name)
        return getattr(compiler(), name)


def compiler() -> ModuleType:
    """Returns the real `torch._dynamo`; imports it if needed."""
    if isinstance(sys.modules.get(NAME), StandIn):
        del sys.modules[NAME]
    return importlib.import_module(NAME)
