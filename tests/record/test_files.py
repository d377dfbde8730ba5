"""Files that anybody may have written: what is opened, how much is read, and what is no JSON."""

import errno
import io
import itertools
import json
import math
import os
import socket
import tempfile
from pathlib import Path

import pytest
from killing import killed_at

from tuner.record.storage import files, made
from tuner.record.storage.files import (
    bytes_in,
    json_in,
    lines_of,
    open_in,
    parsed,
    replacing_folder,
    sync_all,
    why_unsafe,
    write_atomically,
)


def socket_at(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


NO_FILES = {
    "a pipe": os.mkfifo,
    "a folder": lambda path: path.mkdir(),
    "a socket": socket_at,
    "a link": lambda path: path.symlink_to("/etc/hostname"),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("kind", NO_FILES)
def test_only_a_regular_file_is_opened_and_nobody_is_waited_for(tmp_path, kind):
    NO_FILES[kind](tmp_path / "x")
    with pytest.raises(OSError, match="no regular file"):
        open_in(tmp_path, "x")


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/hostname", "", "linked/x", "a\x00b"])
def test_a_name_leads_nowhere_else(tmp_path, name):
    folder = tmp_path / "folder"
    (folder / "a").mkdir(parents=True)
    (tmp_path / "x").write_text("secret")
    (folder / "linked").symlink_to(tmp_path)
    with pytest.raises((OSError, ValueError)):
        open_in(folder, name)


def test_a_folder_may_itself_be_reached_by_a_link(tmp_path):
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "real" / "inner" / "x").write_text("1")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert json_in(tmp_path / "link", "inner/x") == 1


def test_a_long_file_is_not_read_whole(tmp_path):
    with open(tmp_path / "x", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="longer than 1,000 bytes"):
        bytes_in(tmp_path, "x", 1000)


@pytest.mark.parametrize(
    "text",
    [b"[" * 200_000, b'{"a":' * 100_000, b"[" * 330 + b"]" * 330, b'{"a": 1' + b"0" * 400 + b"}", b"9" * 5000, b"\xff"],
)
def test_json_that_would_be_too_much_is_refused(text):
    with pytest.raises(ValueError):
        parsed(text)


def test_other_json_is_read():
    numbers = parsed(b'{"a": [NaN, Infinity, 1e400, 12345678901234567890]}')["a"]
    assert math.isnan(numbers[0])
    assert numbers[1:] == [math.inf, math.inf, 12345678901234567890]
    deep = json.loads("[" * 310 + "]" * 310)
    assert parsed(json.dumps(deep).encode()) == deep


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_lines_come_whole_whatever_the_slices(monkeypatch, chunk):
    monkeypatch.setattr(files, "CHUNK_BYTES", chunk)
    content = b"one\n\ntwo and more\nthree\nhalf"
    assert [line for lines in lines_of(io.BytesIO(content)) for line in lines] == content.split(b"\n")[:-1]


def test_a_line_without_an_end_is_given_up_at_its_bound():
    class Endless(io.RawIOBase):
        asked = 0

        def read(self, size=-1):
            self.asked += 1
            return b"a" * size

    file = Endless()
    with pytest.raises(ValueError, match="longer than"):
        list(lines_of(file))
    assert file.asked <= files.MOST_BYTES // files.CHUNK_BYTES + 1


def test_what_is_written_follows_no_link(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / f".x.{os.getpid()}").symlink_to(tmp_path / "mine")
    (tmp_path / "x").symlink_to(tmp_path / "mine")
    write_atomically(tmp_path / "x", "new")
    assert (tmp_path / "mine").read_text() == "mine" and (tmp_path / "x").read_text() == "new"
    assert not (tmp_path / "x").is_symlink()


def test_values_that_take_far_more_memory_than_text_are_refused_before_they_are_parsed(tmp_path):
    (tmp_path / "dense.json").write_bytes(b"[" + b"[]," * (2 << 20) + b"[]]")
    with pytest.raises(ValueError, match="too many values"):
        json_in(tmp_path, "dense.json")


@pytest.mark.parametrize("in_one_step", [True, False])
def test_a_crash_at_any_step_leaves_the_old_folder_or_the_new(tmp_path, monkeypatch, in_one_step):
    """Without the step that exchanges two folders, a crash may leave none; the next replacement finds the old one."""
    best, contents = tmp_path / "best", {"old": ["old"] * 2, "new": ["new"] * 2}
    if not in_one_step:
        monkeypatch.setattr(made, "exchanged", lambda one, other, folder: False)

    def write(text):
        with replacing_folder(best) as folder:
            (folder / "checkpoint").mkdir()
            for name in ("a", "checkpoint/b"):
                (folder / name).write_text(text)

    def content():
        return [(best / name).read_text() for name in ("a", "checkpoint/b")] if best.exists() else None

    seen = []
    for step in itertools.count(1):
        write("old")
        if not killed_at(step, lambda: write("new")):
            break
        seen.append(content())
        with pytest.raises(ZeroDivisionError), replacing_folder(best):
            found = content()
            1 / 0  # noqa: B018
        assert found in contents.values() and (seen[-1] is None or found == seen[-1])
        assert content() == found and os.listdir(tmp_path) == ["best"]
    assert content() == ["new"] * 2 and os.listdir(tmp_path) == ["best"]
    assert contents["old"] in seen and contents["new"] in seen and (None in seen) is not in_one_step


def test_a_file_system_that_cannot_sync_is_told_and_not_asked_again(tmp_path, monkeypatch):
    assert not why_unsafe(tmp_path) or "tmpfs" in why_unsafe(tmp_path)

    def fails(number):
        def fsync(handle):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fsync)

    fails(errno.EINVAL)
    assert why_unsafe(tmp_path) == "its file system cannot sync (Invalid argument)"
    write_atomically(tmp_path / "file", "content")
    fails(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        write_atomically(tmp_path / "file", "other")
    assert (tmp_path / "file").read_text() == "content"


def test_what_lies_in_memory_is_told():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        assert why_unsafe(Path(folder)) == "its file system (tmpfs) keeps files in memory"


def test_everything_in_a_folder_is_synced_but_links_and_pipes(tmp_path, monkeypatch):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "file").touch()
    (tmp_path / "link").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))
    sync_all(tmp_path)
    assert sorted(synced) == [str(tmp_path / path) for path in ("", "deep", "deep/er", "deep/file")]
