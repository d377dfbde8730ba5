"""Results in an object store: mirrored from a working copy, brought back where that is gone; then in a real S3."""

import errno
import filecmp
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from journals import read

from tuner.errors import RequestError
from tuner.record.storage import object_store
from tuner.record.storage.object_store import JOURNAL, ObjectStore, Uploader, files_of
from tuner.spec.experiment import is_uri, local_root

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path):
    """A store that pyarrow opens by its URI, as it does S3's."""
    (tmp_path / "store").mkdir()
    return ObjectStore(f"file://{tmp_path}/store")


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "copy" / "mine"
    (made / "ray" / "00000" / "checkpoint_000000").mkdir(parents=True)
    (made / JOURNAL).write_text("one\n")
    (made / "ray" / "00000" / "checkpoint_000000" / "state.pt").write_bytes(b"weights")
    (made / ".lock").touch()
    return made


def test_a_folder_is_its_own_working_copy_and_a_uri_has_one_in_the_cache(tmp_path):
    assert not is_uri("results") and not is_uri("/a/b") and is_uri("s3://b/x") and is_uri("gs://b")
    assert local_root("a/b") == Path("a/b")
    assert local_root("s3://b/x") == local_root("s3://b/x/") != local_root("s3://b/y")
    assert local_root("s3://b/x").is_relative_to(os.environ["TUNER_CACHE"])


def test_the_store_gets_what_the_folder_gets_and_loses_what_it_loses(store, folder, tmp_path):
    uploader = Uploader(store, "mine", folder)
    assert uploader.pushed()
    there = tmp_path / "store" / "mine"
    assert set(files_of(there)) == {JOURNAL, "ray/00000/checkpoint_000000/state.pt"}
    with open(folder / JOURNAL, "a") as file:
        file.write("two\n")
    shutil.rmtree(folder / "ray" / "00000" / "checkpoint_000000")
    assert uploader.pushed()
    assert set(files_of(there)) == {JOURNAL} and (there / JOURNAL).read_text() == "one\ntwo\n"
    assert store.names() == ["mine"]


def test_a_store_that_fails_is_tried_again_and_told_of(folder, monkeypatch, caplog):
    class Failing:
        uri = "s3://b"

        def upload(self, name, relative, content):
            raise OSError("AWS Error NETWORK_CONNECTION")

    monkeypatch.setattr(object_store, "LAST_TRIES_S", 0)
    with Uploader(Failing(), "mine", folder):
        pass
    assert "AWS Error NETWORK_CONNECTION" in caplog.text and "--resume mine uploads it" in caplog.text


def test_a_working_copy_that_is_gone_or_behind_is_brought_back_and_one_that_is_ahead_stays(store, folder, tmp_path):
    (folder / JOURNAL).write_text("one\ntwo\n")
    Uploader(store, "mine", folder).pushed()
    elsewhere = tmp_path / "elsewhere"
    state, longer = elsewhere / "ray/00000/checkpoint_000000/state.pt", "one\ntwo\nthree\n"
    for before, after in ((None, "one\ntwo\n"), ("", "one\ntwo\n"), ("one\n", "one\ntwo\n"), (longer, longer)):
        if before is not None:
            (elsewhere / JOURNAL).write_text(before)
            state.write_bytes(b"own")
        store.bring("mine", elsewhere)
        assert files_of(elsewhere).keys() == files_of(tmp_path / "store" / "mine").keys()
        assert (elsewhere / JOURNAL).read_text() == after
        assert state.read_bytes() == (b"own" if before == after else b"weights")
    (elsewhere / JOURNAL).write_text("other\n")
    with pytest.raises(RequestError, match="went different ways"):
        store.bring("mine", elsewhere)


def test_an_interrupted_download_is_repeated(store, folder, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    Uploader(store, "mine", folder).pushed()
    whole = store.filesystem

    class Broken:
        def __getattr__(self, name):
            return getattr(whole, name)

        def open_input_stream(self, path):
            if path.endswith("state.pt"):
                raise OSError("connection reset")
            return whole.open_input_stream(path)

    listed = sorted(store._entries(store.path("mine"), recursive=True), key=lambda entry: entry.path)  # as S3 does
    monkeypatch.setattr(store, "_entries", lambda path, recursive: listed)
    store.filesystem = Broken()
    with pytest.raises(RequestError, match="cannot be read .connection reset"):
        store.bring("mine", elsewhere)
    store.filesystem = whole
    store.bring("mine", elsewhere)
    assert files_of(elsewhere).keys() == files_of(tmp_path / "store" / "mine").keys()


def test_a_name_in_the_store_leads_to_no_file_elsewhere(store, folder, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    Uploader(store, "mine", folder).pushed()
    (tmp_path / "store" / "outside").write_text("theirs")
    entry = store.filesystem.get_file_info(store.path("outside"))
    hostile = SimpleNamespace(type=entry.type, path=store.path("mine") + "/../outside")  # as a key in S3 may be
    monkeypatch.setattr(store, "_entries", lambda path, recursive: [hostile])
    with pytest.raises(RequestError, match="'../outside' outside its folder"):
        store.bring("mine", elsewhere)
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("link", ["", "ray", "ray/00000/checkpoint_000000", "ray/00000/checkpoint_000000/state.pt"])
def test_a_download_writes_through_no_link(store, folder, tmp_path, link):
    elsewhere, theirs = tmp_path / "elsewhere", tmp_path / "theirs"
    Uploader(store, "mine", folder).pushed()
    theirs.mkdir()
    (theirs / "state.pt").write_text("theirs")
    (elsewhere / link).parent.mkdir(parents=True, exist_ok=True)
    (elsewhere / link).symlink_to(theirs / "state.pt" if link.endswith(".pt") else theirs)
    if link.endswith(".pt"):
        store.bring("mine", elsewhere)  # replaces the link itself
        assert (elsewhere / link).read_bytes() == b"weights" and not (elsewhere / link).is_symlink()
    else:
        with pytest.raises(RequestError, match="a folder above it is a link.*; move it away"):
            store.bring("mine", elsewhere)
    assert [(each.name, each.read_text()) for each in theirs.iterdir()] == [("state.pt", "theirs")]


def test_a_hostile_name_of_an_experiment_is_none(store, folder, monkeypatch):
    Uploader(store, "mine", folder).pushed()
    entries = store._entries
    up = SimpleNamespace(type=SimpleNamespace(name="Directory"), base_name="..", path=f"{store.root}/mine/..")
    monkeypatch.setattr(store, "_entries", lambda path, recursive: [up, *entries(path, recursive=recursive)])
    monkeypatch.setattr(store, "root", store.path("mine"))  # `..` has a journal below: `mine`'s own
    (Path(store.root).parent / JOURNAL).write_text("one\n")
    assert store.names() == []


def test_other_keys_of_the_store_are_kept(store, folder, tmp_path):
    theirs = [
        tmp_path / "store" / name for name in ("mine/own.txt", "mine/best/own.txt", "other/a", ".tuner-1", "mine2")
    ]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("theirs")
    with pytest.raises(RequestError, match="--name mine: .*store/mine already exists; give another name"):
        store.check("mine")
    with pytest.raises(RequestError, match="--name mine2: .*store/mine2 already exists; give another name"):
        store.check("mine2")
    store.check("new")
    uploader = Uploader(store, "mine", folder)
    assert uploader.pushed()
    shutil.rmtree(folder / "ray")
    assert uploader.pushed() and not (tmp_path / "store/mine/ray/00000/checkpoint_000000/state.pt").exists()
    assert [path.read_text() for path in theirs] == ["theirs"] * len(theirs)
    with pytest.raises(RequestError, match="already exists; continue it with --resume mine, or give another name"):
        store.check("mine")


@pytest.mark.parametrize("name", ["test", ""])
def test_a_new_search_never_takes_a_name_that_the_store_has(search_here, store, tmp_path, monkeypatch, name):
    monkeypatch.setattr("time.strftime", lambda form, *when: "now")
    theirs, beside = tmp_path / "store" / (name or "tiny-now"), local_root(store.uri).parent / "other" / "own.txt"
    for path in (theirs / "report.html", theirs / "best" / "README.md", beside):
        path.parent.mkdir(parents=True)
        path.write_text("theirs")
    before = files_of(tmp_path / "store")
    ran = search_here("tiny.py", "--results", store.uri, "--num-samples", "1", name=name)
    assert ran.code == 2 and f"{theirs} already exists; give another name" in ran.err
    assert files_of(tmp_path / "store") == before and beside.read_text() == "theirs"
    assert not local_root(store.uri).exists()


def test_no_journal_names_a_checkpoint_that_could_not_be_read(store, folder, tmp_path, monkeypatch):
    class Unreadable(io.BytesIO):
        def read(self, size=-1):
            raise OSError(errno.EIO, "Input/output error")

    def opened(path, mode):
        return Unreadable() if path.suffix == ".pt" else open(path, mode)

    monkeypatch.setattr(object_store, "open", opened, raising=False)
    uploader = Uploader(store, "mine", folder)
    assert not uploader.pushed() and not store.read("mine", JOURNAL)
    monkeypatch.undo()
    assert uploader.pushed() and store.read("mine", "ray/00000/checkpoint_000000/state.pt") == b"weights"
    assert store.read("mine", JOURNAL) == b"one\n"


@pytest.mark.parametrize("when", ["before the list", "during an upload"])
def test_no_journal_names_a_checkpoint_that_was_saved_during_the_upload(store, folder, monkeypatch, when):
    new = folder / "ray" / "00000" / "checkpoint_000001" / "state.pt"

    def save():
        if not new.exists():
            new.parent.mkdir()
            new.write_bytes(b"more")
            with open(folder / JOURNAL, "a") as file:
                file.write("two\n")

    class Busy(ObjectStore):
        def upload(self, name, relative, content):
            save()
            super().upload(name, relative, content)

    walk, class_ = os.walk, Busy if when == "during an upload" else ObjectStore
    if class_ is ObjectStore:  # the journal is measured, then a checkpoint is saved, then the files are listed
        monkeypatch.setattr(os, "walk", lambda path: save() or walk(path))
    store = class_(store.uri)
    uploader = Uploader(store, "mine", folder)
    assert uploader.pushed() and store.read("mine", JOURNAL) == b"one\n"
    assert uploader.pushed() and store.read("mine", JOURNAL) == b"one\ntwo\n"
    assert store.read("mine", "ray/00000/checkpoint_000001/state.pt") == b"more"


def test_a_search_leaves_all_of_it_in_the_store_and_goes_on_where_its_working_copy_is_gone(
    search_here, store, tmp_path
):
    uri = store.uri
    ran = search_here("tiny.py", "--results", uri, "--num-samples", "3", "--max-epochs", "2", "--seed", "3")
    assert ran.code == 0, ran.err
    assert f"{uri}/test, working copy" in ran.out
    there = tmp_path / "store" / "test"
    assert {"best/model.pt", "trials.csv", "report.html", "experiment.json", JOURNAL} <= files_of(there).keys()
    known = read(there / JOURNAL)
    shutil.rmtree(local_root(uri))
    ran = search_here(None, "--resume", "latest", "--results", uri, "--num-samples", "5")
    assert ran.code == 0, ran.err
    assert "resumed: 0 trials continue, 3 done" in ran.out
    events = read(there / JOURNAL)
    assert events[: len(known)] == known
    assert sum(event["event"] == "trial_suggested" for event in events) == 5
    again = search_here("tiny.py", "--results", uri)
    assert again.code == 2 and "test already exists; continue it with --resume test" in again.err


@pytest.fixture(scope="module")
def s3():
    """A bucket of a real S3 server, moto's, in an environment of its own: its requirements are not Ray's."""
    if shutil.which("uv") is None:
        pytest.skip("uv, which brings moto's server, is not here")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["uv", "tool", "run", "--from", "moto[server]>=5,<6", "moto_server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ.update(keys | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"})
    try:
        deadline = time.monotonic() + 120
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert time.monotonic() < deadline and server.poll() is None, "moto's server did not start"
            time.sleep(0.2)
        ObjectStore("s3://bucket/tuner?allow_bucket_creation=true").filesystem.create_dir("bucket")
        yield "s3://bucket/tuner"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()
        for name in (*keys, "AWS_ENDPOINT_URL"):
            del os.environ[name]


def command(*argv, wait=True):
    words = [sys.executable, "-m", "tuner.run", "--wandb", "disabled", *argv]
    started = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return (started.communicate()[0], started.returncode) if wait else started


@pytest.mark.slow
def test_a_search_in_s3_is_killed_and_goes_on_on_another_machine(s3, tmp_path):
    space = "--space tests/spaces/tiny.py:slow --num-samples 4 --max-epochs 4 --max-concurrent-trials 1".split()
    whole, code = command(*space, "--results", str(tmp_path), "--name", "whole")
    assert code == 0, whole
    killed = command(*space, "--results", s3, "--name", "mine", wait=False)
    store, deadline = ObjectStore(s3), time.monotonic() + 120
    while store.read("mine", JOURNAL).count(b'"event": "report"') < 5 and time.monotonic() < deadline:
        time.sleep(0.2)
    killed.kill()
    killed.communicate()
    shutil.rmtree(local_root(s3))  # as another machine has it
    output, code = command("--resume", "latest", "--results", s3)
    assert code == 0, output

    def curves(folder):  # a set: epochs whose checkpoint was not uploaded yet are trained again, with the same result
        events = [event for event in read(folder / JOURNAL) if event["event"] == "report"]
        return {(event["trial"], event["epoch"], event["metrics"]["loss"]) for event in events}

    assert curves(local_root(s3) / "mine") == curves(tmp_path / "whole")
    assert store.read("mine", JOURNAL) == (local_root(s3) / "mine" / JOURNAL).read_bytes()
    assert store.read("mine", "best/model.pt")


GROWTH = """
import resource, sys
from pathlib import Path
from tuner.record.storage.object_store import ObjectStore, Uploader
store = ObjectStore(sys.argv[1])
store.names()  # loads the SDK
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if sys.argv[2] == "up":
    assert Uploader(store, "large", Path(sys.argv[3])).pushed()
else:
    store.bring("large", Path(sys.argv[3]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before >> 10)
"""


@pytest.mark.slow
def test_a_large_checkpoint_passes_through_little_memory(s3, tmp_path):
    folder, downloaded = tmp_path / "large", tmp_path / "downloaded"
    folder.mkdir()
    (folder / JOURNAL).write_text("one\n")
    (folder / "state.pt").write_bytes(os.urandom(400 << 20))
    for what, where in (("up", folder), ("down", downloaded)):
        words = [sys.executable, "-c", GROWTH, s3, what, str(where)]
        ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        assert ran.returncode == 0 and int(ran.stdout) < 200, ran
    assert filecmp.cmp(folder / "state.pt", downloaded / "state.pt", shallow=False)


@pytest.mark.slow
def test_a_bucket_that_is_not_there_is_refused_in_one_line(s3):
    output, code = command("--space", "quadratic", "--results", "s3://nowhere/x")
    (line,) = [line for line in output.splitlines() if "s3://nowhere" in line]
    assert code == 2 and "check the address, the bucket and the credentials" in line
