"""The power goes at any moment of a search, again and again: `--resume` ends as the unbroken search.

`power.py` has the rules of what the disk then has. The command is the real one, in this process; its workers train
nothing (`workerless.py`), but they write checkpoints and sync them as real workers do.
"""

import contextlib
import io
import itertools
import os
import random
import shutil
from collections import Counter
from functools import partial

import pytest
import ray
from killing import COMMAND, SPACES, repeated_and_lost
from power import SHARES, Chance, tree, watched, write_image
from ray.tune.result import TRIAL_INFO
from test_every_cut import MORE, PAIRS, most_at_a_time
from tiers import further
from workerless import KEPT, MANAGER, Workerless, outcome_of

from tuner import run
from tuner.errors import RequestError
from tuner.record.reading import read
from tuner.record.results import Following, load
from tuner.tuning.answer import result
from tuner.tuning.searchers import forest
from tuner.views.report import page

SEARCH = ["--space", str(SPACES / "tiny.py"), "--num-samples", "9", "--max-epochs", "4", "--no-preflight"]
NAME = "x"
ONLY = os.environ.get("POWER_IMAGE", "")  # tries only this image and those on the way to it: a label as failures name it


class Acting(Workerless):
    """Tells the disk which trials' decisions the workers get to know."""

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
        if self.disk:
            self.disk.acts(*[worker.trial] if worker else [], *(config[TRIAL_INFO].trial_id for config in configs))


@pytest.fixture
def powered(one_ray, monkeypatch):
    """Searches without workers, one trial at a time."""
    monkeypatch.setattr(MANAGER, Acting)
    monkeypatch.setattr(ray, "kill", lambda actor: None)
    monkeypatch.setattr(forest, "NUM_RANDOM", 3)  # of nine settings
    monkeypatch.setattr(result, "write_report", lambda record: None)  # drawing takes longer than the search


def command(root, *words, chosen=lambda number: False):
    """Runs a command with results in `root`; returns its exit code, its output, and the disk's crashes."""
    with watched(root, chosen) as Acting.disk, contextlib.ExitStack() as stack:
        output = io.StringIO()
        stack.enter_context(contextlib.redirect_stdout(output))
        stack.enter_context(contextlib.redirect_stderr(output))
        code = run.main([*words, "--results", str(root), "--wandb", "disabled"])
    return code, output.getvalue(), Acting.disk.crashes


def in_share(label, share, most):
    """Chooses a share of a run's points, `most` of them at most."""
    stream, left = random.Random(f"{label} points"), itertools.count(1)
    return lambda number: stream.random() < share and next(left) <= most


class Trying:
    """Tries images of one search; `same(folder)` asserts that a folder has the outcome of the unbroken one."""

    def __init__(self, place, words, same):
        self.place, self.words, self.same, self.num = place, words, same, Counter()

    def images(self, label, crashes, shares=SHARES, depth=1):
        for crash in crashes:
            for share in shares if depth == 1 else [random.Random(f"{label} {crash.number}").choice(shares)]:
                own = f"{label}/{crash.number}:{share}"
                if ONLY and not (ONLY.startswith(own) or own.startswith(ONLY)):
                    continue
                image = crash.state.image(Chance(own, share))
                self.num[depth] += 1
                more = self.one(f"POWER_IMAGE={own} {crash}", own, crash, image, again=depth < 3)
                self.images(own, more, shares, depth + 1)

    def one(self, told, own, crash, image, *, again):
        """Resumes an image; returns the crashes of the resumed search."""
        root = self.place / f"image-{sum(self.num.values())}"
        write_image(image, root)
        told = f"{told} in {root}"
        journal = image.get(f"{NAME}/journal.jsonl") or b""
        assert journal.startswith(crash.acted), f"{told}: a decision that was acted upon is lost"
        assert_read_only(root, draws=random.Random(own).random() < 1 / 20)
        chosen = in_share(own, 1 / 50, 2) if again and random.Random(f"{own} again").random() < 1 / 4 else lambda n: False
        try:
            code, output, crashes = command(root, "--resume", NAME, chosen=chosen)
        except Exception as error:
            raise AssertionError(f"{told}: {error!r}") from error
        assert "Traceback" not in output, f"{told}: {output}"
        if code == 2 and not crash.begun:
            self.refused(told, root, image, output)
            crashes = []
        else:
            assert code == 0, f"{told}: {output}"
            self.same(root / NAME, told)
            first = (root / NAME / "journal.jsonl").read_bytes().partition(b"\n")[0]
            assert not crash.begun or first == crash.begun, f"{told}: the search started anew"
        shutil.rmtree(root)
        return crashes

    def refused(self, told, root, image, output):
        """The refusal is true, and the command that it leads to works."""
        has = {name for name in ("experiment.json", ".experiment.json.copy") if image.get(f"{NAME}/{name}")}
        if "no experiment 'x'" in output:
            assert not has, f"{told}: {output}"
        else:
            assert "start anew with --name" in output, f"{told}: {output}"
            assert "its trials are unknown" not in output, f"{told}: no trial had started: {output}"
        code, output, _ = command(root, *self.words, "--name", NAME)
        if code == 2:
            assert "give another name" in output, f"{told}: {output}"
            code, output, _ = command(root, *self.words, "--name", "other")
        assert code == 0, f"{told}: {output}"


def assert_read_only(root, *, draws):
    """Reading an image changes nothing in it, and raises nothing but a RequestError."""
    before = tree(root)
    for reads in (load, lambda folder: Following(folder).load()):
        with contextlib.suppress(RequestError):
            record = reads(root / NAME)
            if draws:
                page(record)
    assert tree(root) == before


def searched(tmp_path, label, words, share, most, same=None):
    """An unbroken search with crashes at a share of its points, and what tries their images."""
    (root := tmp_path / "whole").mkdir()
    code, output, crashes = command(root, *words, "--name", NAME, chosen=in_share(label, share, most))
    assert code == 0, output
    expected = outcome_of(root / NAME), answer_of(root / NAME)

    def is_same(folder, told):
        assert answer_of(folder)[0] == "finished", told
        assert (outcome_of(folder), answer_of(folder)) == expected, told

    return Trying(tmp_path, words, same or is_same), crashes


def answer_of(folder):
    record = load(folder)
    trial, report, *_ = record.best()
    return record.state, trial.id, report.epoch, (folder / "best" / "config.json").exists()


def options(searcher, scheduler, concurrent=1):
    return [*SEARCH, "--searcher", searcher, "--scheduler", scheduler, "--max-concurrent-trials", str(concurrent)]


def tries(powered, monkeypatch, tmp_path, searcher, scheduler, keeps, num_points, share):
    if keeps == "all":
        monkeypatch.setattr(*KEPT)
    label = f"{searcher}-{scheduler}-{keeps}"
    trying, crashes = searched(tmp_path, label, options(searcher, scheduler), share, num_points)
    trying.images(label, crashes)
    return trying.num


CASES = [(*pair, keeps) for keeps in ("latest", "all") for pair in PAIRS + MORE]


@pytest.mark.parametrize(("searcher", "scheduler", "keeps"), CASES)
def test_probe(powered, monkeypatch, tmp_path, searcher, scheduler, keeps):
    print(tries(powered, monkeypatch, tmp_path, searcher, scheduler, keeps, 20, 0.05))
