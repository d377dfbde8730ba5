"""Gives each Python process of a search pretended GPUs, if the environment names their folder; see `pretended.py`."""

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

SEAM = "tuner.training.devices.accelerator"


class AfterTheSeam:
    """Installs the pretended devices once the module with the seam is imported."""

    def find_spec(self, name, path=None, target=None):
        if name != SEAM:
            return None
        spec = PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            if "pretended" in sys.modules:  # a test's own process: only the processes that it starts have GPUs
                return
            sys.path.append(str(Path(__file__).parents[1]))
            import pretended

            module.here = pretended.Devices(os.environ["PRETENDED_GPUS"])

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("PRETENDED_GPUS"):
    sys.meta_path.insert(0, AfterTheSeam())
