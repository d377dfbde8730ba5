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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.errors import Parser, RequestError, blamed, say
from tuner.record.events import Event
from tuner.record.reading import follow
from tuner.record.records import finite
from tuner.training.devices.nvml import Device, devices, trouble

logger = logging.getLogger(__name__)

WATCH_S = 2.0
SCAN_S = 20.0  # maximum seconds to read changed journals; 10,000 trials with ten reports each take 1 s
MOST_BYTES = 512 << 20  # maximum bytes of a journal; a larger one is skipped
MOST_RUNNING = 10_000  # maximum number of running trials per experiment; one with more is skipped
MOST_NODE = 100  # maximum characters of a node's name; longer names are cut
MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True)
class Running:
    """A running trial.

    Attributes:
        pid: the process id; None if the journal does not record it.
        gpus: how many GPUs the trial reserves; may be a fraction.
    """

    experiment: str
    trial: str
    pid: int | None
    node: str
    cpus: float
    gpus: float
    epoch: int


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


def lines(gpus: list[Device], trials: list[Running], trouble: str = "") -> list[str]:
    """Returns the lines of two tables: the GPUs with the trials on them, and the running trials.

    Without an NVIDIA GPU, two lines replace the first table: one says so, the other has this machine's CPUs and memory.
    Without a running trial, one line replaces the second table.

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
    rows = [
        (t.experiment, t.trial, known(t.pid, "d"), t.node, f"{t.cpus:g}", f"{t.gpus:g}", str(t.epoch)) for t in trials
    ]
    return [*first, "", *table(head, rows)]


def device_row(device: Device, trials: list[Running]) -> tuple[str, ...]:
    """Returns a GPU's row, with the trials, and the number of other processes, that run on it according to NVML."""
    memory = "-"
    if device.memory_used_bytes is not None and device.memory_total_bytes:
        memory = f"{device.memory_used_bytes / 2**30:.1f} of {device.memory_total_bytes / 2**30:.1f} GiB"
    here = [f"{trial.experiment}/{trial.trial}" for trial in trials if trial.pid in device.pids]
    others = len(set(device.pids) - {trial.pid for trial in trials})
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
        self._known: dict[Path, tuple[object, list[Running]]] = {}

    def running(self, results: Path) -> list[Running]:
        """The running trials of all experiments; logs a warning for an experiment that cannot be read.

        It reads the most recently changed journals first. After SCAN_S seconds it skips changed ones that are unread.
        """
        until = time.monotonic() + SCAN_S
        trials: list[Running] = []
        for path, stamp in sorted(_journals(results), key=lambda each: -each[1][1]):
            try:
                with blamed(path.parent.name):
                    if self._known.get(path, ((), []))[0] != stamp:
                        self._known[path] = stamp, running_of(path.parent.name, _events_until(path, until))
                    trials += filter(alive, self._known[path][1])
            except RequestError as error:
                logger.warning("skipped: %s", error)
        return sorted(trials, key=lambda trial: trial.experiment)


def _journals(results: Path) -> list[tuple[Path, tuple[int, int, int]]]:
    """Returns each journal with its size, modification time and inode number, which together show a change."""
    journals = []
    for path in results.glob("*/journal.jsonl"):
        with contextlib.suppress(OSError):
            stat = path.lstat()
            journals.append((path, (stat.st_size, stat.st_mtime_ns, stat.st_ino)))
    return journals


def _events_until(path: Path, until: float) -> Iterator[Event]:
    """Yields a journal's events; raises a RequestError if it is too large, or when time.monotonic() exceeds `until`."""
    if path.lstat().st_size > MOST_BYTES:
        raise RequestError(f"{path} has more than {MOST_BYTES:,} bytes")
    for event in follow(path, once=True):
        if time.monotonic() > until:
            raise RequestError(f"{path} was not read: all journals together need more than {SCAN_S:g} s")
        yield event


def running_of(experiment: str, events: Iterable[Event]) -> list[Running]:
    """Returns the trials that run on a worker, according to the events: none that is paused, failed or has ended."""
    running: dict[str, Running] = {}
    for event in events:
        kind, trial = event["event"], event.get("trial", "")
        if kind == "trial_started":
            resources = event["resources"]
            cpus, gpus = (finite(resources.get(name)) or 0 for name in ("CPU", "GPU"))
            epoch = running[trial].epoch if trial in running else 0
            pid = event.get("pid")
            pid = pid if type(pid) is int else None
            if len(running) >= MOST_RUNNING and trial not in running:
                raise RequestError(f"{experiment} has more than {MOST_RUNNING:,} running trials in its journal")
            running[trial] = Running(experiment, trial, pid, event["node"][:MOST_NODE], cpus, gpus, epoch)
        elif kind == "report" and trial in running:
            running[trial] = replace(running[trial], epoch=event["epoch"])
        elif kind in ("trial_failed", "trial_ended") or (kind == "decision" and event["action"] == "pause"):
            running.pop(trial, None)
        elif kind.startswith("experiment_"):
            running.clear()
    return list(running.values())


def alive(trial: Running) -> bool:
    """Whether the trial's process exists (a killed search journals no end); True for another or unknown node."""
    if trial.pid is None or trial.node not in own_addresses():
        return True
    return Path(f"/proc/{trial.pid}").exists()


def own_addresses() -> set[str]:
    """Returns the addresses by which Ray may know this machine."""
    try:
        return {"127.0.0.1", *socket.gethostbyname_ex(socket.gethostname())[2]}
    except OSError:
        return {"127.0.0.1"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
