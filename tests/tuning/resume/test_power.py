"""The power goes at any moment of a search, again and again: `--resume` ends as the unbroken search.

`power.py` has the rules of what the disk then has. The command is the real one, in this process; its workers train
nothing (`workerless.py`), but sync their checkpoints with the function of the real ones. In the last test they train.
POWER_IMAGE=LABEL tries only this image, and those on the way to it; a failure names its label.
"""

import contextlib
import functools
import io
import itertools
import os
import random
import shutil
import subprocess
from collections import Counter
from types import SimpleNamespace
from unittest import mock

import pytest
import ray
from journals import read
from killing import COMMAND, SPACES, assert_same, repeated_and_lost
from power import SHARES, Chance, tree, watched, write_image
from ray.tune import Checkpoint
from ray.tune.execution.tune_controller import TuneController
from ray.tune.result import TRIAL_INFO
from test_every_cut import MORE, PAIRS, most_at_a_time
from tiers import further
from workerless import KEPT, MANAGER, Handle, Worker, Workerless, outcome_of

from tuner import run
from tuner.engine.controller import changes
from tuner.engine.workers.reports import persisted
from tuner.errors import RequestError
from tuner.record import clock
from tuner.record.results import Following, load
from tuner.record.storage.files import sync, write_atomically
from tuner.tuning.answer import result
from tuner.tuning.searchers import forest
from tuner.views.report import page

NAME = "x"
SEARCH = ["--space", str(SPACES / "tiny.py"), "--no-preflight"]
TWO_AT_A_TIME = [("random", "hyperband"), ("random", "asha-promotion"), ("bohb", "bohb"), ("refine", "asha")]
ONLY = os.environ.get("POWER_IMAGE", "")


class Syncing(Worker):
    """Syncs its checkpoints as a real worker does."""

    def write(self):
        def write(_):
            super(Syncing, self).write()
            return Checkpoint.from_directory(self.saved)

        persisted(write, None)


class Acting(Workerless):
    """Tells the disk which trials' decisions the workers get to know."""

    worker = Syncing
    disk = None

    def remove_actor(self, tracked_actor, kill=False, stop_future=None):
        self.acts(tracked_actor)
        return super().remove_actor(tracked_actor, kill, stop_future)

    def schedule_actor_task(self, tracked_actor, method_name, args=(), kwargs=None, **options):
        if method_name != "train":
            self.acts(tracked_actor, *([args[0]] if method_name == "reset" else []))
        return super().schedule_actor_task(tracked_actor, method_name, args, kwargs, **options)

    def started(self, cls, kwargs):
        self.acts(None, kwargs["config"])
        return super().started(cls, kwargs)

    def acts(self, actor, *configs):
        worker = self._workers.get(actor)
        self.disk.acts(*[worker.trial] if worker else [], *(config[TRIAL_INFO].trial_id for config in configs))


@pytest.fixture
def powered(one_ray, monkeypatch):
    """Searches without workers, of which each run changes the same files in the same order."""
    monkeypatch.setattr(MANAGER, Acting)
    monkeypatch.setattr(Acting, "handle", handle := Handle())
    handle.get_auto_filled_metrics, handle.get_current_ip_pid = answers({}), answers(("127.0.0.1", 1))
    monkeypatch.setattr(ray, "kill", lambda actor: None)
    monkeypatch.setattr(TuneController, "checkpoint", lambda *args, **options: None)  # Ray's own, which nobody reads
    monkeypatch.setattr(result, "write_report", lambda record: None)  # drawing takes longer than the search
    monkeypatch.setattr(forest, "NUM_RANDOM", 3)  # of nine settings
    monkeypatch.setattr(changes, "SYNC_S", -1)
    monkeypatch.setattr(clock, "now", map(float, itertools.count(2_000_000_000)).__next__)


def answers(value):
    """A method of an actor that answers without a call of Ray for each."""
    answer = ray.put(value)
    return SimpleNamespace(remote=lambda **options: answer)


@functools.cache
def parsed(*words):
    return run.parse([*words])  # takes 50 ms


def command(root, *words, chosen=lambda number: False):
    """Runs a command with results in `root`; returns its exit code, its output, and its disk."""
    given = parsed(*words) | {"results": str(root), "wandb": "disabled"}
    with watched(root, chosen) as disk, contextlib.ExitStack() as stack:
        Acting.disk, output = disk, io.StringIO()
        stack.enter_context(mock.patch.object(run, "parse", lambda argv: given))
        stack.enter_context(contextlib.redirect_stdout(output))
        stack.enter_context(contextlib.redirect_stderr(output))
        code = run.main([*words])
    return code, output.getvalue(), disk


class Images:
    """Tries images of one search.

    Attributes:
        whole: the folder of the unbroken search.
        words: the options that started it.
        same: asserts that a folder's search has ended as the unbroken one; by default in all that it decided.
        num: how deep an image is (of a search, of the resume of an image, ...) -> how many were tried.
    """

    def __init__(self, place, words, same=None):
        (place / "whole").mkdir()
        code, output, disk = command(place / "whole", *words, "--name", NAME)
        assert code == 0, output
        self.place, self.words, self.whole, self.num_points = place, words, place / "whole" / NAME, disk.number
        self.num, self.same = Counter(), same or self.is_same
        self._expected = outcome_of(self.whole)

    def is_same(self, folder):
        assert outcome_of(folder) == self._expected
        assert answer_of(folder) == answer_of(self.whole)

    def crashes(self, chosen):
        """What the disk has at chosen points of the search."""
        (root := self.place / "again").mkdir()
        _, _, disk = command(root, *self.words, "--name", NAME, chosen=chosen)
        shutil.rmtree(root)
        return disk.crashes

    def at_random(self, label, num, most):
        """Tries `most` images at `num` points, and at points of the searches that they continue."""
        points = set(random.Random(label).sample(range(1, self.num_points + 1), num))
        for crash in self.crashes(points.__contains__):
            for share in SHARES:
                self.drawn(f"{label}/{crash.number}:{share}", crash, share, most)
        print(f"{self.num.total()} images, by depth {dict(self.num)}")  # shown with -rP

    def drawn(self, label, crash, share, most=1, depth=1):
        if self.num.total() >= most or not (label.startswith(ONLY) or ONLY.startswith(label)):
            return
        stream = random.Random(f"{label} goes on")
        again = depth < 3 and stream.random() < 0.25
        image = crash.state.image(Chance(label, share))
        chosen = (lambda number: stream.random() < 0.005) if again else lambda number: False
        for each in self.resume(label, crash, image, chosen, depth):
            part = stream.choice(SHARES)
            self.drawn(f"{label}/{each.number}:{part}", each, part, most, depth + 1)

    def resume(self, label, crash, image, chosen=lambda number: False, depth=1):
        """Resumes an image, which is kept if that fails; returns the crashes of the resumed search."""
        self.num[depth] += 1
        root = self.place / f"image-{self.num.total()}"
        write_image(image, root)
        try:
            crashes = self.resumed(crash, image, root, chosen, draws=random.Random(label).random() < 0.05)
        except Exception as error:
            raise AssertionError(f"POWER_IMAGE={label} at {crash}: {root}: {error}") from error
        shutil.rmtree(root)
        return crashes

    def resumed(self, crash, image, root, chosen, *, draws):
        journal, folder = image.get(f"{NAME}/journal.jsonl") or b"", root / NAME
        assert journal.startswith(crash.acted), "a decision that was acted upon is lost"
        assert_read_only(folder, draws=draws)
        code, output, disk = command(root, "--resume", NAME, chosen=chosen)
        assert "Traceback" not in output, output
        if code == 2 and not crash.begun:
            self.refused(root, image, output)
            return []
        assert code == 0, output
        self.same(folder)
        assert load(folder).state == "finished" and load_best_config(folder)
        first = (folder / "journal.jsonl").read_bytes().partition(b"\n")[0]
        assert first == crash.begun or not crash.begun, "the search started anew"
        return disk.crashes

    def refused(self, root, image, output):
        """No trial had started; the refusal is true, and the command that it leads to works."""
        if f"no experiment {NAME!r}" in output:
            assert not any(image.get(f"{NAME}/{name}") for name in ("experiment.json", ".experiment.json.copy")), output
        else:
            assert "start anew with --name" in output and "its trials are unknown" not in output, output
        code, output, _ = command(root, *self.words, "--name", NAME)
        if code == 2:
            assert "remove it, or give another name" in output, output
            code, output, _ = command(root, *self.words, "--name", "other")
        assert code == 0, output


def answer_of(folder):
    trial, report, *_ = load(folder).best()
    return trial.id, report.epoch, report.metrics


def load_best_config(folder):
    return (folder / "best" / "config.json").exists()


def assert_read_only(folder, *, draws):
    """Reading an image changes nothing in it, and raises nothing but a RequestError."""
    before = tree(folder.parent)
    for reads in (load, lambda folder: Following(folder).load()):
        with contextlib.suppress(RequestError):
            record = reads(folder)
            if draws:
                page(record)
    assert tree(folder.parent) == before, "a reader has changed it"


def options(searcher, scheduler, concurrent=1):
    choices = ["--searcher", searcher, "--scheduler", scheduler, "--max-concurrent-trials", str(concurrent)]
    return [*SEARCH, "--num-samples", "9", "--max-epochs", "4", *choices]


def test_a_disk_has_what_was_synced_and_any_part_of_the_rest(tmp_path):
    with watched(tmp_path, lambda number: False) as disk:

        def left():
            return sorted(
                ({n: c and c.decode() for n, c in each.items()} for each in disk.state().all_images()), key=str
            )

        (tmp_path / "a").write_text("one")
        assert left() == [{"a": "one"}, {"a": b""}, {}]
        sync(tmp_path / "a")
        assert left() == [{"a": "one"}, {}]
        sync(tmp_path)
        assert left() == [{"a": "one"}]
        (tmp_path / "a").open("a").write(" two")
        assert left() == [{"a": "one two"}, {"a": "one"}]
        write_atomically(tmp_path / "a", "new")
        assert left() == [{"a": "new"}]
        (tmp_path / "b").write_text("never synced")
        (tmp_path / "b").rename(tmp_path / "a")
        assert left() == [{"a": "never synced"}, {"a": "new"}, {"a": b""}]
        (tmp_path / "a").unlink()
        (tmp_path / "c").mkdir()
        sync(tmp_path)
        (tmp_path / "c" / "d").write_text("")
        sync(tmp_path / "c" / "d")
        assert left() == [{"c": None, "c/d": b""}, {"c": None}]
        shutil.rmtree(tmp_path / "c")
        assert left() == [{"c": None}, {}]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_state_of_the_first_seconds_resumes_or_starts_anew(powered, tmp_path):
    images = Images(tmp_path, [*SEARCH, "--num-samples", "1", "--max-epochs", "1"])
    crashes, seen = images.crashes(lambda number: not Acting.disk.begun), set()
    assert len(crashes) > 20
    for crash in crashes:
        for number, image in enumerate(crash.state.all_images()):
            if (content := tuple(sorted(image.items()))) not in seen:
                seen.add(content)
                images.resume(f"start/{crash.number}:{number}", crash, image)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("searcher", "scheduler", "keeps", "num", "most"),
    further(
        [(*pair, "latest", 4, 25) for pair in PAIRS]
        + [(*pair, keeps, 45, 340) for keeps in ("latest", "all") for pair in PAIRS + MORE],
        len(PAIRS),
    ),
)
def test_a_resume_ends_as_the_unbroken_search(powered, monkeypatch, tmp_path, searcher, scheduler, keeps, num, most):
    if keeps == "all":
        monkeypatch.setattr(*KEPT)
    Images(tmp_path, options(searcher, scheduler)).at_random(f"{searcher} {scheduler} {keeps}", num, most)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("searcher", "scheduler"), further(TWO_AT_A_TIME))
def test_two_trials_at_a_time_lose_and_repeat_nothing(powered, monkeypatch, tmp_path, searcher, scheduler):
    monkeypatch.setattr(Acting, "num_cpus", 3)

    def same(folder):
        assert most_at_a_time(folder) == 2
        assert repeated_and_lost(folder) == (0, 0)
        assert Counter(e["event"] for e in read(folder / "journal.jsonl"))["trial_suggested"] == 9

    Images(tmp_path, options(searcher, scheduler, 2), same).at_random(f"{searcher} {scheduler} 2", 50, 250)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scheduler", ["asha-promotion", "pbt"])
def test_the_command_resumes_searches_that_train(search_here, tmp_path, scheduler):
    words = ["--scheduler", scheduler, "--max-epochs", "4", "--max-concurrent-trials", "1", "--cpus-per-trial", "2"]
    stream = random.Random(scheduler)
    with watched(tmp_path, lambda number: stream.random() < 0.06) as disk:
        whole = search_here("tiny.py:cosine", *words, "--no-preflight", name=NAME)
    assert whole.code == 0 and len(disk.crashes) > 10, whole.err
    crashes = stream.sample([crash for crash in disk.crashes if crash.begun], 10)
    for number, (crash, share) in enumerate(itertools.product(crashes, SHARES)):
        write_image(crash.state.image(Chance(f"{scheduler} {number}", share)), root := tmp_path / f"image-{number}")
        done = subprocess.run([*COMMAND, "--resume", NAME, "--results", str(root)], capture_output=True, text=True)
        assert done.returncode == 0 and "Traceback" not in done.stderr, f"{root} at {crash}: {done.stderr}"
        assert_same(whole.folder, root / NAME)
        assert (root / NAME / "best" / "model.pt").exists(), f"{root} at {crash}"
        shutil.rmtree(root)
