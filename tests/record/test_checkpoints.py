"""A checkpoint's file is data: it is read once, within its own length, and nothing else is read for it."""

import os
import pickle
import zipfile
from types import SimpleNamespace

import pytest
import torch

from tuner.errors import RequestError
from tuner.record.checkpoints import STATE, damage, load_state


def packed(path, how=zipfile.ZIP_STORED, size=1000):
    with zipfile.ZipFile(path, "w", how) as archive:
        archive.writestr("state/data.pkl", b"\0" * size)


@pytest.mark.parametrize("how", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_what_is_packed_is_not_unpacked(tmp_path, how, monkeypatch):
    packed(tmp_path / STATE, how, size=3_000_000)
    monkeypatch.setattr(zipfile.ZipFile, "testzip", None)  # not called
    assert "longer than the file" in damage(tmp_path)


def test_records_that_lie_over_each_other_are_not_read(tmp_path, monkeypatch):
    path = tmp_path / STATE
    packed(path)
    content = path.read_bytes()
    directory = content.index(b"PK\1\2")
    end = content.index(b"PK\5\6")
    entries = content[directory:end] * 50  # each names the one record
    tail = content[end : end + 8] + (50).to_bytes(2, "little") * 2
    path.write_bytes(content[:directory] + entries + tail + len(entries).to_bytes(4, "little") + content[end + 16 :])
    monkeypatch.setattr(zipfile.ZipFile, "testzip", None)
    assert "longer than the file" in damage(tmp_path)


@pytest.mark.parametrize("other", ["pipe", "link", "folder"])
def test_what_is_no_file_is_not_opened(tmp_path, other):
    place = tmp_path / "checkpoint"
    place.mkdir()
    if other == "pipe":
        os.mkfifo(place / STATE)  # opened, it would hang
    elif other == "folder":
        (place / STATE).mkdir()
    else:
        packed(tmp_path / "elsewhere")
        (place / STATE).symlink_to(tmp_path / "elsewhere")
    assert "is no regular file" in damage(place)


def emptied(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("state/version", "3\n")
        archive.writestr("state/data.pkl", b"")


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (lambda path: torch.save({"x": SimpleNamespace()}, path), r"more than tensors.*\(types.SimpleNamespace\)"),
        (lambda path: torch.save({"x": SimpleNamespace()}, path, _use_new_zipfile_serialization=False), "not a zip"),
        (lambda path: path.write_bytes(pickle.dumps({"x": 1})), "not a zip"),
        (packed, "torch cannot read"),  # a zip file that torch has not written
        (emptied, r"torch cannot read \(EOFError\)"),
        (lambda path: path.write_bytes(b""), "not a zip"),
        (lambda path: path.mkdir(), "is no regular file"),
        (lambda path: None, "No such file"),
    ],
)
def test_a_state_of_other_objects_is_refused_by_one_line_and_damages_the_checkpoint_of_a_task(tmp_path, write, why):
    torch.save({"x": torch.ones(2)}, tmp_path / STATE)
    assert load_state(tmp_path, STATE, "")["x"].sum() == 2 and not damage(tmp_path, plain=True)
    (tmp_path / STATE).unlink()
    (tmp_path / "other").touch()
    write(tmp_path / STATE)
    with pytest.raises(RequestError, match=why) as refused:
        load_state(tmp_path, STATE, "remove it")
    text = str(refused.value)
    assert text.startswith(f"{tmp_path / STATE} is damaged (") and text.endswith("; remove it")
    assert "weights_only" not in text and len(text) < 400
    assert bool(damage(tmp_path, plain=True)) == (tmp_path / STATE).exists()
