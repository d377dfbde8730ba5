"""Machines with pretended GPUs: a stub of NVML answers for them, so that Ray and tuner find them; and a training."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pretended
import pytest
import torch
from torch import nn

from tuner.space import Task
from tuner.training.data import Arrays, Splits
from tuner.training.loop import Training
from tuner.training.task import TrialSpec

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MIB = 1 << 20
LOST, NO_PERMISSION, MISMATCH = 15, 4, 18  # NVML's results


def built(folder):
    """Compiles the stub into a folder; skips the test without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the stub of NVML needs a C compiler: there is no cc")
    library = Path(folder) / "libnvidia-ml.so.1"
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror"]
    subprocess.run([compiler, *options, "-o", library, HERE / "nvml.c"], check=True)
    return library


@dataclass
class Gpu:
    """What NVML says of a device; a number below 0 is not supported by it."""

    result: int = 0
    name: str = "NVIDIA H200"
    percent: int = 97
    celsius: int = 54
    milliwatts: int = 412345
    pids: tuple[int, ...] = ()


@dataclass
class Machine:
    """A machine's GPUs, and the environment of a process on it."""

    folder: Path
    library: Path
    gpus: list[Gpu]
    init: int = 0
    total_bytes: int = 64 * MIB
    more: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        pretended.make(self.folder, len(self.gpus), self.total_bytes)
        lines = [str(self.init)]
        for index, gpu in enumerate(self.gpus):
            numbers = 1 << 30, 1 << 28, gpu.percent, gpu.celsius, gpu.milliwatts
            pids = ",".join(map(str, gpu.pids)) or "-"
            lines.append("\t".join(map(str, (gpu.result, gpu.name, f"GPU-pretended-{index}", *numbers, pids))))
        (self.folder / "nvml").write_text("\n".join(lines) + "\n")

    @property
    def env(self):
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("RAY_", "CUDA_VISIBLE")) or n == "RAY_TMPDIR"}
        paths = [str(HERE / "site"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        return {
            **kept,
            "LD_LIBRARY_PATH": f"{self.library.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            "NVML_ANSWERS": str(self.folder / "nvml"),
            "PRETENDED_GPUS": str(self.folder),
            "PYTHONPATH": ":".join(filter(None, paths)),
            **self.more,
        }

    def python(self, *words):
        """Runs Python on the machine to its end."""
        options = {"env": self.env, "cwd": self.folder, "capture_output": True, "text": True, "timeout": 240}
        return subprocess.run([sys.executable, *map(str, words)], **options)

    @property
    def log(self):
        """What the devices were asked to do, by all processes in order."""
        return pretended.log_of(self.folder)


def training(strategy="single", *, width=16, batch_size=16, device="cuda", num=51, gpus=2, **options):
    """A training of `num` random examples on some devices, real or pretended."""

    def arrays(num, seed):
        stream = np.random.default_rng(seed)
        return Arrays(stream.normal(size=(num, 6)).astype("float32"), stream.integers(0, 3, num))

    task = Task(
        data=lambda data_dir: None,
        model=lambda config: nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3)),
        optimizer=lambda parameters, config: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    )
    spec = TrialSpec({"batch_size": batch_size, "split_size": 5}, 3, 4, strategy=strategy, gpus=gpus, **options)
    return Training(task, Splits(arrays(num, 0), arrays(21, 1)), spec, device=device)
