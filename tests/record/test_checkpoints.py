"""A checkpoint's file is data: it is read once, within its own length, and nothing else is read for it."""

import os
import zipfile

import pytest

from tuner.record.checkpoints import STATE, damage


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
