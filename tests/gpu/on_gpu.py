"""Runs on a GPU what only a GPU can show, and writes a report; `run_on_gpu.sh` says how to call it."""

import datetime
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from tuner.engine.local.machine import num_gpus
from tuner.record.reading import read
from tuner.record.results import load
from tuner.training.devices import accelerator
from tuner.training.devices.nvml import devices

ROOT = Path(__file__).parents[2]
TOTAL_S = 580  # for everything; each part also has its own limit
SPACE = ROOT / "tests" / "spaces" / "on_gpus.py"
MARKED = ["tests/gpu", "tests/search_spaces", "tests/training"]  # where tests are marked cuda
SMALL = bool(os.environ.get("PRETENDED_GPUS"))  # pretended devices: the script itself is tried, so little is trained


class FailedPart(Exception):
    """A part has failed; its text says how."""


def main(report, chosen):
    os.chdir(ROOT)
    os.environ.setdefault("ON_GPUS_TRAIN", "1000" if SMALL else "400000")
    problem, num = found()
    if problem:
        print(f"run_on_gpu: no GPU was tried: {problem}", file=sys.stderr)
        return 77
    until, failed, sections = time.monotonic() + TOTAL_S, [], []
    with tempfile.TemporaryDirectory(prefix="on-gpu-") as folder:
        results = Path(folder)
        parts = {
            "tests": ("Tests marked cuda", lambda left: marked_tests(left(200))),
            "strategies": ("Strategies and precisions", lambda left: strategies(num, results, left)),
            "loops": ("Training loop against a bare loop", lambda left: loops(left(120))),
            "quarters": ("Four trials on quarters, and one after another", lambda left: quarters(results, left)),
        }
        for title, part in (parts[name] for name in chosen or parts):
            begun = time.monotonic()

            def left(limit_s):
                if until - time.monotonic() < 5:
                    raise FailedPart("no time was left")
                return min(limit_s, until - time.monotonic())

            try:
                text, verdict = part(left), "passed"
            except subprocess.TimeoutExpired as error:
                text, verdict = f"it took longer than {error.timeout:.0f} s", "FAILED"
            except Exception as error:
                text, verdict = f"{type(error).__name__}: {error}", "FAILED"
            failed += [title] if verdict == "FAILED" else []
            line = f"{title}: {verdict} in {time.monotonic() - begun:.0f} s"
            print(line, flush=True)
            sections += ["", f"## {line}", "", text]
            write(report, num, failed, sections)
    print(f"{report}: {'FAILED: ' + ', '.join(failed) if failed else 'all parts passed'}")
    return 1 if failed else 0


def found():
    """Why torch can use no GPU (empty if it can), and the number of GPUs."""
    try:
        accelerator.here.check()
    except RuntimeError as error:
        return str(error).removeprefix("the trial has a GPU from Ray, but "), 0
    return "" if num_gpus() else "Ray finds none", num_gpus()


def write(report, num, failed, sections):
    """Writes the report as far as it is; a part that never ends leaves those before it."""
    names = sorted({device.name for device in devices()}) or ["no name: NVML does not answer"]
    head = [
        f"# {num} x {', '.join(names)}",
        "",
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, torch {torch.__version__}, "
        f"Python {platform.python_version()}, {len(os.sched_getaffinity(0))} CPUs",
        "",
        f"FAILED: {', '.join(failed)}" if failed else "No part has failed.",
    ]
    Path(report).write_text("\n".join([*head, *sections]) + "\n")


def run(words, limit_s, **environment):
    """Runs Python; returns its output, or raises FailedPart with the end of it."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=limit_s,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    if done.returncode:
        raise FailedPart(f"exit code {done.returncode} of {' '.join(map(str, words))}\n\n"
                         f"```\n{(done.stdout + done.stderr)[-3000:]}\n```")  # fmt: skip
    return done.stdout


def marked_tests(limit_s):
    """Runs the tests marked cuda; fails if one fails."""
    output = run(
        ["-m", "pytest", "-m", "cuda", "-n", "0", "-rs", "--timeout", "120", *MARKED], limit_s, PRETENDED_GPUS=""
    )
    return f"```\n{output[-3000:].strip()}\n```"


def search(results, name, options, limit_s):
    """Runs the real command; returns the experiment's record. Fails unless all trials complete."""
    words = ["--space", SPACE, "--searcher", "grid", "--scheduler", "fifo", "--wandb", "disabled"]
    run(["-m", "tuner.run", *words, "--results", results, "--name", name, *options], limit_s)
    record = load(results / name)
    others = [f"{trial.id} {trial.status}: {trial.reason}" for trial in record.trials if trial.status != "completed"]
    if others:
        raise FailedPart(f"{name}: {'; '.join(others)}")
    return record


def strategies(num, results, left):
    """Trains by every strategy that the number of devices allows, and in every precision."""
    few = ["--max-epochs", "2", "--num-samples", "1"]
    each = {f"single {precision}": ["--precision", precision] for precision in ("fp32", "bf16", "fp16")}
    if SMALL:
        each = {"single fp32": []}
    if num >= 2:
        two = ["--gpus-per-trial", "2"]
        each |= {name: ["--strategy", name, *two] for name in (["model"] if SMALL else ["dp", "model", "pipeline"])}
        each["ddp"] = ["--strategy", "ddp", "--workers-per-trial", "2", *two]
    lines = ["| strategy | loss | peak GPU memory | s per epoch |", "| --- | ---: | ---: | ---: |"]
    for name, options in each.items():
        record = search(results, name.replace(" ", "-"), [*few, *options], left(90))
        last = record.trials[0].reports[-1].metrics
        peak = last["gpu_memory_peak_bytes"] / 2**20
        lines.append(f"| {name} | {last['loss']:.5f} | {peak:.1f} MiB | {last['train_s']:.3f} |")
    if num < 2:
        lines += [
            "",
            "One device: dp, model, pipeline and ddp need two and were not run; the tests above had them on one.",
        ]
    return "\n".join(lines)


def loops(limit_s):
    """Images a second of a trial's loop and of a bare one."""
    size = ["--images", "32", "--repeats", "1", "--batch-sizes", "16"] if SMALL else ["--repeats", "3"]
    return run(["-m", "benchmarks.loop", "--device", "cuda", *size], limit_s).strip()


def quarters(results, left):
    """Four trials at a quarter each, and the same four one after another on a whole device."""
    lines = [
        "| GPUs per trial | first to last report, s | seconds per epoch | largest peak memory |",
        "| ---: | ---: | ---: | ---: |",
    ]
    for share in ("0.25", "1"):
        options = ["--gpus-per-trial", share, "--cpus-per-trial", "0.25", "--num-samples", "4", "--max-epochs", "5"]
        record = search(
            results, f"share-{share}", [*options, "--max-concurrent-trials", "4" if share == "0.25" else "1"], left(120)
        )
        events = read(results / f"share-{share}" / "journal.jsonl")
        spans = [event["time"] for event in events if event["event"] == "report"]
        metrics = [report.metrics for trial in record.trials for report in trial.reports]
        epoch_s = statistics.median(each["train_s"] for each in metrics)
        peak = max(each["gpu_memory_peak_bytes"] for each in metrics) / 2**20
        lines.append(f"| {share} | {max(spans) - min(spans):.1f} | {epoch_s:.3f} | {peak:.1f} MiB |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
