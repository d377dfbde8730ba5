"""Prints the head of a report: the GPUs of this machine and the versions; or why torch can use none, and fails."""

import os
import platform
import sys
import time

import torch

from tuner.engine.local.alone import num_gpus
from tuner.training.devices import accelerator
from tuner.training.devices.nvml import devices

try:
    accelerator.here.check()
except RuntimeError as error:
    print(str(error).removeprefix("the trial has a GPU from Ray, but "))
    sys.exit(1)
names = sorted({device.name for device in devices()}) or ["no name: NVML does not answer"]
print(f"# {num_gpus()} x {', '.join(names)}\n")
versions = f"torch {torch.__version__}, Python {platform.python_version()}"
print(f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, {versions}, {len(os.sched_getaffinity(0))} CPUs")
