"""Prints how busy the GPUs are and which trials use them: `python -m tuner.gpus [--watch] [--results DIR]`.

One table lists the GPUs, from NVML. Another lists the running trials, from the journals of all experiments.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from tuner.errors import Parser, RequestError, blamed, say
from tuner.record.reading import Reading
from tuner.record.records import TrialRecord, finite
from tuner.training.devices.nvml import Device, devices, trouble

logger = logging.getLogger(__name__)

WATCH_S = 2.0
SCAN_S = 20.0  # maximum seconds to read changed journals; 10,000 trials with ten reports each take 1 s
MOST_BYTES = 512 << 20  # maximum bytes of a journal; a larger one is skipped
MOST_NODE = 100  # maximum characters of a node's name; longer names are cut
MEMINFO = Path("/proc/meminfo")


Trials = list[tuple[str, TrialRecord]]  # running trials, each with the name of its experiment


def main(argv: list[str]) -> int:
    """Prints the tables, once or every `WATCH_S` seconds until interrupted; returns 0, or 2 for a wrong request."""
    parser = Parser(prog="python -m tuner.gpus", description=__doc__)
    parser.add_argument("--results", default="results", help="folder of the experiments (default: results)")
    parser.add_argument("--watch", action="store_true", help=f"print the tables every {WATCH_S:g} s, until Ctrl-C")
    try:
        args, scanner = parser.parse_args(argv), TrialScanner()
        while True:
            if args.watch and sys.stdout.isatty():
                print("\x1b[H\x1b[J", end="")
            gpus = devices()
            say(*lines(gpus, scanner.running(Path(args.results)), "" if gpus else trouble()))
            if not args.watch:
                return 0
            time.sleep(WATCH_S)
    except RequestError as error:
        say(f"tuner: error: {error}", to=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0


def lines(gpus: list[Device], trials: Trials, trouble: str = "") -> list[str]:
    """Returns the lines of two tables: the GPUs with the trials on them, and the running trials.

    Without an NVIDIA GPU, the first one says so, and has this machine's CPUs and memory.

    Args:
        trouble: why NVIDIA's driver does not answer, if it is installed.
    """
    if not gpus:
        first = [f"no NVIDIA GPU was found ({trouble or 'NVML reports none'})", machine()]
    else:
        head = ("gpu", "name", "busy", "memory", "temperature", "power", "trials")
        first = table(head, [device_row(device, trials) for device in gpus])
    if not trials:
        return [*first, "", "no trial is running"]
    head = ("experiment", "trial", "pid", "node", "cpus", "gpus", "epoch")
    return [*first, "", *table(head, [trial_row(*each) for each in trials])]


def trial_row(experiment: str, trial: TrialRecord) -> tuple[str, ...]:
    """Returns a running trial's row."""
    cpus, gpus = (f"{finite(trial.resources.get(name)) or 0:g}" for name in ("CPU", "GPU"))
    return experiment, trial.id, str(trial.pid), trial.node[:MOST_NODE], cpus, gpus, str(trial.last_epoch)


def device_row(device: Device, trials: Trials) -> tuple[str, ...]:
    """Returns a GPU's row, with the trials, and the number of other processes, that run on it according to NVML."""
    memory = "-"
    if device.memory_used_bytes is not None and device.memory_total_bytes:
        memory = f"{device.memory_used_bytes / 2**30:.1f} of {device.memory_total_bytes / 2**30:.1f} GiB"
    here = [f"{experiment}/{trial.id}" for experiment, trial in trials if trial.pid in device.pids]
    others = len(set(device.pids) - {trial.pid for _, trial in trials})
    here += [f"{others} other process{'es' if others > 1 else ''}"] if others else []
    return (
        str(device.index),
        device.name,
        known(device.percent, ".0f", " %"),
        memory,
        known(device.celsius, ".0f", " C"),
        known(device.watts, ".0f", " W"),
        ", ".join(here) or "-",
    )


def known(value: float | None, form: str, unit: str = "") -> str:
    """Formats a figure with its unit; returns `-` if the figure is None."""
    return "-" if value is None else f"{value:{form}}{unit}"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Returns rows as lines of aligned columns under the names in `head`."""
    cells = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def machine() -> str:
    """Returns this machine's CPUs, load, used and total memory: `2 CPUs, load 1.50; memory 3.1 of 24.0 GiB`."""
    cpus = len(os.sched_getaffinity(0))
    load = f"{cpus} CPU{'s' if cpus > 1 else ''}, load {os.getloadavg()[0]:.2f}"
    if not MEMINFO.exists():
        return load
    sizes = {name: int(size.split()[0]) for name, _, size in (row.partition(":") for row in MEMINFO.open())}
    used, total = sizes["MemTotal"] - sizes["MemAvailable"], sizes["MemTotal"]
    return f"{load}; memory {used / 2**20:.1f} of {total / 2**20:.1f} GiB"


class TrialScanner:
    """Reads the journals of a folder repeatedly; skips journals that have not changed since the last time."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[object, list[TrialRecord]]] = {}

    def running(self, results: Path) -> Trials:
        """The running trials of all experiments; logs a warning for an experiment that cannot be read.

        It reads the most recently changed journals first. After SCAN_S seconds it skips changed ones that are unread.
        """
        until = time.monotonic() + SCAN_S
        trials: Trials = []
        for path, stamp in sorted(_journals(results), key=lambda each: -each[1][1]):
            name = path.parent.name
            try:
                with blamed(name):
                    if self._known.get(path, ((), []))[0] != stamp:
                        if time.monotonic() > until:
                            raise RequestError(
                                f"all journals together need more than {SCAN_S:g} s: {path} was not read"
                            )
                        records = Reading(path, MOST_BYTES).read_on(until).records()
                        self._known[path] = stamp, [trial for trial in records if trial.pid is not None]
                    trials += [(name, trial) for trial in self._known[path][1] if alive(trial)]
            except RequestError as error:
                logger.warning("skipped: %s", error)
        return sorted(trials, key=lambda each: each[0])


def _journals(results: Path) -> list[tuple[Path, tuple[int, int, int]]]:
    """Returns each journal with its size, modification time and inode number, which together show a change."""
    journals = []
    for path in results.glob("*/journal.jsonl"):
        with contextlib.suppress(OSError):
            stat = path.lstat()
            journals.append((path, (stat.st_size, stat.st_mtime_ns, stat.st_ino)))
    return journals


def alive(trial: TrialRecord) -> bool:
    """Whether the trial's process exists (a killed search journals no end); True for another or unknown node."""
    return trial.node not in own_addresses() or Path(f"/proc/{trial.pid}").exists()


def own_addresses() -> set[str]:
    """Returns the addresses by which Ray may know this machine."""
    try:
        return {"127.0.0.1", *socket.gethostbyname_ex(socket.gethostname())[2]}
    except OSError:
        return {"127.0.0.1"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
