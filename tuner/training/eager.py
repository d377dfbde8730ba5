"""Spares eager training the import of torch's compiler: 1.1 s in each worker, and again where the answer is tested.

Every optimiser of torch imports `torch._dynamo` at its first step (torch 2.9 to 2.15), though it needs two functions of
it, which do nothing where nothing is compiled. `import_compiler_late` puts a module with these two in its place. Any
other attribute or submodule that somebody asks for loads the compiler itself.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"


def import_compiler_late() -> None:
    """Makes `import torch._dynamo` cheap until something needs the compiler; does nothing where it is loaded."""
    if NAME not in sys.modules:
        import torch

        sys.modules[NAME] = torch._dynamo = StandIn(NAME)


class StandIn(ModuleType):
    """What eager training uses of `torch._dynamo`; replaced by the module itself when anything else is used."""

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """Ends a compiled graph; eager code has none."""

    @staticmethod
    def disable(fn: Callable[..., Any], recursive: bool = True, **options: Any) -> Callable[..., Any]:
        """Keeps a function out of compiled graphs; eager code has none."""
        return fn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # who goes through all modules needs no compiler
            raise AttributeError(name)
        return getattr(compiler(), name)


def compiler() -> ModuleType:
    """The real `torch._dynamo`, loaded if it is not yet."""
    if isinstance(sys.modules.get(NAME), StandIn):
        del sys.modules[NAME]
    return importlib.import_module(NAME)
