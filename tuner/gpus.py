"""Prints how busy the GPUs are and which trials use them: `python -m tuner.gpus [--watch] [--results DIR]`.

One table lists the GPUs, from NVML. Another lists the running trials, from the journals of all experiments.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from tuner.errors import Parser, RequestError, blamed, failed, say
from tuner.record.format import JOURNAL
from tuner.record.reading import Reading
from tuner.record.records import TrialRecord, finite
from tuner.record.storage.lock import abandoned
from tuner.training.devices.nvml import Device, devices, trouble

logger = logging.getLogger(__name__)

INTERVAL_S = 2.0
MAX_JOURNAL_BYTES = 512 << 20  # maximum bytes of a journal; a larger one is skipped
MOST_NODE = 100  # maximum characters of a node's name; longer names are cut

Trials = list[tuple[str, TrialRecord]]  # running trials, each with the name of its experiment


def main(argv: list[str]) -> int:
    """Prints the tables, once or every `INTERVAL_S` seconds until interrupted; returns 0, or 2 for a wrong request."""
    parser = Parser(prog="python -m tuner.gpus", description=__doc__)
    parser.add_argument("--results", default="results", help="folder of the experiments (default: results)")
    parser.add_argument("--watch", action="store_true", help=f"print the tables every {INTERVAL_S:g} s, until Ctrl-C")
    known: dict[Path, tuple[int, Trials]] = {}
    try:
        args = parser.parse_args(argv)
        while True:
            if args.watch and sys.stdout.isatty():
                print("\x1b[H\x1b[J", end="")
            gpus = devices()
            say(*lines(gpus, running(Path(args.results), known), "" if gpus else trouble()))
            if not args.watch:
                return 0
            time.sleep(INTERVAL_S)
    except RequestError as error:
        return failed(error)
    except KeyboardInterrupt:
        return 0


def lines(gpus: list[Device], trials: Trials, trouble: str = "") -> list[str]:
    """Returns a table of GPUs (or why there is none, and this machine's CPUs and memory) and one of running trials."""
    if not gpus:
        first = [f"no NVIDIA GPU was found ({trouble or 'NVML reports none'})", machine()]
    else:
        head = ("gpu", "name", "busy", "memory", "temperature", "power", "trials")
        first = table(head, [device_row(device, trials) for device in gpus])
    if not trials:
        return [*first, "", "no trial is running in the results folder (--results names another one)"]
    head = ("experiment", "trial", "pid", "node", "cpus", "gpus", "epoch")
    return [*first, "", *table(head, [trial_row(*each) for each in trials])]


def trial_row(experiment: str, trial: TrialRecord) -> tuple[str, ...]:
    cpus, gpus = (f"{finite(trial.resources.get(name)) or 0:g}" for name in ("CPU", "GPU"))
    return experiment, trial.id, str(trial.pid), trial.node[:MOST_NODE], cpus, gpus, str(trial.last_epoch)


def device_row(device: Device, trials: Trials) -> tuple[str, ...]:
    """Returns a GPU's row; by the process ids from NVML, it names the trials on the GPU and counts other processes."""
    memory = "-"
    if device.memory_used_bytes is not None and device.memory_total_bytes:
        memory = f"{device.memory_used_bytes / 2**30:.1f} of {device.memory_total_bytes / 2**30:.1f} GiB"
    figures = (device.percent, "%"), (device.celsius, "C"), (device.watts, "W")
    percent, celsius, watts = ("-" if value is None else f"{value:.0f} {unit}" for value, unit in figures)
    pids = set(map(worker_of, device.pids))
    here = [f"{experiment}/{trial.id}" for experiment, trial in trials if trial.pid in pids]
    others = len(pids - {trial.pid for _, trial in trials})
    here += [f"{others} other process{'es' if others > 1 else ''}"] if others else []
    return str(device.index), device.name, percent, memory, celsius, watts, ", ".join(here) or "-"


def worker_of(pid: int) -> int:
    """Returns the process id of the worker for which a trial's process runs; of another process, its own."""
    with contextlib.suppress(OSError, ValueError):
        name, worker = Path(f"/proc/{pid}/comm").read_text().split()
        return int(worker) if name == "tuner" else pid
    return pid


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    cells = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def machine() -> str:
    """Returns this machine's CPUs, load, used and total memory: `2 CPUs, load 1.50; memory 3.1 of 24.0 GiB`."""
    cpus, memory = len(os.sched_getaffinity(0)), psutil.virtual_memory()
    used, total = (memory.total - memory.available) / 2**30, memory.total / 2**30
    return f"{cpus} CPU{'s' if cpus > 1 else ''}, load {os.getloadavg()[0]:.2f}; memory {used:.1f} of {total:.1f} GiB"


def running(results: Path, known: dict[Path, tuple[int, Trials]]) -> Trials:
    """Returns all running trials, except those of a driver of this host that has ended; warns of an unreadable folder.

    `known` caches each journal's running trials and its last change (ns); only a changed journal is read again.
    """
    trials: Trials = []
    for path in sorted(results.glob(f"*/{JOURNAL}")):
        folder = path.parent
        try:
            with blamed(folder.name):
                changed = path.lstat().st_mtime_ns
                if path not in known or known[path][0] != changed:
                    records = Reading(path, MAX_JOURNAL_BYTES).read_on().records()
                    known[path] = changed, [(folder.name, each) for each in records if each.pid is not None]
                trials += [] if abandoned(folder) else known[path][1]
        except RequestError as error:
            logger.warning("skipped: %s", error)
    return trials


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
