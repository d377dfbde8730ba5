"""Shows the live table in a notebook's cell, where it is updated in place."""

from __future__ import annotations

import importlib
import sys
from typing import Any


class Cell:
    """An output of the running notebook cell, whose text can be replaced."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str) -> None:
        """Shows a text, which replaces the previous one."""
        display: Any = importlib.import_module("IPython.display").display
        content = {"text/plain": text}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; False for IPython in a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")
