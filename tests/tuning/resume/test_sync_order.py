"""The order in which searches write and sync: all that a journal's line relies on is on the disk before the line is.

Each search is the real command under strace, with all its workers. A second look at the same trace leaves out some of
its syncs, as if the program did not call them: the rules must then be broken, so they see what they are meant to see.
"""

import json
import re
import subprocess
from dataclasses import dataclass, field

import pytest
from killing import COMMAND, ONE_AT_A_TIME, SPACES, is_acted_upon
from tiers import further
from tracing import STRACE, Disk, calls_of, why_not

pytestmark = pytest.mark.timeout(600)
REPLACED = re.compile(r"\.?experiment\.json(\.copy)?|best|trials\.csv|report\.html")
SEARCHES = [
    ("random", "asha", "tiny.py"), ("random", "pbt", "saving.py"), ("random", "asha-promotion", "saving.py"),
    ("random", "hyperband", "tiny.py"), ("random", "pbt", "tiny.py"),
]  # fmt: skip


@dataclass
class Rules:
    """Follows a trace; `broken` has the name of each rule that a call breaks, with what was not on the disk."""

    folder: str  # the experiment's, on the traced disk
    disk: Disk
    broken: list = field(default_factory=list)
    lines: list = field(default_factory=list)  # of the journal so far: (event, the call that wrote it)
    seen: set = field(default_factory=set)  # what occurred that a rule is about

    def follow(self, call):
        made, removed = self.disk.apply(call)
        for path in made:
            if path == f"{self.folder}/journal.jsonl" and call.name == "write":
                assert not call.cut, "the trace has only a part of a line"
                for line in call.arguments[1].splitlines():
                    self._line(json.loads(line), call)
            elif call.name.startswith("mkdir") and path.endswith("/.best.new"):
                self._check("answer", self._unsynced(len(self.lines), call.begin))
                self._acts(call)
            elif call.name.startswith("rename") and REPLACED.fullmatch(path.removeprefix(f"{self.folder}/")):
                self._check("replaced", [each for each in self.disk.lacking(path, call.begin) if "content" in each])
            elif match := re.match(r".*/([^/]+)/checkpoint_\d+", path):
                self._acts(call, match[1])
        for path in removed:
            if match := re.match(r".*/checkpoint_\d+", path):
                self._deletion(match[0].removeprefix(f"{self.folder}/"), call)
                self._acts(call)

    def at_end(self):
        """What was renamed must also have its new name on the disk."""
        for path in self.disk.files:
            if REPLACED.fullmatch(path.removeprefix(f"{self.folder}/")):
                self._check("names", [each for each in self.disk.lacking(path, float("inf")) if "content" not in each])

    def _line(self, event, call):
        if event["event"] == "trial_started":
            if not any(event["event"] == "trial_started" for event, _ in self.lines):
                lacking = self.disk.lacking(f"{self.folder}/experiment.json", call.begin)
                self._check("beginning", lacking + self._unsynced(1, call.begin))
            self._acts(call)
        if name := event.get("checkpoint"):
            path = f"{self.folder}/{name}"
            files = [each for each in self.disk.below(path) if each != path]
            self._check("checkpoint", self.disk.lacking(path, call.begin) if files else [f"{path} has no files"])
        self.lines.append((event, call))

    def _acts(self, call, trial=""):
        """The call is a consequence of decisions before it; the work of a trial, of decisions about others."""
        for number, (event, line) in enumerate(self.lines, 1):
            if is_acted_upon(event) and line.end < call.begin and event["trial"] != trial:
                self._check("decision", self._unsynced(number, call.begin))

    def _deletion(self, name, call):
        """A checkpoint is deleted once a line is on the disk after which it is neither its trial's last nor best."""
        reports = [(number, event) for number, (event, _) in enumerate(self.lines, 1) if event["event"] == "report"]
        owner = next((event["trial"] for _, event in reports if event.get("checkpoint") == name), None)
        best, is_known = None, False
        for number, event in reports:
            if event["trial"] == owner:
                best = event if best is None else min(best, event, key=lambda report: report["metrics"]["loss"])
                is_known |= event["checkpoint"] == name
                if is_known and name not in (best["checkpoint"], event["checkpoint"]):
                    return self._check("deletion", self._unsynced(number, call.begin))
        if is_known:
            self._check("deletion", [f"{name} is deleted, but no line replaces it"])

    def _unsynced(self, num_lines, before):
        """The last of so many lines, if it was not on the disk by then."""
        event, call = self.lines[num_lines - 1]
        journal = self.disk.files[f"{self.folder}/journal.jsonl"]
        return [] if journal.is_synced(call, before) else [f"line {num_lines}: {event}"]

    def _check(self, rule, lacking):
        self.seen.add(rule)
        self.broken += [(rule, each) for each in lacking]


@pytest.fixture(scope="module", autouse=True)
def strace():
    if reason := why_not():
        pytest.skip(reason)


# Syncs that are left out of a trace, by the names of their files below the results -> the rules that are then broken.
WITHOUT = {
    "": {"beginning", "checkpoint", "names"},
    "x": {"beginning", "checkpoint", "names"},
    "x/journal.jsonl": {"beginning", "decision", "deletion", "answer"},
    "x/ray": {"checkpoint"},
    "x/ray/[^/]*": {"checkpoint"},
    "x/ray/.*/checkpoint_[0-9]*": {"checkpoint"},
    "x/ray/.*/checkpoint_.*/.*": {"checkpoint"},
    r"x/\.experiment\.json.*": {"beginning", "replaced"},
    r"x/\.(trials\.csv|report\.html).*": {"replaced"},
    r"x/\.best\.new": {"replaced"},
    r"x/\.best\.new/.*": {"replaced"},
}


@pytest.mark.parametrize(("searcher", "scheduler", "space"), further(SEARCHES, 3))
def test_what_a_line_relies_on_is_on_the_disk_before_it(tmp_path, searcher, scheduler, space):
    results, trace = tmp_path / "results", tmp_path / "trace"
    results.mkdir()
    options = ["--space", str(SPACES / space), "--searcher", searcher, "--scheduler", scheduler, *ONE_AT_A_TIME]
    options += ["--num-samples", "4", "--max-epochs", "4", "--grace-period", "1", "--reduction-factor", "2"]
    command = [*STRACE, "-o", str(trace), *COMMAND, *options, "--results", str(results), "--name", "x"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    calls = [call for call in calls_of(trace) if any(str(results) in str(argument) for argument in call.arguments)]
    rules = followed(calls, results)
    assert rules.broken == []
    # Ray deletes the checkpoints of a Task only, and pbt needs them all.
    unseen = set() if space == "tiny.py" and scheduler != "pbt" else {"deletion"}
    assert rules.seen == set.union(*WITHOUT.values()) - unseen
    for name, broken in WITHOUT.items():
        kept = [call for call in calls if not is_sync(call, results, name)]
        assert {rule for rule, _ in followed(kept, results).broken} == broken - unseen, name


def is_sync(call, results, name):
    if call.name not in ("fsync", "fdatasync"):
        return False
    return re.fullmatch(name, call.arguments[0].path.removeprefix(str(results)).removeprefix("/")) is not None


def followed(calls, results):
    rules = Rules(f"{results}/x", Disk(results))
    for call in calls:
        rules.follow(call)
    rules.at_end()
    return rules
