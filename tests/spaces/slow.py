"""The tiny space at human speed: an epoch takes half a second, so that a kill finds it in the middle of one."""

import dataclasses
import importlib.util
import time
from pathlib import Path

spec = importlib.util.spec_from_file_location("tiny", Path(__file__).with_name("tiny.py"))
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)


def unhurried(inputs):
    time.sleep(0.5 * len(inputs) / 160)
    return inputs


space = dataclasses.replace(tiny.space, task=dataclasses.replace(tiny.space.task, augment=unhurried))
