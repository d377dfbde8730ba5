"""Power losses of a real ext4: a search that is resumed from a copy of its disk ends as the unbroken search does.

    sudo .venv/bin/python tests/tuning/resume/power_loss.py        100 losses, half an hour; `--losses 10` has fewer

While a search writes to a small ext4, the blocks of this disk are copied at random moments. A copy has what ext4 had
written by then, and not what it still held in memory. Each copy is then mounted (ext4 replays its own journal) in the
place of the disk, and the search is resumed there to its end. The disk is a file on an XFS, which clones a file in one
step (FICLONE): no write comes in between. All mounts are in a namespace of this process, so they end with it.

Linux writes a file's content back 30 s after a change, in any order of files. These searches last no 30 s, so this
program has a random file's content written from time to time: half the time the journal's.

Linux, root, xfsprogs; 77 where it cannot run.
"""

import argparse
import contextlib
import ctypes
import fcntl
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from journals import read
from killing import COMMAND, ONE_AT_A_TIME, SPACES, assert_same, decided, is_acted_upon, left_of, num_lines, start

FICLONE = 0x40049409
TASK, FUNCTION = str(SPACES / "tiny.py:slow"), str(SPACES / "saving.py")
SMALL = ["--num-samples", "5", "--max-epochs", "4", "--grace-period", "1", "--reduction-factor", "2"]
SEARCHES = [  # searcher, scheduler, space, options of the mount; with commit=1, names come to the disk before content
    ("random", "asha", TASK, "defaults"),
    ("random", "pbt", TASK, "commit=1"),
    ("random", "asha-promotion", FUNCTION, "commit=1"),
    ("random", "hyperband", TASK, "data=writeback,commit=1"),
    ("random", "pbt", FUNCTION, "defaults"),
    ("hyperopt", "asha-promotion", TASK, "data=writeback"),
    ("optuna", "asha", FUNCTION, "noauto_da_alloc,commit=1"),
    ("bohb", "bohb", TASK, "commit=1"),
    ("random", "hyperband", FUNCTION, "nodelalloc,commit=1"),
    ("refine", "asha", TASK, "noauto_da_alloc,data=writeback,commit=1"),
]
HEAD = ["loss", "search", "mount", "after (s)", "lines written", "lines left", "lines at end", "outcome"]


@dataclass
class Loss:
    """A copy of the disk, taken so many seconds after the search began, and the lines that were written before it."""

    image: Path
    after_s: float
    written: list

    @property
    def starts(self):
        return [number for number, event in enumerate(self.written) if event["event"] == "trial_started"]

    @property
    def num_acted_upon(self):
        """How many lines there are up to the last decision that something had followed from."""
        decisions = [number for number, event in enumerate(self.written) if is_acted_upon(event)]
        return 1 + max((number for number in decisions if number < max(self.starts, default=0)), default=-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--losses", type=int, default=100, help="in all searches together")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--searches", default="", help="those whose name (searcher scheduler space) matches this regex")
    args = parser.parse_args()
    own_namespace()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was made is then removed
    stream, number, outcomes = random.Random(args.seed), 0, Counter()
    searches = [search for search in SEARCHES if re.search(args.searches, name_of(search))]
    show(HEAD)
    with laboratory() as folder:
        for left, search in zip(range(len(searches), 0, -1), searches, strict=True):
            losses, whole = searched(folder, search, stream)
            for loss in chosen(losses, (args.losses - number + left - 1) // left, stream):
                number += 1
                kept, at_end, outcome = resumed(folder, search, loss, whole)
                counts = len(loss.written), kept, at_end
                show([number, name_of(search), search[3], f"{loss.after_s:.1f}", *counts, outcome])
                outcomes[outcome.partition(":")[0]] += 1
            shutil.rmtree(whole.parent)
            for loss in losses:
                loss.image.unlink()
    print(f"{number} power losses:", ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()))
    sys.exit(bool(outcomes.keys() - {"as unbroken", "not begun"}) or number < args.losses)


def chosen(losses, num, stream):
    """So many of the losses, but only one of those before the first trial, where a search is for half of the time."""
    early = [loss for loss in losses if not loss.starts]
    late = [loss for loss in losses if loss.starts]
    first = stream.sample(early, min(len(early), int(num > 1)))
    return first + stream.sample(late, min(len(late), num - len(first)))


def searched(folder, search, stream):
    """Runs a search on a new disk to its end; returns the copies of the disk and the search's folder, moved away."""
    searcher, scheduler, space, _ = search
    image, results = folder / "store" / "image", folder / "results"
    image.unlink(missing_ok=True)
    image.touch()
    os.truncate(image, 64 << 20)
    call("mkfs.ext4", "-q", image)
    losses, journal = [], results / "x" / "journal.jsonl"
    with mounted(image, results, search[3]):
        options = ["--space", space, *SMALL, *ONE_AT_A_TIME, "--searcher", searcher, "--scheduler", scheduler]
        with running([*options, "--results", str(results), "--name", "x"], folder / "output") as process:
            begun = time.monotonic()
            while process.poll() is None:
                time.sleep(stream.uniform(0, 0.4))
                if (results / "x").exists():
                    write_back(results / "x", stream)
                    time.sleep(stream.uniform(0, 0.4))
                    written = read(journal) if journal.exists() else []
                    after_s = time.monotonic() - begun
                    losses.append(Loss(cloned(image, folder / "store" / f"{len(losses)}"), after_s, written))
        assert process.returncode == 0, (folder / "output").read_text()
        whole = folder / "whole" / "x"
        shutil.copytree(results / "x", whole)
    return losses, whole


def resumed(folder, search, loss, whole):
    """Resumes a search after a loss; returns the journal's lines before and after, and the outcome."""
    image, results = loss.image, folder / "results"
    journal = results / "x" / "journal.jsonl"
    with mounted(image, results, search[3]):  # ext4 replays its journal
        before = read(journal) if journal.exists() else []
    checked = subprocess.run(["e2fsck", "-fn", image], capture_output=True, text=True)
    if checked.returncode:
        return len(before), 0, f"NO DISK: {checked.stdout}"
    with mounted(image, results, search[3]):
        with running(["--resume", "x", "--results", str(results)], folder / "output") as process:
            code = process.wait(timeout=600)
        output = (folder / "output").read_text()
        return len(before), num_lines(journal), outcome_of(results / "x", whole, code, output, before, loss)


@contextlib.contextmanager
def running(options, path):
    """A search that writes what it prints to a file; in the end, no process of it is left, of Ray's neither."""
    with path.open("w") as output:
        process = start([*COMMAND, *options], stdout=output, stderr=output)
    try:
        yield process
    finally:
        for pid in left_of(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def outcome_of(folder, whole, code, output, before, loss):
    last = output.strip().splitlines()[-1:]
    if "Traceback" in output:
        return f"TRACEBACK: {last}"
    if code:
        return "not begun" if code == 2 and not loss.starts else f"ENDED WITH {code}: {last}"
    if loss.starts and before[:1] != read(folder / "journal.jsonl")[:1]:
        return "BEGUN ANEW: trials had started"
    if len(before) < loss.num_acted_upon:
        return f"LOST: {loss.written[len(before) : loss.num_acted_upon]}"
    if not (folder / "best" / "config.json").exists():
        return f"NO ANSWER: {last}"
    try:
        assert_same(whole, folder)
    except AssertionError:
        pairs = itertools.zip_longest(decided(whole), decided(folder))
        one, other = next((pair for pair in pairs if pair[0] != pair[1]), ("all decisions", "all decisions"))
        print(output)
        return f"ANOTHER END: {other} instead of {one}"
    return "as unbroken"


def own_namespace():
    """Gives this process, and those it starts, mounts of their own; ends with 77 where that is impossible."""

    def need(what, fits):
        if not fits:
            print(f"power_loss.py is skipped: it needs {what}", file=sys.stderr)
            sys.exit(77)

    need("Linux and root", sys.platform == "linux" and os.getuid() == 0)
    for program in ("mkfs.ext4", "e2fsck", "mkfs.xfs", "mount"):
        need(program, shutil.which(program))
    need("mount namespaces", ctypes.CDLL(None).unshare(0x00020000) == 0)  # CLONE_NEWNS
    need("private mounts", subprocess.run(["mount", "--make-rprivate", "/"]).returncode == 0)
    try:
        with laboratory():
            pass
    except subprocess.CalledProcessError as error:
        need(f"an XFS on a loop device; {error.stderr}", False)


@contextlib.contextmanager
def laboratory():
    """A folder with an XFS for the disks (`store`), and the place where one of them is mounted (`results`)."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="tuner-") as name:
        folder = Path(name)
        (folder / "results").mkdir()
        (folder / "store").mkdir()
        (folder / "xfs").touch()
        os.truncate(folder / "xfs", 2 << 30)
        call("mkfs.xfs", "-q", "-m", "reflink=1", folder / "xfs")
        os.environ["TUNER_CACHE"] = str(folder / "cache")
        with mounted(folder / "xfs", folder / "store", "defaults"):
            yield folder


@contextlib.contextmanager
def mounted(image, folder, options):
    call("mount", "-o", f"loop,{options}", image, folder)  # the loop device is detached when it is unmounted
    try:
        yield
    finally:
        for _ in range(100):  # Ray's processes may live some seconds longer than the search
            if subprocess.run(["umount", folder], capture_output=True).returncode == 0:
                break
            time.sleep(0.2)
        else:
            call("umount", "--lazy", folder)


def cloned(image, target):
    with image.open("rb") as source, target.open("wb") as copy:
        fcntl.ioctl(copy.fileno(), FICLONE, source.fileno())
    return target


def write_back(folder, stream):
    """Has the content of a random file written, but no names and sizes: `commit` decides when those are."""
    files = [os.path.join(path, name) for path, _, names in os.walk(folder) for name in names]
    if files:
        path = stream.choice([stream.choice(files), str(folder / "journal.jsonl")])
        with contextlib.suppress(OSError), open(path, "rb") as file:  # it may be gone, or a link
            whole = ctypes.c_int64(0)
            ctypes.CDLL(None).sync_file_range(file.fileno(), whole, whole, 7)  # 7: write all, and wait for it


def call(*command):
    subprocess.run([*map(str, command)], check=True, capture_output=True, text=True)


def name_of(search):
    return f"{search[0]} {search[1]} {'function' if search[2] == FUNCTION else 'Task'}"


def show(row):
    print(" | ".join(map(str, row)), flush=True)


if __name__ == "__main__":
    main()
