"""Notes when a Python process imports certain modules and calls certain functions: `benchmarks.startup --timeline`.

Python imports a module of this name by itself in every process that finds it on PYTHONPATH. Each span is a line
`pid, begin, end, name` of `<TUNER_TRACE>/<pid>`, in unix seconds.
"""

import functools
import importlib.util
import os
import sys
import time

MODULES = (
    "ray", "ray.tune", "torch", "torch._dynamo", "torchvision", "wandb", "hyperopt", "tuner.tuning.session",
    "tuner.tuning.assembly", "tuner.tuning.driver",
)  # fmt: skip
FUNCTIONS = {
    "ray": ("init", "shutdown"),
    "tuner.space": ("find_space",),
    "tuner.tuning.session": ("load_data", "open_journal"),
    "tuner.tuning.driver": ("search",),
    "tuner.tuning.answer.conclusion": ("conclude", "evaluate"),
    "tuner.report": ("write_report",),
    "tuner.tuning.trial": ("train_task",),
    "tuner.tuning.output.wandb_mirror": ("wait_for",),
}


def note(name: str, begin: float) -> None:
    with open(os.path.join(os.environ["TUNER_TRACE"], str(os.getpid())), "a") as file:
        file.write(f"{os.getpid()}\t{begin}\t{time.time()}\t{name}\n")


def noted(name, function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        begin = time.time()
        try:
            return function(*args, **kwargs)
        finally:
            note(name, begin)

    return call


class Watch:
    """A finder that times the execution of the modules it is asked about, and leaves the finding to the others."""

    def find_spec(self, name, path=None, target=None):
        if name not in MODULES and name not in FUNCTIONS:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            begin = time.time()
            execute(module)
            if name in MODULES:
                note(f"import {name}", begin)
            for each in FUNCTIONS.get(name, ()):
                setattr(module, each, noted(each if "." in name else f"{name}.{each}", getattr(module, each)))

        spec.loader.exec_module = exec_module
        return spec


if "TUNER_TRACE" in os.environ:
    sys.meta_path.insert(0, Watch())
