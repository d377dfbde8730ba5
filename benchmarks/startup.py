"""How long until the command line answers, until a search has its first figure, and until the prompt is back.

`--help` beside what it must not import (`import ray.tune, torch`), and the README's search over `cifar`, started as the
README starts it: from the command to the first trial and its first report, and from the answer to the command's end.

`--timeline` runs that search once with `benchmarks/tracing` on its path, prints which process does what, when, and
draws it (`--svg FILE`).
"""

from __future__ import annotations

import argparse
import html
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.peers import measure
from tuner.record.reading import read

SEARCH = "-m tuner.run --space cifar --name search"
TRACING = Path(__file__).parent / "tracing"
ANSWER = "folder      "  # the line of the answer that every search prints
LOOK_S = 0.05
ROLES = {  # a part of a process's first command line -> what it is
    "uv run": "uv", "wandb_mirror": "W&B mirror", "wandb-core": "W&B", "gcs_server": "GCS", "raylet/raylet": "raylet",
    "runtime_env/agent": "runtime env agent", "dashboard/agent": "agent", "log_monitor": "log monitor",
    "monitor.py": "autoscaler", "dashboard.py": "dashboard", "default_worker": "worker", "tuner.run": "driver",
}  # fmt: skip


@dataclass
class Process:
    """One process of a search: what it is, when it lived (s after the command), and what it did."""

    role: str
    born: float
    died: float = 0.0
    cpu_s: float = 0.0
    spans: list[tuple[float, float, str]] = field(default_factory=list)


@dataclass
class Search:
    """A search from the command (0 s) to its end; `printed` are the lines of its output with their times."""

    first_trial: float
    first_report: float
    finished: float
    answer: float
    ended: float
    processes: list[Process]
    printed: list[tuple[float, str]]


def search(results: Path, words: Sequence[str], trace: Path | None = None) -> Search:
    """Runs the README's command with these further words, and watches it."""
    env = measure.environment()
    if trace:
        env |= {"TUNER_TRACE": str(trace), "PYTHONPATH": os.pathsep.join([str(TRACING), env["PYTHONPATH"]])}
    command = [*measure.README_PYTHON, *SEARCH.split(), "--results", str(results), *words]
    began = time.time()
    process = subprocess.Popen(
        command, cwd=measure.REPOSITORY, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    printed: list[tuple[float, str]] = []

    def copy_output() -> None:
        assert process.stdout
        printed.extend((time.time() - began, line.rstrip()) for line in process.stdout)

    reader = threading.Thread(target=copy_output)
    reader.start()
    seen = watch(process) if trace else {}
    code = process.wait()
    ended = time.time() - began
    reader.join()
    if code:
        raise SystemExit("\n".join(line for _, line in printed))
    for number, each in seen.items():
        each.spans = sorted(spans(trace / str(number), began)) if trace else []
    first: dict[str, float] = {}
    for event in read(results / "search" / "journal.jsonl"):
        first.setdefault(event["event"], event["time"] - began)
    answer = next(at for at, line in printed if line.startswith(ANSWER))
    trial, report, finished = (first[name] for name in ("trial_started", "report", "experiment_finished"))
    return Search(trial, report, finished, answer, ended, list(seen.values()), printed)


def watch(process: subprocess.Popen[str]) -> dict[int, Process]:
    """Watches this process and all that descend from it until it ends; those of no ROLE are left out."""
    seen: dict[int, Process] = {}
    here = time.monotonic()
    root = psutil.Process(process.pid)
    began = root.create_time()  # on the kernel's clock, which psutil knows to a second only
    while process.poll() is None:
        for each in [root, *root.children(recursive=True)]:
            try:
                words = " ".join(each.cmdline())
                role = next((name for part, name in ROLES.items() if part in words), "")
                if role or each.pid in seen:  # Ray's processes rename themselves
                    known = seen.setdefault(each.pid, Process(role, each.create_time() - began))
                    known.role = role or known.role  # at first it has the words of the one that forked it
                    known.died, known.cpu_s = time.monotonic() - here, sum(each.cpu_times()[:2])
            except psutil.Error:
                continue  # it has just ended
        time.sleep(LOOK_S)
    return seen


def spans(path: Path, began: float) -> Iterator[tuple[float, float, str]]:
    """What a traced process noted."""
    for line in path.read_text().splitlines() if path.exists() else []:
        _, begin, end, name = line.split("\t")
        yield float(begin) - began, float(end) - began, name


def timeline(traced: Search) -> None:
    """Prints each process with its spans."""
    rows = []
    for process in traced.processes:
        rows.append([process.role, f"{max(0.0, process.born):.1f}", f"{process.died:.1f}", f"{process.cpu_s:.1f}"])
        rows += [[f"- {name}", f"{begin:.1f}", f"{end:.1f}", ""] for begin, end, name in process.spans]
    measure.show(["process, and what it does", "from (s)", "to (s)", "CPU (s)"], rows)


def draw(traced: Search, until: float) -> str:
    """The timeline up to `until` seconds, as SVG: a row a process, its spans as labelled bars."""
    left, wide, high = 130, 900, 36
    scale = wide / until
    rows = [process for process in traced.processes if process.born < until]
    body = []
    for second in range(0, int(until) + 1):
        x = left + second * scale
        body.append(f'<line x1="{x:.1f}" y1="20" x2="{x:.1f}" y2="{20 + high * len(rows)}" stroke="#ddd"/>')
        body.append(f'<text x="{x:.1f}" y="14" text-anchor="middle">{second}</text>')
    for index, process in enumerate(rows):
        y = 20 + index * high
        body.append(f'<text x="{left - 6}" y="{y + 20}" text-anchor="end">{html.escape(process.role)}</text>')
        for begin, end, name in [(max(0.0, process.born), process.died, ""), *process.spans]:
            begin, end = min(begin, until), min(end, until)
            x, width = left + begin * scale, max(1.0, (end - begin) * scale)
            if name.startswith("import"):  # above, because some run in a thread beside what is below
                body.append(bar(x, width, y + 4, 13, "#4c78a8", name))
            else:
                body.append(bar(x, width, y + 18, 13, "#f58518" if name else "#dde4ec", name))
    for at, name in ((traced.first_trial, "first trial"), (traced.first_report, "first report")):
        x = left + at * scale
        body.append(f'<line x1="{x:.1f}" y1="20" x2="{x:.1f}" y2="{20 + high * len(rows)}" stroke="#d62728"/>')
        body.append(f'<text x="{x + 3:.1f}" y="{32 + high * len(rows)}" fill="#d62728">{name}</text>')
    height = 44 + high * len(rows)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + wide + 20} {height}"'
    style = 'font-family="sans-serif" font-size="11"'
    return f'{head} {style}><rect width="100%" height="100%" fill="white"/>{"".join(body)}</svg>\n'


def bar(x: float, width: float, y: int, high: int, fill: str, name: str) -> str:
    """One bar, with its name inside where that fits."""
    shape = f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{high}" rx="2" fill="{fill}">'
    text = html.escape(name)
    fits = 0 < 6.2 * len(name) < width
    label = f'<text x="{x + 3:.1f}" y="{y + high - 3}" fill="white">{text}</text>' if fits else ""
    return f"{shape}<title>{text}</title></rect>{label}"


def row(what: str, seconds: Sequence[float], scale: float) -> list[str]:
    middle = statistics.median(seconds)
    return [what, f"{middle:.2f}", f"{min(seconds):.2f}-{max(seconds):.2f}", str(len(seconds)), f"{middle / scale:.2f}"]


def started_s(log: Path, *words: str) -> float:
    """Seconds that a process takes from start to end."""
    return measure.run([*measure.README_PYTHON, *words], log).seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5, help="of each (default: 5)")
    parser.add_argument("--data-dir", default="", help="CIFAR-10, so that no download is waited for")
    parser.add_argument("--timeline", action="store_true", help="one search, process by process")
    parser.add_argument("--svg", type=Path, help="where the timeline's picture goes")
    parser.add_argument("--until", type=float, default=10.0, help="the picture's last second (default: 10)")
    args = parser.parse_args()
    words = ["--data-dir", args.data_dir] if args.data_dir else []
    print(measure.machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.timeline:
            traced = search(folder, words, trace=folder)
            timeline(traced)
            if args.svg:
                args.svg.write_text(draw(traced, args.until))
            return
        help_, imports, searches = [], [], []
        for index in range(args.repeats):
            help_.append(started_s(folder / "log", "-m", "tuner.run", "--help"))
            imports.append(started_s(folder / "log", "-c", "import ray.tune, torch"))
            searches.append(search(folder / str(index), words))
    scale = statistics.median(imports)
    rows = [
        row("`tuner.run --help`", help_, scale),
        row("`import ray.tune, torch`", imports, scale),
        row("search: to the first trial", [each.first_trial for each in searches], scale),
        row("search: to the first report", [each.first_report for each in searches], scale),
        row("search: to the answer", [each.answer for each in searches], scale),
        row("from the answer to the prompt", [each.ended - each.answer for each in searches], scale),
    ]
    measure.show(["what", "seconds (median)", "range", "runs", "x imports"], rows)


if __name__ == "__main__":
    main()
