"""Only what tuner has made is removed, renamed or replaced; and only `made.py` does it."""

import ast
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from killing import killed_at

from tuner.record.storage import made
from tuner.record.storage.files import replacing_folder, write_atomically
from tuner.record.storage.made import RECORD, MadeFolder, remove_made, stale_folders, temporary_folder

ROOT = Path(__file__).parents[2]
ANYWHERE = {
    *("rmtree", "unlink", "renames", "rmdir", "removedirs", "truncate", "ftruncate"),
    *("TemporaryDirectory", "mkdtemp", "NamedTemporaryFile", "mkstemp"),
}
OF_MODULES = {("os", "remove"), ("os", "rename"), ("os", "replace"), ("shutil", "move")}
MAKES = "tuner/record/storage/made.py"


def uses_of(source):
    """The uses in a source text of what removes, renames or truncates, each as (line, name).

    `remove`, `replace`, `rename` and `move` are also methods of lists, texts and Ray's objects: those count when they
    are called with the arguments of a path's method (`rename(x)`, `replace(x)`), or of the modules os and shutil.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in ("os", "shutil", "tempfile"):
            for each in node.names:
                if each.name in ANYWHERE | {name for _, name in OF_MODULES}:
                    yield node.lineno, each.name
        if isinstance(node, ast.Attribute):
            of = node.value.id if isinstance(node.value, ast.Name) else ""
            if node.attr in ANYWHERE or (of, node.attr) in OF_MODULES:
                yield node.lineno, node.attr
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_of_path = len(node.args) == 1 and not node.keywords
            if node.func.attr in ("rename", "replace") and is_of_path:
                yield node.lineno, node.func.attr


@pytest.mark.parametrize(
    "code",
    [
        "shutil.rmtree(x)", "os.unlink(x)", "path.unlink()", "os.remove(x)", "os.rename(a, b)", "path.rename(b)",
        "os.replace(a, b)", "path.replace(b)", "os.renames(a, b)", "shutil.move(a, b)", "os.rmdir(a)", "path.rmdir()",
        "os.removedirs(a)", "os.truncate(a, 0)", "file.truncate(0)", "os.ftruncate(a, 0)", "from shutil import rmtree",
        "tempfile.TemporaryDirectory()", "from tempfile import TemporaryDirectory", "f = shutil.rmtree",
    ],
)  # fmt: skip
def test_each_way_to_remove_is_found(code):
    assert list(uses_of(code))


def test_no_other_module_removes_or_renames():
    """Tests and their helpers may remove what they have made below `tmp_path` or a temporary folder of theirs."""
    found = {
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for folder in ("tuner", "search_spaces")
        for path in (ROOT / folder).rglob("*.py")
        if str(path.relative_to(ROOT)) != MAKES
        for line, name in uses_of(path.read_text())
    }
    assert found == set()


@pytest.fixture
def outside(tmp_path):
    (tmp_path / "outside" / "deep").mkdir(parents=True)
    (tmp_path / "outside" / "deep" / "thesis.tex").write_text("years of work")
    return tmp_path / "outside"


def killed_folder(base):
    """A temporary folder whose process has ended without removing it."""
    return temporary_folder("tuner-", base).path


def test_a_folder_is_removed_whole_but_nothing_behind_its_links(tmp_path, outside):
    (base := tmp_path / "base").mkdir()
    with temporary_folder("tuner-", base) as folder:
        (folder.path / "a" / "b").mkdir(parents=True)
        (folder.path / "a" / "b" / "file").touch()
        (folder.path / "a" / "link").symlink_to(outside)
        os.link(outside / "deep" / "thesis.tex", folder.path / "second name")
        (folder.path / "a" / "b").chmod(0o500)
        (folder.path / "a").chmod(0)
        assert list(stale_folders(base, "tuner-")) == []
    assert os.listdir(base) == [] and (outside / "deep" / "thesis.tex").read_text() == "years of work"


def test_only_a_folder_with_its_own_record_is_stale(tmp_path, outside):
    (base := tmp_path / "base").mkdir()
    stale = killed_folder(base)
    shutil.copytree(stale, base / "tuner-copy")
    (base / "tuner-link").symlink_to(stale)
    (base / "tuner-own").mkdir()
    (base / "tuner-own" / RECORD).symlink_to(stale / RECORD)
    (base / "tuner-empty").mkdir()
    (base / "tuner-file").touch()
    folders = list(stale_folders(base, "tuner-"))
    assert [folder.path for folder in folders] == [stale] and list(stale_folders(base, "tuner-")) == []
    folders[0].remove()
    assert sorted(os.listdir(base)) == [f"tuner-{name}" for name in ("copy", "empty", "file", "link", "own")]


def test_a_folder_that_was_replaced_is_left(tmp_path):
    (base := tmp_path / "base").mkdir()
    folder = temporary_folder("tuner-", base)
    folder.path.rename(tmp_path / "moved")
    folder.path.mkdir()
    folder.remove()
    assert folder.path.exists() and not (tmp_path / "moved" / "file").exists()


def test_a_link_to_a_stale_folder_is_not_followed(tmp_path):
    (tmp_path / "base").mkdir()
    stale = killed_folder(tmp_path)
    (tmp_path / "base" / "tuner-link").symlink_to(stale)
    assert list(stale_folders(tmp_path / "base", "tuner-")) == []


@pytest.mark.parametrize("mode", [0, 0o500])
def test_read_only_folders_are_removed(mode):
    """Root may write everywhere, so that another user does it."""
    base = Path(tempfile.mkdtemp())
    base.chmod(0o777)
    if not os.fork():
        if os.getuid() == 0:
            os.setuid(12345)
        with temporary_folder("tuner-", base) as folder:
            (folder.path / "a").mkdir()
            (folder.path / "a" / "file").touch()
            (folder.path / "a").chmod(mode)
        os._exit(0)
    os.wait()
    left = os.listdir(base)
    shutil.rmtree(base)
    assert left == []


def test_a_forked_process_removes_nothing(tmp_path):
    folder = temporary_folder("tuner-", tmp_path)
    if not os.fork():
        folder.remove()
        os._exit(0)
    os.wait()
    assert folder.path.exists()


def test_a_full_disk_leaves_no_folder(tmp_path, monkeypatch):
    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        patched.setattr(os, "write", lambda *_: 0)
        temporary_folder("tuner-", tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("step", ["open", "write", "fstat"])
@pytest.mark.parametrize("is_users", [False, True], ids=["new", "an empty one of the user's"])
def test_an_interrupt_leaves_no_folder_of_ours_and_an_empty_one_of_the_users(tmp_path, monkeypatch, step, is_users):
    if is_users:
        (tmp_path / "mine").mkdir()
    original = getattr(os, step)

    def interrupted(*arguments, **named):
        if (tmp_path / "mine").exists() and arguments[0] != str(tmp_path):
            monkeypatch.setattr(os, step, original)
            raise KeyboardInterrupt
        return original(*arguments, **named)

    monkeypatch.setattr(os, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        MadeFolder(tmp_path, "mine", "new")
    assert os.listdir(tmp_path) == ["mine"] * is_users and not any(tmp_path.glob("mine/*"))


def test_an_interrupt_leaves_a_folder_that_another_search_has_made(tmp_path, monkeypatch):
    with temporary_folder("tuner-", tmp_path) as other:
        before, original = (other.path / RECORD).read_bytes(), os.listdir

        def interrupted(path):
            monkeypatch.setattr(os, "listdir", original)
            raise KeyboardInterrupt

        (other.path / "kept").touch()
        monkeypatch.setattr(os, "listdir", interrupted)
        with pytest.raises(KeyboardInterrupt):
            MadeFolder(tmp_path, other.path.name, "new")
        assert (other.path / RECORD).read_bytes() == before and (other.path / "kept").exists()


MOUNTS = "mount -t tmpfs none {0} && touch {0}/thesis", "mount --bind {1} {0}"


@pytest.mark.parametrize("mount", MOUNTS)
def test_a_mount_is_not_entered(tmp_path, outside, mount):
    stale = killed_folder(tmp_path)
    (stale / "mounted").mkdir()
    (stale / "file").touch()
    remove = f"import pathlib; from tuner.record.storage.made import *; p = pathlib.Path({str(stale)!r})"
    remove += "; MadeFolder(p.parent, p.name).remove()"
    listed = f"ls -R {stale}/mounted"
    command = f'{mount.format(stale / "mounted", outside)} || exit 9; {sys.executable} -c "{remove}"; {listed}'
    done = subprocess.run(["unshare", "-rm", "sh", "-c", command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 9 or "unshare" in done.stderr:
        pytest.skip(f"this machine allows no mounts: {done.stderr}")
    assert "thesis" in done.stdout and not (stale / "file").exists(), done


def test_a_file_behind_a_link_is_not_removed(tmp_path, outside):
    (tmp_path / "link").symlink_to(outside)
    for path in ("link/deep/thesis.tex", "link/deep"):
        with pytest.raises(OSError):
            remove_made(tmp_path, path)
    (tmp_path / "link2").symlink_to(outside / "deep" / "thesis.tex")
    remove_made(tmp_path, "link2")
    assert (outside / "deep" / "thesis.tex").exists() and not (tmp_path / "link2").is_symlink()


def test_a_file_beside_the_written_one_is_kept(tmp_path):
    own = [tmp_path / f".x.{name}" for name in (os.getpid(), "new", "old")]
    for path in own:
        path.write_text("mine")
    write_atomically(tmp_path / "x", "new")
    assert [path.read_text() for path in own] == ["mine"] * 3 and len(os.listdir(tmp_path)) == 4


@pytest.mark.parametrize("name", [".best.new", ".best.old"])
@pytest.mark.parametrize("in_one_step", [True, False])
def test_own_folders_beside_best_are_kept(tmp_path, name, in_one_step, monkeypatch):
    if not in_one_step:
        monkeypatch.setattr(made, "exchanged", lambda one, other, folder: False)
    (tmp_path / "best").mkdir()
    (tmp_path / name).mkdir()
    (tmp_path / name / "mine").touch()
    try:
        with replacing_folder(tmp_path / "best") as new:
            (new / "a").touch()
    except OSError:
        assert os.listdir(tmp_path / "best") in ([], [RECORD])
    assert (tmp_path / name / "mine").exists() and (tmp_path / "best").is_dir()


def test_a_kill_at_any_step_leaves_a_folder_that_the_next_start_removes_or_an_empty_one(tmp_path):
    def work():
        with temporary_folder("tuner-", tmp_path) as folder:
            (folder.path / "file").touch()

    for step in itertools.count(1):
        if not killed_at(step, work):
            break
        for stale in stale_folders(tmp_path, "tuner-"):
            stale.remove()
        for left in tmp_path.iterdir():
            left.rmdir()
    assert step > 3


def test_a_folder_keeps_its_record_only_where_asked(tmp_path):
    folder = temporary_folder("tuner-", tmp_path)
    folder.take_place("kept")
    folder.keep()
    assert os.listdir(tmp_path / "kept") == [RECORD]
    again = MadeFolder(tmp_path, "kept")
    again.keep(forget=True)
    assert os.listdir(tmp_path / "kept") == []
