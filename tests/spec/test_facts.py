"""What is recorded of the code that a search runs."""

import os
import subprocess

import pytest

from tuner.spec.facts import git_commit


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("1")
    who = ["-c", "user.email=a@b", "-c", "user.name=a"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", *command], check=True)
    return tmp_path


def test_the_commit_says_whether_tracked_files_have_changes(repository):
    head = subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip()
    (repository / "notes.txt").write_text("not tracked")
    assert git_commit() == head
    (repository / "train.py").write_text("2")
    assert git_commit() == f"{head}+"


def test_the_repositorys_index_is_not_written(repository):
    os.utime(repository / "train.py", (1, 1))  # git would note the new time
    before = (repository / ".git" / "index").read_bytes()
    git_commit()
    assert (repository / ".git" / "index").read_bytes() == before


def test_outside_a_repository_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit() == ""
