"""A folder of another format, or of none, is refused by each command in one line that names both numbers."""

import json

import pytest
from journals import Journal, lines_of, read, scan
from killing import SPACES

from tuner import audit, report, run, train
from tuner.core.events import Report, TrialStarted
from tuner.errors import RequestError
from tuner.record.format import FORMAT, OtherFormat
from tuner.record.results import load
from tuner.record.saved_experiment import COPY, FILE, digest, load_experiment
from tuner.serve.access.state import BASE, state_folder
from tuner.spec.experiment import Experiment
from tuner.spec.facts import facts_of
from tuner.spec.spaces import find_space
from tuner.tuning.answer.best import load_best
from tuner.tuning.answer.writing import config_of
from tuner.tuning.call import Request
from tuner.tuning.session import open_journal


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a search of one trial, with its answer's setting."""
    monkeypatch.chdir(tmp_path)
    loaded_space = find_space(str(SPACES / "tiny.py"))
    experiment = Experiment(space=loaded_space.name, name="mine")
    folder = experiment.folder
    (folder / "best").mkdir(parents=True)
    facts = facts_of(loaded_space, [])
    journal = open_journal(Request(experiment, loaded_space, facts, [], None, "disabled"))
    setting = {"lr": 0.1, "batch_size": 4, "width": 2}
    journal.write(TrialStarted(setting, {"CPU": 1.0}, "n", trial="00000"))
    journal.write(Report(1, {"loss": 1.0}, trial="00000"))
    journal.close()
    config = config_of(load(folder), load(folder).trials[0], 1, cpus=1, gpus=0, sha256=loaded_space.sha256)
    (folder / "best" / "config.json").write_text(json.dumps(config))
    (folder / "best" / "metrics.json").write_text("{}")
    return folder


def renumbered(document, number):
    document = {**document, "format": number}
    return {name: value for name, value in document.items() if name != "format" or value is not None}


def renumber_experiment(folder, number):
    """As another version writes it: with its number, and a checksum that fits."""
    for name in (FILE, COPY):
        document = json.loads((folder / name).read_text())
        del document["sha256"]
        document = renumbered(document, number)
        (folder / name).write_text(json.dumps({**document, "sha256": digest(document)}))


def renumber_journal(folder, number):
    first, *others = (json.loads(line) for line in (folder / "journal.jsonl").read_bytes().splitlines())
    for event in (first, *others):
        del event["line"], event["crc"]
    (folder / "journal.jsonl").write_bytes(lines_of(renumbered(first, number), *others))


COMMANDS = {
    "resume": lambda: run.main(["--resume", "mine", "--dry-run"]),
    "resume latest": lambda: run.main(["--resume", "latest"]),
    "report": lambda: report.main(["mine"]),
    "audit": lambda: audit.main(["mine"]),
    "train": lambda: train.main(["results/mine", "--trial", "00000"]),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("renumber", "number"), [(renumber_experiment, None), (renumber_journal, FORMAT + 1)])
def test_each_command_refuses_a_folder_of_another_format(folder, capsys, command, renumber, number):
    renumber(folder, number)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert COMMANDS[command]() == 2
    message = capsys.readouterr().err
    has = "no format number" if number is None else f"format {number}"
    file = FILE if renumber is renumber_experiment else "journal.jsonl"
    assert message.count("\n") == 1 and f"mine/{file} has {has}; this version of tuner reads format {FORMAT}" in message
    left = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name[0] != "."}
    assert left == {path: content for path, content in before.items() if path.name[0] != "."}


def test_what_was_written_has_the_number_and_is_read(folder, capsys):
    assert json.loads((folder / FILE).read_text())["format"] == FORMAT
    lines = (folder / "journal.jsonl").read_bytes().splitlines()
    assert [b'"format"' in line for line in lines] == [True, False, False]
    assert all("format" not in event for event in read(folder / "journal.jsonl"))
    assert COMMANDS["resume"]() == 0 and COMMANDS["report"]() == 0
    Journal(folder / "journal.jsonl").close()
    assert len(scan(folder / "journal.jsonl").events) == 3


@pytest.mark.parametrize("number", [FORMAT + 1, None])
def test_an_answer_of_another_format_is_neither_trained_nor_loaded(folder, capsys, number):
    path = folder / "best" / "config.json"
    path.write_text(json.dumps(renumbered(json.loads(path.read_text()), number)))
    assert train.main([str(path)]) == 2
    assert f"reads format {FORMAT} only" in (message := capsys.readouterr().err) and message.count("\n") == 1
    with pytest.raises(OtherFormat, match="best/config.json has"):
        load_best(folder)


def test_an_experiment_whose_number_alone_was_altered_is_read_from_its_copy(folder, caplog):
    text = (folder / FILE).read_text()
    (folder / FILE).write_text(text.replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}'))
    assert load_experiment(folder)[0].name == "mine" and "its copy" in caplog.text


@pytest.mark.parametrize("content", [f"{FORMAT + 1}\n", "x", None])
def test_a_state_folder_of_another_format_is_refused(tmp_path, monkeypatch, content):
    monkeypatch.setenv(BASE, str(tmp_path / "state"))
    state = state_folder(tmp_path)
    assert state_folder(tmp_path) == state and (state / "format").read_text() == f"{FORMAT}\n"
    (state / "format").rename(state / ".format.123")  # as a service that died at its start leaves it
    assert state_folder(tmp_path) == state and (state / "format").exists()
    (state / "token").write_text("t" * 43)
    if content is None:
        (state / "format").unlink()
    else:
        (state / "format").write_text(content)
    with pytest.raises(RequestError, match=f"{state.name} has .*format.* reads format {FORMAT} only"):
        state_folder(tmp_path)
    assert (state / "token").read_text() == "t" * 43
