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

            def left(limit_s, until=until):
                seconds = min(limit_s, until - time.monotonic())
                if seconds < 5:
                    raise FailedPart("no time was left")
                return seconds

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
    from tuner.engine.local.machine import num_gpus
    from tuner.training.devices import accelerator

    try:
        accelerator.here.check()
    except RuntimeError as error:
        return str(error).removeprefix("the trial has a GPU from Ray, but "), 0
    return "" if num_gpus() else "Ray finds none", num_gpus()


def write(report, num, failed, sections):
    """Writes the report as far as it is; a part that never ends leaves those before it."""
    import torch

    from tuner.training.devices.nvml import devices

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
    from tuner.record.results import load

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


def compare_loops(num, repeats, batch_sizes):
    """Prints a row for each model and batch size: images a second of a bare loop and of a trial's."""
    import numpy as np
    import torch
    import torchvision

    from search_spaces.cifar import LeNet
    from tuner.space import Task
    from tuner.training.data import Arrays, Splits
    from tuner.training.loop import Training
    from tuner.training.task import TrialSpec

    torch.set_num_threads(1)  # as a trial with one CPU
    stream = np.random.default_rng(0)
    images, labels = stream.integers(0, 256, (num, 3, 32, 32), dtype="uint8"), stream.integers(0, 10, num)
    models = {
        "LeNet": lambda config: LeNet(128, 64),
        "MobileNetV2": lambda config: torchvision.models.mobilenet_v2(num_classes=10),
    }

    def scaled(some):
        return some.float().div(255)

    def sgd(parameters, config):
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)

    def bare_s(model, optimizer, inputs, targets, batch_size):
        begun = time.perf_counter()
        for rows in torch.split(torch.randperm(num, device="cuda"), batch_size):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs[rows]), targets[rows])
            loss.backward()
            optimizer.step()
        loss.item()  # waits for the device
        return time.perf_counter() - begun

    splits = Splits(Arrays(images, labels), Arrays(images[:256], labels[:256]))
    for name, build in models.items():
        for batch_size in batch_sizes:
            task = Task(data=lambda data_dir: splits, model=build, optimizer=sgd, prepare=scaled)
            spec = TrialSpec({"batch_size": batch_size}, 0, repeats + 1, gpus=1)
            trial = Training(task, splits, spec)
            model = build({}).to("cuda").train()
            bare = model, sgd(model.parameters(), {}), scaled(torch.from_numpy(images)).to("cuda")
            targets = torch.from_numpy(labels).to("cuda")
            pairs = [
                (bare_s(*bare, targets, batch_size), trial.run_epoch()["train_s"]) for _ in range(1 + repeats)
            ]  # the first pair warms up
            theirs, ours = (num / statistics.median(seconds) for seconds in zip(*pairs[1:], strict=True))
            print(f"| {name} | {batch_size} | {theirs:,.0f} | {ours:,.0f} | {ours / theirs:.2f} |", flush=True)


def loops(limit_s):
    """Images a second of a trial's loop and of a bare one."""
    output = run([__file__, "--loops", *(("32", "1", "16") if SMALL else ("4096", "3", "16", "256"))], limit_s)
    head = "| model | batch | bare, images/s | tuner, images/s | tuner / bare |\n| --- | ---: | ---: | ---: | ---: |\n"
    return head + "\n".join(line for line in output.splitlines() if line.startswith("|"))


def quarters(results, left):
    """Four trials at a quarter each, and the same four one after another on a whole device."""
    lines = ["| GPUs per trial | first to last report, s | seconds per epoch | largest peak memory |"]
    lines.append("| ---: | ---: | ---: | ---: |")
    for share in ("0.25", "1"):
        options = ["--gpus-per-trial", share, "--cpus-per-trial", "0.25", "--num-samples", "4", "--max-epochs", "5"]
        record = search(
            results, f"share-{share}", [*options, "--max-concurrent-trials", "4" if share == "0.25" else "1"], left(120)
        )
        events = events_of(results / f"share-{share}")
        spans = [event["time"] for event in events if event["event"] == "report"]
        metrics = [report.metrics for trial in record.trials for report in trial.reports]
        epoch_s = statistics.median(each["train_s"] for each in metrics)
        peak = max(each["gpu_memory_peak_bytes"] for each in metrics) / 2**20
        lines.append(f"| {share} | {max(spans) - min(spans):.1f} | {epoch_s:.3f} | {peak:.1f} MiB |")
    return "\n".join(lines)


def events_of(folder):
    from tuner.record.reading import read

    return read(folder / "journal.jsonl")


if __name__ == "__main__":
    if sys.argv[1] == "--loops":
        num_images, num_repeats, *sizes = map(int, sys.argv[2:])
        sys.exit(compare_loops(num_images, num_repeats, sizes))
    sys.exit(main(sys.argv[1], sys.argv[2:]))
