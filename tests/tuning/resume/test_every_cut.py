"""A search whose driver dies after any event, again and again, ends as if it had not.

Ray's own controller, the replay, searchers and schedulers; but workers that train nothing (`workerless.py`), which
makes it possible to try every place. With real workers: `test_resume.py`; with real kills: `test_kill.py`.
"""

import random
import shutil
from collections import Counter

import pytest
from journals import read
from killing import cut, repeated_and_lost
from tiers import further
from workerless import CHOICES, KEPT, MANAGER, Worker, Workerless, outcome_of, resumed, run

from tuner.errors import RequestError
from tuner.tuning.searchers import forest
from tuner.tuning.searchers.named import SeededSearcher

PAIRS = [  # each searcher and each scheduler
    ("bohb", "bohb"), ("hyperopt", "asha"), ("refine", "median"), ("grid", "asha"), ("random", "hyperband"),
    ("random", "pbt"), ("optuna", "asha-promotion"), ("forest", "asha-promotion"),
]  # fmt: skip
MORE = [
    ("random", "asha"), ("optuna", "asha"), ("refine", "asha"), ("forest", "asha"), ("hyperopt", "hyperband"),
    ("random", "asha-promotion"), ("hyperopt", "asha-promotion"),
]  # fmt: skip


@pytest.fixture
def whole(one_ray, tmp_path, monkeypatch):
    """`whole(searcher=..., ...)` runs an unbroken search; gives its folder."""
    monkeypatch.setattr(MANAGER, Workerless)
    monkeypatch.setattr(forest, "NUM_RANDOM", 3)  # of nine settings

    def search(**choices):
        with monkeypatch.context() as patch:
            patch.setattr(*KEPT)
            run(tmp_path / "whole", **CHOICES, **choices)
        return tmp_path / "whole"

    return search


@pytest.mark.parametrize(("searcher", "scheduler"), [*PAIRS, *further(MORE, len(MORE))])
def test_cut_again_and_again(whole, monkeypatch, searcher, scheduler):
    monkeypatch.setattr(*KEPT)
    choices = {"searcher": searcher, "scheduler": scheduler}
    folder = whole(**choices)
    expected, stream, at = outcome_of(folder), random.Random(f"{searcher} {scheduler}"), 0
    while (at := at + stream.randint(5, 25)) < len(read(folder / "journal.jsonl")):
        folder = resumed(folder, at, **choices)
        assert outcome_of(folder) == expected, f"cut after {at} events"


@pytest.mark.parametrize("scheduler", ["asha-promotion", *further(["asha", "hyperband"], 2)])
def test_a_cut_of_the_confirmation_changes_nothing(whole, monkeypatch, scheduler):
    monkeypatch.setattr(*KEPT)
    choices = {"searcher": "hyperopt", "scheduler": scheduler, "confirm": 2, "confirm_seeds": 2}
    folder = whole(**choices)
    events, expected = read(folder / "journal.jsonl"), outcome_of(folder)
    repeats = [event for event in events if event.get("confirms")]
    assert [event["trial"] for event in repeats] == ["00009", "00010", "00011", "00012"]
    first, second = (event["confirms"] for event in repeats[:2])
    assert [event["confirms"] for event in repeats] == [first, second] * 2 and first != second
    assert len({event["seed"] for event in repeats}) == 4
    whole_curves = Counter(event["trial"] for event in events if event["event"] == "report")
    assert all(whole_curves[event["trial"]] == CHOICES["max_epochs"] for event in repeats)
    for at in range(events.index(repeats[0]) - 2, len(events), 3):
        folder = resumed(folder, at, **choices)
        assert outcome_of(folder) == expected, f"cut after {at} events"


@pytest.mark.parametrize("scheduler", ["asha-promotion", *further(["asha", "hyperband", "pbt"], 3)])
def test_an_edited_journal_ends_as_the_whole_one(whole, monkeypatch, scheduler):
    monkeypatch.setattr(*KEPT)
    folder, chance = whole(scheduler=scheduler), random.Random(scheduler)
    expected, lines = outcome_of(folder), (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    for number in range(6):
        at, other = sorted(chance.sample(range(5, len(lines)), 2))
        edited = [
            lines[:at] + lines[at + 1 :],
            lines[:at] + lines[at - 1 :],
            [*lines[:at], lines[other], *lines[at + 1 : other], lines[at], *lines[other + 1 :]],
        ][number % 3]
        target = folder.with_name(f"edited-{number}")
        shutil.copytree(folder, target)
        (target / "journal.jsonl").write_bytes(b"".join(edited))
        run(target, **CHOICES, scheduler=scheduler)
        assert outcome_of(target) == expected, (number, at, other)


@pytest.mark.parametrize("seed", [0, *further(range(1, 12), 3)])
def test_pbt_with_lost_checkpoints_ends_as_it_would_have(whole, monkeypatch, seed):
    monkeypatch.setattr(*KEPT)
    folder, chance = whole(scheduler="pbt"), random.Random(seed)
    expected = outcome_of(folder)
    cut(folder, target := folder.with_name("lost"), chance.randrange(25, len(read(folder / "journal.jsonl"))))
    saved = [event["checkpoint"] for event in read(target / "journal.jsonl") if "checkpoint" in event]
    for name in saved[-chance.randint(1, 6) :]:
        shutil.rmtree(target / name)
    run(target, **CHOICES, scheduler="pbt")
    assert outcome_of(target) == expected


@pytest.fixture
def other_processor(monkeypatch):
    """`other_processor(error)` makes every number that a searcher proposes larger by this share."""
    exact = SeededSearcher.suggest

    def with_error(error):
        def suggest(self, trial_id):
            setting = exact(self, trial_id).items()
            return {name: value * (1 + error) if isinstance(value, float) else value for name, value in setting}

        monkeypatch.setattr(SeededSearcher, "suggest", suggest)

    return with_error


@pytest.mark.parametrize("searcher", ["forest", *further(["random", "optuna"], 2)])
def test_a_resume_keeps_recorded_settings_where_the_processor_rounds_otherwise(whole, other_processor, searcher):
    """Without AVX-512, numpy's exp and log give another last digit."""
    folder = whole(searcher=searcher)
    events = read(folder / "journal.jsonl")
    within = [n for n, event in enumerate(events) if event["event"] == "report" and event["epoch"] == 3][0]
    other_processor(1e-15)
    after = read(resumed(folder, within + 1, searcher=searcher) / "journal.jsonl")[within + 1 :]
    recorded = {event["trial"]: event["config"] for event in events if event["event"] == "trial_suggested"}
    new = {event["trial"] for event in after if event["event"] == "trial_suggested"}
    continued = [event for event in after if event["event"] == "trial_started" and event["trial"] not in new]
    assert new and continued and all(event["config"] == recorded[event["trial"]] for event in continued)


def test_a_resume_with_other_settings_than_the_recorded_ones_is_refused(whole, other_processor):
    folder = whole()
    other_processor(1e-6)
    with pytest.raises(RequestError, match="trial 00000 was .* but now seed 0 gives .* another version"):
        resumed(folder, 20)


def test_more_epochs_continue_the_completed_trials_of_pbt(whole, monkeypatch):
    folder = whole(scheduler="pbt")
    monkeypatch.setattr(*KEPT)
    ended = {e["trial"] for e in read(folder / "journal.jsonl") if e["event"] == "trial_ended"}
    run(folder, **CHOICES | {"max_epochs": 6}, scheduler="pbt")
    events = read(folder / "journal.jsonl")
    assert ended == {event["trial"] for event in events if event["event"] == "report" and event["epoch"] == 6}
    copies = [event for event in events if event["event"] == "decision" and "copies the state" in event["reason"]]
    assert copies and all(event["copied"] in ended - {event["trial"]} for event in copies)


@pytest.mark.parametrize(
    ("scheduler", "concurrent"),
    [("fifo", 2), ("asha", 1), ("asha-promotion", 2), *further([("asha", 2), ("asha-promotion", 1), ("median", 2)], 3)],
)
def test_more_epochs_for_a_search_that_was_broken_off(whole, monkeypatch, scheduler, concurrent):
    """Trials that had completed become pending again, before the trials that were running."""
    folder = whole(scheduler=scheduler, concurrent=concurrent)
    monkeypatch.setattr(*KEPT)
    events = read(folder / "journal.jsonl")
    ended = [n for n, event in enumerate(events) if event["event"] == "trial_ended" and event["status"] == "completed"]
    for at in [n + 3 for n in ended[1:-1:2]]:
        target = resumed(folder, at, scheduler=scheduler, concurrent=concurrent, max_epochs=6)
        after = read(target / "journal.jsonl")
        assert after[-1]["event"] == "experiment_finished" and after[-1]["state"] == "finished"
        assert {e["trial"] for e in after if e["event"] == "trial_ended"} == {f"{n:05d}" for n in range(9)}
        assert any(event["event"] == "report" and event["epoch"] == 6 for event in after)
        assert scheduler != "asha" or 4 in {event["rung"] for event in after if event["event"] == "decision"}


@pytest.mark.parametrize(("searcher", "scheduler"), further(PAIRS + MORE, 1))
def test_cut_after_every_event(whole, searcher, scheduler):
    choices = {"searcher": searcher, "scheduler": scheduler}
    folder = whole(**choices)
    expected = outcome_of(folder)
    for at in range(1, len(read(folder / "journal.jsonl"))):
        target = resumed(folder, at, **choices)
        assert outcome_of(target) == expected, f"cut after {at} events"
        shutil.rmtree(target)


@pytest.mark.parametrize(
    ("searcher", "scheduler"),
    further([("random", "hyperband"), ("random", "asha-promotion"), ("bohb", "bohb"), ("refine", "asha")], 2),
)
def test_two_at_a_time_lose_and_repeat_nothing(whole, monkeypatch, searcher, scheduler):
    """Their order may be another; with a third CPU there is still no third trial."""
    monkeypatch.setattr(Workerless, "num_cpus", 3)
    choices = {"searcher": searcher, "scheduler": scheduler, "concurrent": 2}
    folder = whole(**choices)
    assert most_at_a_time(folder) == 2
    for at in range(8, len(read(folder / "journal.jsonl")), 9):
        target = resumed(folder, at, **choices)
        assert most_at_a_time(target) == 2, f"cut after {at} events"
        assert repeated_and_lost(target) == (0, 0), f"cut after {at} events"
        assert Counter(e["event"] for e in read(target / "journal.jsonl"))["trial_suggested"] == CHOICES["num_samples"]


@pytest.mark.parametrize("concurrent", [1, 2])
def test_pbt_trains_no_more_trials_at_a_time_than_asked_and_all_in_turn(whole, monkeypatch, concurrent):
    monkeypatch.setattr(Workerless, "num_cpus", 3)
    folder = whole(scheduler="pbt", concurrent=concurrent)
    assert most_at_a_time(folder) == concurrent
    reported = [event["trial"] for event in read(folder / "journal.jsonl") if event["event"] == "report"]
    assert sorted(reported[: CHOICES["num_samples"]]) == [f"{n:05d}" for n in range(CHOICES["num_samples"])]
    target = resumed(folder, 40, scheduler="pbt", concurrent=concurrent)
    assert most_at_a_time(target) == concurrent


def most_at_a_time(folder):
    """Trials that had a worker at once, at most."""
    running, most = set(), 0
    for event in read(folder / "journal.jsonl"):
        if event["event"] == "experiment_resumed":
            running.clear()
        elif event["event"] == "trial_started":
            running.add(event["trial"])
        elif event["event"] == "trial_ended" or event.get("action") in ("pause", "stop"):
            running.discard(event.get("trial"))
        most = max(most, len(running))
    return most


@pytest.mark.parametrize("rise", [0, 1])
def test_pbt_ends_on_one_slot_if_values_tie_or_grow_worse(one_ray, tmp_path, monkeypatch, rise):
    """The worst trial copies a state of an earlier epoch, trains there, and is the worst again. Cuts change nothing."""

    class Other(Worker):
        def train(self):
            report = super().train()
            self.report["loss"] = 1.0 + rise * self.epoch
            return report | self.report

    monkeypatch.setattr(Workerless, "worker", Other)
    monkeypatch.setattr(MANAGER, Workerless)
    monkeypatch.setattr(*KEPT)
    run(tmp_path / "whole", **CHOICES, scheduler="pbt")
    expected = outcome_of(tmp_path / "whole")
    assert set(expected[1]) == {f"{n:05d}" for n in range(9)}
    num_events = len(read(tmp_path / "whole" / "journal.jsonl"))
    for at in (num_events // 3, num_events // 2, num_events - 5):
        assert outcome_of(resumed(tmp_path / "whole", at, scheduler="pbt")) == expected, f"cut after {at}"
