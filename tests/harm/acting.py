"""What the trials of a random world do: a program of changes by relative paths, some reports, and an end.

Each trial notes, in the folder that HARM names, which of its files must be kept and what it changed elsewhere.
"""

import atexit
import hashlib
import json
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import quote

BYTES = {"small": 300, "large": (1 << 20) + 4096}
FOLLOWS_NONE = {"remove", "rename", "replace", "rmtree", "symlink", "link", "mkdir", "rmdir", "mkfifo"}
EXPECTED = (OSError, shutil.Error, sqlite3.Error, RuntimeError, ValueError)  # a folder in a file's place, for example


class PlannedError(Exception):
    """The trial's planned end."""


OWN_TEMPORARY = "of-the-program-"  # prefix of its temporary folders: a kill leaves them, as those of any program


def act(number, tune, report):
    """Run the trial's whole program as a function or script does."""
    actor = Actor(number, tune.get_context().get_trial_id(), tune.get_checkpoint() is not None)
    first = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            first = json.loads(Path(folder, "step").read_text()) + 1
    for step in range(first, actor.num_steps):
        actor.run(step)
        if actor.program["checkpoints"]:
            with tempfile.TemporaryDirectory(prefix=OWN_TEMPORARY) as folder:
                Path(folder, "step").write_text(json.dumps(step))
                report({"loss": actor.loss}, checkpoint=tune.Checkpoint.from_directory(folder))
        else:
            report({"loss": actor.loss})
    actor.end()


class Actor:
    """A trial at its start folder, with its program."""

    def __init__(self, number, trial, is_resumed):
        self.control = Path(os.environ["HARM"])
        self.world = json.loads((self.control / "world.json").read_text())
        self.program = self.world["programs"][number]
        self.num_steps, self.loss = len(self.program["steps"]), self.program["loss"]
        self.start, self.trial, self.number = os.getcwd(), trial, number
        self.notes = self.control / f"{os.environ['HARM_SEARCH']}-{trial}.json"
        earlier = json.loads(self.notes.read_text()) if is_resumed and self.notes.exists() else {"written": {}}
        self.earlier, self.outside, self.named = (
            earlier["written"],
            earlier.get("outside", []),
            earlier.get("named", []),
        )
        self.own = next((top for top in map(self.top, self.world["own"]) if top), None)
        self.unreadable = (
            [] if is_resumed else [path for path, old in self.world["originals"].items() if digest(path) != old]
        )
        self.at_start = self.files()
        self.note()
        if self.program["at_exit"]:
            self.named.append("at_exit.txt")
            atexit.register(lambda: Path("at_exit.txt").write_text("written at exit"))

    def top(self, folder):
        """Return the trial's own folder, the first one below `folder`; None if the trial works elsewhere."""
        inside = self.start.startswith(f"{folder}{os.sep}")
        return os.path.join(folder, Path(self.start).relative_to(folder).parts[0]) if inside else None

    def run(self, step):
        """Make the changes of a step; where the trial works in the user's own folder, make none."""
        for change in self.program["steps"][step] if self.own else ():
            self.change(*change)
        os.chdir(self.start)
        self.note()
        time.sleep(self.program["pause_s"])

    def end(self):
        """Fail, die or return."""
        if self.program["ending"] == "fails":
            raise PlannedError("as planned")
        if self.program["ending"] == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)

    def change(self, name, path, other="", size="small"):
        if name == "absolute":
            name, path = "write", os.path.join(self.world["elsewhere"], os.path.basename(path))
        paths = [path, other] if name in ("rename", "replace", "link") else [path]
        self.named += [os.path.relpath(each, self.start) for each in paths]
        made = {"nested": ["nested.bin"], "threads": [f"thread-{number}" for number in range(4)]}.get(name, [])
        for each in [*paths, *(os.path.join(path, new) for new in made)]:
            self.look(each, follows=name not in FOLLOWS_NONE, whole=name in ("rmtree", "rename", "replace"))
        if name == "replace":  # it writes the new content first
            self.look(path, follows=True, whole=False)
        if not is_fifo(path) and not is_fifo(other):  # to open one would wait for its other end
            try:
                getattr(self, f"do_{name}")(path, other, os.urandom(BYTES[size]))
            except EXPECTED:
                pass

    def look(self, path, follows, whole):
        """Note a path that leads out of the trial's folder, and the first link on the way."""
        parent, name = os.path.split(path)
        real = os.path.realpath(path) if follows else os.path.join(os.path.realpath(parent), name)
        if not f"{real}{os.sep}".startswith(f"{self.own}{os.sep}"):
            ways = [os.path.join(*Path(path).parts[: number + 1]) for number in range(len(Path(path).parts))]
            link = next((way for way in ways if os.path.islink(way)), "")
            self.outside.append({"path": real, "link": link, "whole": whole})

    def do_write(self, path, _, content):
        Path(path).write_bytes(content)

    def do_nested(self, path, _, content):
        os.makedirs(path, exist_ok=True)
        Path(path, "nested.bin").write_bytes(content)

    def do_append(self, path, _, content):
        with open(path, "ab") as file:
            file.write(content)

    def do_update(self, path, _, content):
        with open(path, "r+b") as file:
            file.write(content)

    def do_truncate(self, path, _, __):
        os.truncate(path, 0)

    def do_rename(self, path, other, _):
        os.rename(path, other)

    def do_replace(self, path, other, content):
        Path(path).write_bytes(content)
        os.replace(path, other)

    def do_remove(self, path, _, __):
        os.remove(path)

    def do_rmtree(self, path, _, __):
        shutil.rmtree(path)

    def do_mkdir(self, path, _, __):
        os.makedirs(path)

    def do_symlink(self, path, other, _):
        os.symlink(other, path)

    def do_link(self, path, other, _):
        os.link(path, other)

    def do_chmod(self, path, _, __):
        os.chmod(path, 0o640)

    def do_touch(self, path, _, __):
        Path(path).touch()

    def do_mkfifo(self, path, _, __):
        os.mkfifo(path)

    def do_chdir(self, path, _, __):
        os.chdir(path)
        self.change("write", "inside.txt")
        os.chdir("..")
        self.change("append", "back.txt")

    def do_resolve(self, path, _, content):
        Path(path).resolve().write_bytes(content)

    def do_threads(self, path, _, content):
        os.makedirs(path, exist_ok=True)
        writes = [threading.Thread(target=Path(path, f"thread-{i}").write_bytes, args=(content,)) for i in range(4)]
        for thread in writes:
            thread.start()
        for thread in writes:
            thread.join()

    def do_sqlite(self, path, _, __):
        with sqlite3.connect(f"file:{quote(path)}?mode=rwc", uri=True) as database:
            database.execute("create table if not exists runs (loss)")
            database.execute("insert into runs values (1)")
        database.close()

    def do_numpy(self, path, _, __):
        import numpy as np

        with open(path, "wb") as file:
            np.save(file, np.arange(9))

    def do_torch(self, path, _, __):
        import torch

        torch.save({"weight": torch.zeros(9)}, path)

    def do_child(self, path, _, __):
        subprocess.run(["sh", "-c", 'echo child > "$0"', path], stderr=subprocess.DEVNULL)

    def do_python_child(self, path, _, __):
        subprocess.run(
            [sys.executable, "-ISc", "import sys; open(sys.argv[1], 'a').write('child')", path],
            stderr=subprocess.DEVNULL,
        )

    def files(self):
        """Return relative path -> state of each file below the start folder; no link is followed."""
        found = {}
        for folder, _, names in os.walk(self.start):
            for name in names:
                path = os.path.join(folder, name)
                if stat.S_ISREG((status := os.lstat(path)).st_mode):
                    state = status.st_size, status.st_mtime_ns, digest(path)
                    found[os.path.relpath(path, self.start)] = state
        return found

    def note(self):
        """Write down which files must be kept now: those that this trial made or changed and that exist."""
        now = self.files()
        written = {path: state for path, state in now.items() if self.at_start.get(path, (0, 0, ""))[2] != state[2]}
        written |= {path: now[path] for path in self.earlier if path in now}
        touched = [path for path, state in now.items() if self.at_start.get(path) != state]
        told = {"written": written, "touched": touched, "named": self.named, "outside": self.outside}
        told |= {"own": self.own, "start": self.start, "unreadable": self.unreadable}
        aside = self.notes.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(told))
        os.replace(aside, self.notes)


def digest(path):
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if not is_fifo(path) else ""
    except OSError:
        return ""


def is_fifo(path):
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False
