"""An experiment's folder is deleted as a whole; whatever is put in its place is kept."""

import json
import os
import shutil

import pytest
from journals import read

from tuner.errors import RequestError
from tuner.record import folder as folders
from tuner.record.format import FIELD, FORMAT
from tuner.record.saved_experiment import COPY, FILE, digest, latest_experiment


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "results" / "demo"
    document = {FIELD: FORMAT, "id": "1"}
    text = json.dumps({**document, "sha256": digest(document)}).encode()
    for path, content in {FILE: text, COPY: text, "journal.jsonl": b"", "best/model.pt": b"m" * 700_000}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


@pytest.fixture
def thesis(tmp_path):
    """A file of the user's, outside the results."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "thesis.tex").write_text("years of work")
    return tmp_path / "outside" / "thesis.tex"


def delete(folder):
    with folders.opened(folder) as opened, folders.without_driver(opened):
        return folders.remove(opened, folders.set_aside(opened))


def everything(folder):
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


@pytest.mark.slow
def test_a_renamed_search_trains_on_from_its_checkpoints(search):
    first = search("tiny.py", "--num-samples", "3", "--max-epochs", "2", "--scheduler", "fifo", name="first")
    assert first.code == 0
    first.folder.rename(first.folder.with_name("second"))
    again = search("", "--resume", "second", "--num-samples", "4", "--max-epochs", "4", name="second")
    assert again.code == 0, again.err
    assert [len(trial.reports) for trial in again.record.trials] == [4, 4, 4, 4] and not first.folder.exists()
    epochs = [event["epoch"] for event in read(again.folder / "journal.jsonl") if event["event"] == "report"]
    assert len(epochs) == 16  # no epoch was trained twice


def test_links_in_a_deleted_folder_lose_nothing_behind_them(folder, thesis):
    (folder / "best" / "more").symlink_to(thesis.parent)
    (folder / "link.tex").symlink_to(thesis)
    assert delete(folder) == "" and os.listdir(folder.parent) == []
    assert thesis.read_text() == "years of work"


@pytest.mark.parametrize(
    ("files", "content", "why"),
    [
        ((FILE, COPY), b'{"tool": "mlx"}', "neither experiment.json nor its copy"),
        ((FILE, COPY), b'{"format": 1, "sha256": "0"}', "neither experiment.json nor its copy"),
        (("journal.jsonl",), b'{"id": "2"}\n', "journal.jsonl is that of another search"),
    ],
)
def test_what_another_program_has_written_is_kept(folder, files, content, why):
    for name in files:
        (folder / name).write_bytes(content)
    before = everything(folder)
    with pytest.raises(RequestError, match=why):
        delete(folder)
    assert before.items() <= everything(folder).items()


def test_a_damaged_experiment_with_a_true_copy_is_deleted(folder):
    (folder / FILE).write_bytes(b"{")
    assert delete(folder) == "" and not folder.exists()


@pytest.mark.parametrize("exchanged", ["link", "folder"])
@pytest.mark.parametrize("moment", ["before", "during"])
def test_a_folder_that_is_exchanged_between_check_and_change_is_kept(
    folder, thesis, tmp_path, monkeypatch, exchanged, moment
):
    def exchange():
        folder.rename(tmp_path / "mine")
        folder.symlink_to(thesis.parent) if exchanged == "link" else shutil.copytree(thesis.parent, folder)

    if moment == "before":  # after the folder was opened
        true = folders.without_driver
        monkeypatch.setattr(folders, "without_driver", lambda opened: (exchange(), true(opened))[1])
    else:  # between the last check and the call that renames
        true_rename = os.rename

        def late(*args, **kwargs):
            monkeypatch.setattr(os, "rename", true_rename)
            exchange()
            return true_rename(*args, **kwargs)

        monkeypatch.setattr(os, "rename", late)
    with pytest.raises(RequestError, match="; nothing was changed"):
        delete(folder)
    assert os.listdir(folder.parent) == ["demo"]
    assert thesis.exists() and (folder / "thesis.tex").exists() and (tmp_path / "mine" / "journal.jsonl").exists()


def stubborn(monkeypatch, *names):
    """Makes the system refuse to delete files of these names, or all files."""
    unlink = os.unlink

    def refused(path, *args, **kwargs):
        if not names or path in names:
            raise PermissionError(1, "Operation not permitted")
        return unlink(path, *args, **kwargs)

    monkeypatch.setattr(os, "unlink", refused)


def test_an_error_before_the_deletion_changes_nothing(folder, monkeypatch):
    before = everything(folder)
    stubborn(monkeypatch)
    with pytest.raises(RequestError, match="nothing was changed"):
        delete(folder)
    assert before.items() <= everything(folder).items()


def test_an_error_midway_leaves_no_half_of_an_experiment(folder, monkeypatch):
    stubborn(monkeypatch, "model.pt")
    left = delete(folder)
    (rest,) = os.listdir(folder.parent)
    assert rest.startswith(".deleted-") and rest in left and "Operation not permitted" in left
    with pytest.raises(RequestError, match="no experiment in"):
        latest_experiment(folder.parent)


def test_folders_within_folders_without_end_are_listed_and_deleted_without_one(folder):
    place = os.open(folder / "best", os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("deep", dir_fd=place)
        inner = os.open("deep", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)
    with folders.opened(folder) as opened:
        assert folders.files_in(opened, "best") == [("model.pt", 700_000)]
    left = delete(folder)
    for rest in folder.parent.iterdir():
        assert "delete it yourself" in left
        os.system(f"rm -r '{rest}'")  # pytest's own clean-up recurses
