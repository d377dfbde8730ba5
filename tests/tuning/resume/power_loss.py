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
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from killing import COMMAND, ONE_AT_A_TIME, SPACES, assert_same, decided, num_lines, start

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
    written: bytes


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--losses", type=int, default=100, help="in all searches together")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--searches", default="", help="those whose name (searcher scheduler space) matches this regex")
    args = parser.parse_args()
    own_namespace()
    stream, number, outcomes = random.Random(args.seed), 0, Counter()
    searches = [search for search in SEARCHES if re.search(args.searches, name_of(search))]
    show(HEAD)
    with laboratory() as folder:
        for left, search in zip(range(len(searches), 0, -1), searches, strict=True):
            losses, whole = searched(folder, search, stream)
            for loss in stream.sample(losses, min(len(losses), (args.losses - number + left - 1) // left)):
                number += 1
                kept, at_end, outcome = resumed(folder, search, loss, whole)
                counts = len(loss.written.splitlines()), kept, at_end
                show([number, name_of(search), search[3], f"{loss.after_s:.1f}", *counts, outcome])
                outcomes[outcome.partition(":")[0]] += 1
            shutil.rmtree(whole.parent)
            for loss in losses:
                loss.image.unlink()
    print(f"{number} power losses:", ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()))
    sys.exit(bool(outcomes.keys() - {"as unbroken", "not begun"}) or number < args.losses)


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
        with (folder / "output").open("w") as output:
            process = start(
                [*COMMAND, *options, "--results", str(results), "--name", "x"], stdout=output, stderr=output
            )
            begun = time.monotonic()
            while process.poll() is None:
                time.sleep(stream.uniform(0, 0.4))
                if (results / "x").exists():
                    write_back(results / "x", stream)
                    time.sleep(stream.uniform(0, 0.4))
                    written = journal.read_bytes() if journal.exists() else b""
                    after_s = time.monotonic() - begun
                    losses.append(Loss(cloned(image, folder / "store" / f"{len(losses)}"), after_s, written))
        assert process.returncode == 0, (folder / "output").read_text()
        whole = folder / "whole" / "x"
        shutil.copytree(results / "x", whole)
    return losses, whole


def resumed(folder, search, loss, whole):
    """Resumes a search after a loss; returns the journal's lines before and after, and the outcome."""
    image, results = loss.image, folder / "results"
    journal, trials_begun = results / "x" / "journal.jsonl", b'"event": "trial_started"' in loss.written
    with mounted(image, results, search[3]):  # ext4 replays its journal
        kept = num_lines(journal)
        before = journal.read_bytes() if kept else b""
    checked = subprocess.run(["e2fsck", "-fn", image], capture_output=True, text=True)
    if checked.returncode:
        return kept, 0, f"NO DISK: {checked.stdout}"
    with mounted(image, results, search[3]):
        process = start(
            [*COMMAND, "--resume", "x", "--results", str(results)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        output = process.communicate(timeout=300)[0].decode()
        return kept, num_lines(journal), outcome_of(results / "x", whole, process, output, before, trials_begun)


def outcome_of(folder, whole, process, output, before, trials_begun):
    last = output.strip().splitlines()[-1:]
    if "Traceback" in output:
        return f"TRACEBACK: {last}"
    if process.returncode:
        refused = process.returncode == 2 and not trials_begun
        return "not begun" if refused else f"ENDED WITH {process.returncode}: {last}"
    events = [json.loads(line) for line in (folder / "journal.jsonl").read_bytes().splitlines()]
    if trials_begun and (not before or json.loads(before.splitlines()[0]) != events[0]):
        return "BEGUN ANEW: trials had started"
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
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    if files:
        path = stream.choice([stream.choice(files), folder / "journal.jsonl"])
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
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
