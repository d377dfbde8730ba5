"""Makes tables of the real learning curves in the package scan-bench: CLIP and language-model trainings.

pip download scan-bench --no-deps
python -m benchmarks.search_quality.scan_bench WHEEL FOLDER
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import statistics
import sys
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.search_quality import tables
from benchmarks.search_quality.simulate import Curves
from tuner.errors import RequestError

Line = dict[str, str]
CLIP, LLM = "scan_bench/vlm/data.csv", "scan_bench/llm/configs_intermediate_summary.csv"
MOST_BYTES = 1 << 28  # of an unpacked file
TOKENS = 1.6e9  # between two evaluations of a language model; a last one at the end may be nearer
RANGES = {  # parameters and their ranges in scan-bench; the ranges of the scales are those of the data
    "clip": {
        "lr": ("loguniform", 1e-5, 5e-2),
        "wd": ("loguniform", 1e-6, 2e-1),
        "warmup_fraction": ("uniform", 0.0, 0.75),
        "beta1": ("uniform", 0.9, 0.99),
        "beta2": ("uniform", 0.95, 0.999),
        "eps": ("loguniform", 1e-8, 1e-6),
    },
    "llm": {
        "lr": ("loguniform", 1e-5, 1e-2),
        "weight_decay": ("loguniform", 1e-3, 0.2),
        "beta1": ("uniform", 0.8, 0.99),
        "beta2": ("uniform", 0.9, 0.999),
        "cooldown_steps": ("uniform", 0.0, 0.3),
    },
}
SCALES = {
    "clip": {"total_samples_planned": "loguniform", "text_width": "choice", "vision_width": "choice"},
    "llm": {"n_tokens": "loguniform", "d_model": "choice", "n_layers": "randint", "n_heads": "choice"},
}


def clip(wheel: Path, out: Path, epochs: int = 6) -> Curves:
    """Writes the CLIP trainings that were planned for at least `epochs` epochs, each cut after that many.

    `val_loss`; seconds are those of the training's own machine. NaN from the epoch on in which a training diverged.
    """
    curves = []
    for lines in _groups(wheel, CLIP):
        if _number(lines[0], "total_epochs") < epochs:
            continue
        lines.sort(key=lambda line: _number(line, "epoch"))
        values, seconds = [], []
        for line in lines[:epochs]:
            diverged = line["epoch_diverged"] == "True"
            values.append(math.nan if diverged else _number(line, "val_loss"))
            seconds.append(_number(line, "train_duration(s)"))
        curves.append((lines[0], values, seconds))
    return _written(out, "clip", "val_loss", curves, epochs)


def llm(wheel: Path, out: Path, epochs: int = 4) -> Curves:
    """Writes the language-model trainings of at least `epochs` regular evaluations; an epoch is 1.6e9 tokens.

    `valid_loss`; a second is 1e15 floating-point operations.
    """
    curves = []
    for lines in _groups(wheel, LLM):
        lines.sort(key=lambda line: _number(line, "eval_step"))
        regular = [line for at, line in enumerate(lines, 1) if abs(_number(line, "tokens_so_far") / TOKENS - at) < 0.1]
        if len(regular) < epochs:
            continue
        operations = [0.0, *(_number(line, "flops_so_far") / 1e15 for line in regular[:epochs])]
        seconds = [after - before for before, after in zip(operations, operations[1:], strict=False)]
        curves.append((lines[0], [_number(line, "valid_loss") for line in regular[:epochs]], seconds))
    return _written(out, "llm", "valid_loss", curves, epochs)


def _groups(wheel: Path, name: str) -> Iterable[list[Line]]:
    """The lines of each training, in the file's order."""
    try:
        with zipfile.ZipFile(wheel) as package:
            if package.getinfo(name).file_size > MOST_BYTES:
                raise RequestError(f"{wheel}: {name} is larger than {MOST_BYTES >> 20} MiB; get the package again")
            text = package.read(name).decode()
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise RequestError(f"{wheel}: not a wheel of scan-bench: {error}; download it with pip") from None
    groups: dict[str, list[Line]] = defaultdict(list)
    for line in csv.DictReader(io.StringIO(text)):
        groups[line["config_id"]].append(line)
    return groups.values()


def _number(line: Line, column: str) -> float:
    return float(line[column]) if line[column] else math.nan


def _written(
    out: Path, family: str, metric: str, curves: list[tuple[Line, list[float], list[float]]], epochs: int
) -> Curves:
    """Writes a family's table. A curve that ended early takes NaN, and its mean time, for its later epochs."""
    kept = [curve for curve in curves if any(map(_positive, curve[2]))]
    space: dict[str, Any] = {
        name: {"type": kind, "low": low, "high": high} for name, (kind, low, high) in RANGES[family].items()
    }
    for name, kind in SCALES[family].items():
        found = sorted({_number(line, name) for line, *_ in kept})
        as_type: Callable[[float], float] = float if kind == "loguniform" else int
        if kind == "choice":
            space[name] = {"type": kind, "values": [as_type(value) for value in found]}
        else:
            space[name] = {"type": kind, "low": as_type(found[0]), "high": as_type(found[-1])}
    settings = [{name: _number(line, name) for name in space} for line, *_ in kept]
    metric_values = [values + [math.nan] * (epochs - len(values)) for _, values, _ in kept]
    seconds = []
    for _, _, measured in kept:
        mean = statistics.fmean(filter(_positive, measured))
        whole = measured + [math.nan] * (epochs - len(measured))
        seconds.append([each if _positive(each) else mean for each in whole])
    return tables.write(out, metric, "min", space, settings, metric_values, seconds)


def _positive(seconds: float) -> bool:
    return seconds > 0  # a missing time is NaN


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search_quality.scan_bench", description=__doc__)
    parser.add_argument("wheel", type=Path, help="wheel of scan-bench")
    parser.add_argument("folder", type=Path, help="folder to write the tables to")
    given = parser.parse_args()
    try:
        for name, convert in (("clip", clip), ("llm", llm)):
            path = given.folder / f"{name}.npz"
            curves = convert(given.wheel, path)
            print(f"{path}: {len(curves.values)} settings x {curves.max_epochs} epochs")
    except RequestError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
