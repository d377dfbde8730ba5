"""Experiment folders of earlier versions still resume: `recorded/<date>-<commit>/<case>/`, as their drivers left them.

Each case is one search that an earlier version ran three times: without a break (`unbroken.json` has what it decided),
until SIGINT (`interrupted/`), and until SIGKILL of its driver (`killed/`). The cases cover every searcher and every
scheduler, a Task in one process and in two, a function that saves no checkpoint, and two trials at a time.

Never edit a recorded folder or its space: if one no longer resumes, the program is wrong. Add a recording beside the
others, by `python tests/record.py`, before a change of what is written: the journal's events, experiment.json,
checkpoints, or the order in which a searcher or scheduler draws its random numbers. Add a case for each new searcher
and scheduler.

A searcher's library may propose other settings in its next version; `--resume` then refuses, and the test is skipped.
"""

import importlib.metadata
import itertools
import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from record import essence
from workerless import Workerless, conduct

from tuner.record.saved_experiment import load_experiment
from tuner.spec.experiment import CHOICES
from tuner.spec.spaces import find_space

ROOT = Path(__file__).parent.parent
RECORDED = Path(__file__).parent / "recorded"
FOLDERS = sorted(path.parent for path in RECORDED.glob("*/*/*/experiment.json"))
LIBRARIES = {"forest": "scikit-learn", "hyperopt": "hyperopt", "optuna": "optuna", "bohb": "hpbandster"}


def document_of(folder):
    """experiment.json, read without the program's own reader."""
    return json.loads((folder / "experiment.json").read_text())


def options_of(folder):
    return document_of(folder)["options"]


def runs_one_at_a_time(folder):
    return options_of(folder)["max_concurrent_trials"] == 1


def name_of(folder):
    return str(folder.relative_to(RECORDED))


WITHOUT_WORKERS = [folder for folder in FOLDERS if Path(options_of(folder)["space"]).name == "function.py"]


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """`copied(folder)` gives a copy to resume; the working folder is the project's, as the spaces' paths expect."""
    monkeypatch.chdir(ROOT)

    def copy(folder):
        searcher = options_of(folder)["searcher"]
        library, versions = LIBRARIES.get(searcher), document_of(folder)["versions"]
        if library and importlib.metadata.version(library) != versions[library]:
            pytest.skip(f"recorded with {library} {versions[library]}, which may have proposed other settings")
        return shutil.copytree(folder, tmp_path / "resumed")

    return copy


YOUNGER: set[str] = set()  # names that the recorded versions lacked


def test_every_searcher_and_scheduler_was_interrupted_and_killed():
    for field in ("searcher", "scheduler"):
        for end in ("interrupted", "killed"):
            assert {options_of(folder)[field] for folder in FOLDERS if folder.name == end} == set(
                CHOICES[field]
            ) - YOUNGER


def test_what_auto_chose_is_recorded_as_if_it_had_been_named():
    folders = [folder for folder in FOLDERS if folder.parent.name == "auto"]
    assert folders and all(options_of(folder)["scheduler"] == "asha-promotion" for folder in folders)
    assert all("scheduler asha-promotion, because" in document_of(folder)["auto"] for folder in folders)


@pytest.mark.parametrize("folder", WITHOUT_WORKERS, ids=name_of)
def test_resumes_without_workers(one_ray, copied, monkeypatch, folder):
    monkeypatch.setattr("ray.tune.execution.tune_controller.RayActorManager", Workerless)
    target = copied(folder)
    experiment, facts = load_experiment(target)
    experiment = replace(experiment, results=str(target.parent), name=target.name)
    monkeypatch.setattr(Workerless, "num_cpus", experiment.max_concurrent_trials)
    loaded_space = find_space(experiment.space)
    assert loaded_space.sha256 == facts["space"]["sha256"]
    conduct(experiment, loaded_space)
    assert_ended(target, folder)


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_resumes_by_the_command(search, copied, folder):
    target = copied(folder)
    all_cpus = ["--cpus-per-trial", "2"] if runs_one_at_a_time(folder) else []  # there may have been more or fewer
    resumed = search("", "--resume", target.name, *all_cpus, name=target.name)
    assert resumed.code == 0, resumed.err
    assert_ended(target, folder)


def assert_ended(target, folder):
    """The search is whole, and the same as the unbroken one where the order of events is fixed."""
    before, after = essence(folder / "journal.jsonl"), essence(target / "journal.jsonl")
    expected = json.loads((folder.parent / "unbroken.json").read_text())
    assert len(before["reports"]) < len(after["reports"]), "it had ended before"
    if Path(options_of(folder)["space"]).name == "forgetful.py":  # its resumed trial reports from the first epoch again
        after["reports"] = [report for n, report in enumerate(after["reports"]) if report not in after["reports"][:n]]
    assert after["reports"][: len(before["reports"])] == before["reports"]
    assert after["settings"].keys() == after["ends"].keys() == expected["settings"].keys()
    assert set(after["ends"].values()) <= {"completed", "pruned"}
    if options_of(folder)["scheduler"] != "pbt":  # which itself goes back to earlier epochs
        assert max(Counter((trial, epoch) for trial, epoch, _ in after["reports"]).values()) == 1
    if runs_one_at_a_time(folder):
        other = rounded_otherwise(after["settings"], expected["settings"])
        assert other or after["ends"] == expected["ends"]
        assert numbers(until(other, after["reports"])) == expected_of(until(other, expected["reports"]), folder)
        decisions, recorded = until(other, after["decisions"]), until(other, expected["decisions"])
        decisions = unpromoted(decisions) if recorded == unpromoted(recorded) else decisions
        assert numbers(decisions) == expected_of(recorded, folder)


def rounded_otherwise(settings, expected):
    """The first trial whose setting differs from the expected one by rounding; None if all are the same.

    numpy rounds otherwise on another processor. The recorded spaces' losses follow from every digit of a setting, so
    from this trial on the searches differ.
    """
    first = next((trial for trial in sorted(expected) if settings[trial] != expected[trial]), None)
    if first is not None:
        assert settings[first] == {name: pytest.approx(value, rel=1e-9) for name, value in expected[first].items()}
    return first


def until(trial, rows):
    """The rows before the first one of a trial."""
    return list(itertools.takewhile(lambda row: row[0] != trial, rows))


def unpromoted(decisions):
    """The decisions without those that continue a paused trial, which earlier versions did not record."""
    paused, kept = set(), []
    for row in decisions:
        trial, epoch, action = row[0], row[1], row[-1]
        if action == "continue" and (trial, epoch) in paused:
            continue
        kept.append(row)
        paused |= {(trial, epoch)} if action == "pause" else set()
    return kept


def numbers(rows):
    return [value for row in rows for value in row]


def expected_of(rows, folder):
    """Exact, but for what torch computes: its kernels round otherwise on another processor."""
    if Path(options_of(folder)["space"]).name != "task.py":
        return numbers(rows)
    return [pytest.approx(value, rel=1e-4) if isinstance(value, float) else value for value in numbers(rows)]
