"""Runs the searches of a world by the real command, kills them, and lists all harm that they did."""

import contextlib
import itertools
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

from acting import OWN_TEMPORARY
from journals import scan
from killing import TRIAL_ACTORS, left_of, start
from snapshots import difference, snapshot, without_creation
from worlds import built

HERE = Path(__file__).parent
MOST_KEPT_BYTES = 1 << 20  # larger files of trials that did not win may be removed
PARAMS = 'params={{"number": tune.grid_search(list(range({num})))}}'
FUNCTION = """
def train(config):
    acting.act(config["number"], tune, tune.report)
space = Space(PARAMS, train=train, metric="loss", max_epochs=3)
"""
CLASS = """
class train(tune.Trainable):
    def setup(self, config):
        self.actor, self.next = acting.Actor(config["number"], self.trial_id_of(), tune.get_checkpoint() is not None), 0
    def trial_id_of(self):
        return tune.get_context().get_trial_id()
    def step(self):
        self.actor.run(self.next)
        self.next += 1
        if self.next == self.actor.num_steps and self.actor.program["ending"] != "returns":
            self.actor.end()
        return {"loss": self.actor.loss, "done": self.next == self.actor.num_steps}
    def save_checkpoint(self, folder):
        return {"next": self.next}
    def load_checkpoint(self, state):
        self.next = state["next"]
space = Space(PARAMS, train=train, metric="loss", max_epochs=3)
"""
TASK = """
import numpy as np, torch
from tuner import Arrays, Splits, Task
def data(data_dir):
    inputs = np.random.default_rng(0).normal(size=(60, 2)).astype("float32")
    targets = (inputs.sum(axis=1) > 0).astype("int64")
    return Splits(Arrays(inputs[:40], targets[:40]), Arrays(inputs[40:], targets[40:]))
task = Task(data=data, model=lambda config: torch.nn.Linear(2, 2), batch_size=10,
    optimizer=lambda parameters, config: torch.optim.SGD(parameters, lr=0.1))
space = Space(PARAMS, task=task, max_epochs=3DDP)
"""
HEAD = "from tuner import Space, script, search, tune\nimport acting\nimport helper\n"
SPACES = {
    "function": HEAD + FUNCTION,
    "class": HEAD + CLASS,
    "script": 'from tuner import script, tune\nconfig = script({"number": tune.grid_search(list(range({num})))}, '
    'metric="loss", mode="min", max_epochs=3)\nimport acting\nimport helper\n'
    'acting.act(config["number"], tune, lambda *metrics, **checkpoint: tune.report(*metrics, **checkpoint))\n',
    "program": HEAD
    + FUNCTION
    + "if __name__ == '__main__':\n    import json, sys\n    search(space, **json.loads(sys.argv[1]))\n",
    "task": HEAD + TASK.replace("DDP", ""),
    "ddp": HEAD + TASK.replace("DDP", ', strategy="ddp", workers_per_trial=2'),
}
TOLD = re.compile(r"link|outside|shared|absolute", re.I)  # in each line that tells of a write elsewhere
# What stays below the home, as docs/resources.md says.
IN_HOME = (".ray/auth_token", ".cache/tuner/results", ".cache/tuner/secret")


class Searches:
    """The searches of one place, one after the other or two at once."""

    def __init__(self, place):
        self.place, self.world = place, place.world
        self.processes, self.harms, self.codes = [], [], {}
        self.names = ["first", "second"] if self.world.two else ["first"]
        results = place.results[1].resolve()
        self.folders = [results / name for name in self.names]
        # Where a trial's own folder may lie: a folder in TMPDIR, or in the experiment's folder.
        own = [place.tmp, *(folder / "ray" for folder in self.folders), place.home / ".cache" / "tuner"]
        self.write_space()
        place.describe(own)
        self.left_out = [place.ray, place.control, place.tmp, *self.folders]
        self.before, self.tmp_before = self.outside(), snapshot(place.tmp)

    def outside(self):
        return snapshot(self.place.root, self.left_out)

    def write_space(self):
        text = SPACES[self.world.kind].replace("PARAMS", PARAMS).replace("{{", "{").replace("}}", "}")
        self.space = self.place.start / "the_space.py"
        self.space.write_text(text.replace("{num}", str(len(self.world.programs))))

    def command(self, name, resume):
        """The command or the call of a search, with its environment."""
        options = {"results": self.place.results[0], "name": None if resume else name, "wandb": "disabled"}
        options |= {
            "max_failures": None if resume else 2 if self.world.kill else 1,
            "resume": name if resume else None,
            "searcher": None if resume else "grid",
        }
        given = {option: value for option, value in options.items() if value is not None}
        python = [sys.executable, "-m", "tuner.run"]
        words = [word for option, value in given.items() for word in (f"--{option.replace('_', '-')}", str(value))]
        if self.world.kind == "program":
            python, words = [sys.executable, self.space.name], [json.dumps(given)]
        elif not resume:
            words = ["--space", self.space.name, *words]
        dropped = "PYTHONDONTWRITEBYTECODE TUNER_CACHE XDG_CACHE_HOME XDG_CONFIG_HOME XDG_STATE_HOME UV".split()
        paths = {"HOME": self.place.home, "TMPDIR": self.place.tmp, "RAY_TMPDIR": self.place.ray, "PYTHONPATH": HERE}
        values = {**paths, "HARM": self.place.control, "HARM_SEARCH": name}
        unset = [word for variable in dropped for word in ("-u", variable)]
        return ["env", *unset, *(f"{variable}={value}" for variable, value in values.items()), *python, *words]

    def begin(self, name, resume=False):
        path = self.place.control / f"{name}.out"
        with open(path, "a") as output:
            process = start(self.command(name, resume), cwd=self.place.start, stdout=output, stderr=output)
        self.processes.append(process)
        return process

    def run(self):
        """Run, kill and resume as the world says; return every harm as a readable line."""
        for resume in (False, True) if self.world.kill else (False,):
            searches = [self.begin(name, resume and self.journal(name).exists()) for name in self.names]
            if self.world.kill and not resume:
                self.kill(searches[0], self.names[0])
            for name, process in zip(self.names, searches, strict=True):
                self.codes[name] = process.wait(200)
            self.compare("after a kill" if self.world.kill and not resume else "at the end")
        if not self.harms_of_processes() and self.world.kill and self.left_in_tmp():
            self.begin("next").wait(120)  # what a process left that died after the resume had begun
            self.left_out.append(self.folders[0].with_name("next"))
        self.harms += self.harms_of_processes() + self.left_in_tmp()
        for name, folder in zip(self.names, self.folders, strict=True):
            self.judge_trials(name, folder)
        return self.harms

    def journal(self, name):
        return self.working_folder(name) / "journal.jsonl"

    def working_folder(self, name):
        """The experiment's folder on this machine: that of a store is in the cache."""
        if self.world.results != "store":
            return self.folders[self.names.index(name)]
        return next(self.place.home.glob(f".cache/tuner/results/*/{name}"), Path("none"))

    def kill(self, process, name):
        until = time.monotonic() + 60
        while not self.journal(name).exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(self.world.kill.after_s)
        family = left_of(process)
        workers = [pid for pid in family if title_of(pid).startswith(TRIAL_ACTORS)]
        for pid in {"driver": [process.pid], "worker": workers[:1], "all": family}[self.world.kill.who]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end_all(self):
        """End what a failed test left."""
        for pid in itertools.chain.from_iterable(left_of(process) for process in self.processes):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def harms_of_processes(self):
        """Wait for the processes of all searches; after a kill, Ray's agents try for 60 s to reach what is gone."""
        until = time.monotonic() + (60 if self.world.kill else 10)
        while time.monotonic() < until:
            titles = {pid: title_of(pid) for process in self.processes for pid in left_of(process)}
            left = {pid: title for pid, title in titles.items() if not (self.world.kill and "agent" in title)}
            if not left:
                break
            time.sleep(0.1)
        self.end_all()
        return [f"process left: {pid} {title}" for pid, title in left.items()]

    def left_in_tmp(self):
        lines = difference(self.tmp_before, snapshot(self.place.tmp))
        lines.pop(str(self.place.tmp), None)  # its time
        lines = {path: line for path, line in lines.items() if str(Path(path).parent) not in lines}  # not what is below
        lines = {path: line for path, line in lines.items() if "/torchinductor_" not in path}  # torch's own cache
        if self.world.kill:
            lines = {path: line for path, line in lines.items() if f"/{OWN_TEMPORARY}" not in path}
        sessions = [f"left in RAY_TMPDIR: {path}" for path in self.place.ray.iterdir()]
        return [f"TMPDIR: {line}" for line in lines.values()] + sessions

    def compare(self, when):
        """Add what differs outside of the experiments' folders; leave out what trials wrote there and tuner told."""
        lines = difference(self.before, self.outside())
        home = self.place.home
        python_cache = self.place.start / "__pycache__" / "helper.cpython.pyc"  # Python's own, of the space's modules
        for folder in (*self.folders, python_cache, self.place.tmp / "x", *(home / each for each in IN_HOME)):
            lines = without_creation(lines, self.before, folder)
        output = [line for name in self.names for line in self.told(name)]
        folders = (*self.folders, *map(self.working_folder, self.names))
        records = [path for folder in folders for path in folder.glob("ray/*/files.json")]
        recorded = {path for record in records for path in json.loads(record.read_text())["outside"]}
        writes = [write for notes in self.all_notes() for write in notes["outside"]]
        for path, line in lines.items():
            if any(Path(path).is_relative_to(home / each) for each in IN_HOME) or "/__pycache__/helper." in path:
                continue
            write = next((write for write in writes if reaches(write, path, line, self.before)), None)
            if write is None:
                self.harms.append(f"{when}: {line}")
            elif not is_told(write, output, self.place.start, recorded):
                self.harms.append(f"{when}: untold: {write} explains: {line}")

    def told(self, name):
        text = (self.place.control / f"{name}.out").read_text(errors="replace")
        if "Traceback" in text:
            self.harms.append(f"traceback in the output of {name}: {text[-900:]}")
        return [line for line in text.splitlines() if TOLD.search(line)]

    def all_notes(self, name="*"):
        return [json.loads(path.read_text()) for path in sorted(self.place.control.glob(f"{name}-*.json"))]

    def judge_trials(self, name, folder):
        """Each file that a trial wrote is in its `files`, the winner's also in `best/files`, and nothing else is."""
        if not self.journal(name).exists():
            last = (self.place.control / f"{name}.out").read_text().splitlines()[-1:]
            if self.codes[name] != 2 or not last or not re.match("tuner: error: |.*RequestError: ", last[0]):
                self.harms.append(f"{name} neither began nor was refused in one line: {self.codes[name]} {last}")
            return
        events, winner = scan(self.journal(name)).events, None
        numbers = {event["trial"]: event["config"]["number"] for event in events if event["event"] == "trial_suggested"}
        with contextlib.suppress(OSError):
            winner = json.loads((folder / "best" / "config.json").read_text())["trial"]
        ended = {event["trial"]: event for event in events if event["event"] == "trial_ended"}
        for trial, number in numbers.items():
            planned = self.world.programs[number].ending
            end = ended.get(trial, {"status": "missing", "reason": ""})
            wrong = end["status"] == "missing" or (end["status"] == "failed" and planned == "returns")
            if wrong or (end["status"] == "failed" and planned == "fails" and "as planned" not in end["reason"]):
                self.harms.append(f"{name}/{trial}, which {planned}, ended as {end['status']}: {end['reason']}")
            if self.world.kind not in ("task", "ddp"):
                self.judge_files(name, folder, trial, is_winner=trial == winner)

    def judge_files(self, name, folder, trial, is_winner):
        path = self.place.control / f"{name}-{trial}.json"
        if not path.exists():
            self.harms.append(f"{name}/{trial} never began its program")
            return
        notes = json.loads(path.read_text())
        if not notes["own"]:
            self.harms.append(f"{name}/{trial} ran in the user's own folder {notes['start']}")
        written = [write["path"] for each in self.all_notes() for write in each["outside"]]
        for missing in notes["unreadable"]:
            real = os.path.realpath(self.place.start / missing)
            if not any(f"{real}/".startswith(f"{each}/") for each in written):
                self.harms.append(f"{name}/{trial} could not read {missing} at its start")
        places = [folder / "ray" / trial / "files"] + [folder / "best" / "files"] * is_winner
        for place in places:
            kept = contents(place)
            for file, (size, _, digest) in notes["written"].items():
                if kept.get(file) != digest and (is_winner or size <= MOST_KEPT_BYTES):
                    state = "other bytes" if file in kept else "lost"
                    self.harms.append(f"{state}: {file} of {name}/{trial}, {size} bytes, in {place}")
            known = {*notes["written"], *notes["touched"], *notes["named"]}
            self.harms += [
                f"not written by {name}/{trial}: {place}/{file}"
                for file in sorted(kept)
                if file not in known and not file.startswith("above/")
            ]


def reaches(write, path, line, before):
    """Whether a trial's write explains the change of a path, of another name of the file, or of a folder on the way."""
    written = write["path"]
    if path == written or (write["whole"] and Path(path).is_relative_to(written)):
        return True
    if path in before and written in before and before[path].inode == before[written].inode:
        return before[path].type == "file"
    is_time = line.startswith(f"changed: {path}: mtime_ns") and line.count(" -> ") == 1
    return Path(written).is_relative_to(path) and (is_time or line.startswith("added"))


def is_told(write, output, start, recorded):
    """Whether a line names the path, the link on the way, or a folder in between; or that line's record has the path.

    A line that names the first of several paths has "writes outside"; `files.json` of its trial has all of them.
    """
    path = Path(write["path"])
    folders = [path, *(each for each in path.parents if not start.is_relative_to(each))]
    names = {str(each) for each in folders} | {os.path.relpath(each, start) for each in folders}
    names |= {write["link"], ".." if write["link"].startswith("..") else ""} - {""}
    named = any(re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w-])", line) for line in output for name in names)
    return named or any("writes outside" in line for line in output) and write["path"] in recorded


def contents(folder):
    import acting

    files = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    return {
        str(path.relative_to(folder)): acting.digest(path) for path in files if path.is_file() and not path.is_symlink()
    }


def title_of(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:80]
    return ""


def harms_in(world):
    """Build the world, run its searches, and return all harm as readable lines."""
    with built(world) as place:
        searches = Searches(place)
        try:
            return searches.run()
        finally:
            searches.end_all()
