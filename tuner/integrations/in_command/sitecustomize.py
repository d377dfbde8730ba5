"""Connects each Python process of a command's trial to the search; Python imports this file when it starts.

PYTHONPATH has this folder. Processes of other environments, without tuner, can import `tuner_trial`.
"""

import contextlib
import importlib.util
import os
import sys
from importlib.machinery import PathFinder

HERE = os.path.dirname(os.path.abspath(__file__))


def run_hidden() -> None:
    """Run the environment's own sitecustomize, which this one hides."""
    paths = [os.path.abspath(each) for each in sys.path]
    spec = PathFinder.find_spec("sitecustomize", paths[paths.index(HERE) + 1 :] if HERE in paths else [])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def connect() -> None:
    """Let `tuner.integrations` wait for the libraries that report, if this environment has this tuner."""
    spec = importlib.util.find_spec("tuner")  # PyPI's package of this name is another one
    if (
        spec is not None
        and spec.origin
        and os.path.dirname(os.path.abspath(spec.origin)) == os.path.dirname(os.path.dirname(HERE))
    ):
        from tuner.integrations import connected

        connected.install()


if "TUNER_TRIAL" in os.environ:  # a search that the command starts unsets it: its trials are others
    with contextlib.suppress(ImportError):  # an environment that lacks what tuner needs
        connect()
run_hidden()
