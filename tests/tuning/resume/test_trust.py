"""A results folder names code: what is run, what is refused before it is imported, and what `--trust` allows."""

import hashlib
import json
import os
import pickle
import py_compile
import shlex
import shutil
import sys
from dataclasses import replace
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from asking import request_of
from killing import SPACES

import tuner.tuning.driver  # noqa: F401  (first: it sets what ray reads when it is imported)
from tuner import audit, run, train
from tuner.core.events import Report
from tuner.engine.controller.changes import NoAnalysis
from tuner.errors import RequestError
from tuner.record.checkpoints import within
from tuner.record.data_folders import remember
from tuner.record.format import FORMAT
from tuner.record.results import load
from tuner.record.saved_experiment import load_experiment, save_experiment
from tuner.record.storage.lock import only_driver
from tuner.spec.spaces import file_of, find_space
from tuner.tuning import session
from tuner.tuning.answer.best import metrics_in
from tuner.tuning.checks import request as checking
from tuner.tuning.resume.trust import code_of
from tuner.views.commands import resume_command

TINY = SPACES / "tiny.py"
RAN = "from pathlib import Path\nPath({mark!r}).touch()\n"
CONFIG = {"trial": "00000", "epoch": 1, "max_epochs": 1, "seed": 0, "cpus": 1, "gpus": 0}
CONFIG |= {"config": {"lr": 0.1, "batch_size": 4, "width": 2}, "precision": "fp32", "on_oom": "shrink"}
CONFIG |= {"strategy": "single", "workers": 1, "data_dir": "", "space_sha256": "", "format": FORMAT}


@pytest.fixture
def mark(tmp_path):
    """A file that is there once the code of a space has been run."""
    return tmp_path / "ran"


@pytest.fixture
def place(tmp_path, monkeypatch, mark):
    """A working folder with `results/mine`, a search over `space.py`, which has run; its import leaves the mark."""
    monkeypatch.chdir(tmp_path)
    space = tmp_path / "space.py"
    space.write_text(TINY.read_text() + RAN.format(mark=str(mark)))
    folder = begun(tmp_path, "space.py")
    mark.unlink()
    forget("space")
    return folder


def forget(name):
    """Lets a space's file be imported again."""
    for module in [module for module in sys.modules if module.startswith(f"tuner_space_{name}_")]:
        del sys.modules[module]


def begun(tmp_path, name):
    """A search over a space, as it is on disk once it has begun."""
    request = request_of("--space", name, "--name", "mine")
    folder = request.experiment.folder
    (folder / "best").mkdir(parents=True)
    session.open_journal(request).close()
    config = {**CONFIG, "space": name, "space_sha256": request.loaded_space.sha256}
    (folder / "best" / "config.json").write_text(json.dumps(config))
    return folder


def rewritten(folder, facts=lambda facts: facts, **options):
    """Another experiment.json, as whoever makes a hostile folder would write it: whole, with its own sha256."""
    experiment, recorded = load_experiment(folder)
    save_experiment(replace(experiment, **options), folder, facts(recorded))


def edit(path):
    path.write_text(path.read_text() + "# a line more\n")


def belongs_to_another(path, monkeypatch):
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)


COMMANDS = {
    "resume": lambda *more: run.main(["--resume", "mine", "--dry-run", *more]),
    "train": lambda *more: train.main(["results/mine/best/config.json", *more]),
    "train a trial": lambda *more: train.main(["results/mine", "--trial", "00000", *more]),
    "audit": lambda *more: audit.main(["mine", *more]),
}


@pytest.fixture(params=COMMANDS)
def command(request, monkeypatch, place):
    """A command that runs the folder's space; of what it would train, only the import."""
    import tuner.training.data  # noqa: F401

    def only_imports(config, *_):
        find_space(config["space"])

    monkeypatch.setattr(train, "retrain", only_imports)
    monkeypatch.setattr(train, "trial_config", lambda record, _: {
        "space": record.experiment.space, "data_dir": record.experiment.data_dir,
        "space_sha256": record.facts["space"]["sha256"]})  # fmt: skip
    monkeypatch.setattr(audit, "audit", lambda record, *_: find_space(record.experiment.space))
    monkeypatch.setattr(audit, "lines", lambda _, **limited: [])
    return COMMANDS[request.param]


def refused(code, capsys, mark, *words):
    output = capsys.readouterr()
    assert code == 2 and output.err.count("\n") == 1 and output.err.startswith("tuner: error: "), output
    assert not mark.exists(), "the code was run all the same"
    assert all(word in output.err for word in words), output.err


def test_the_file_is_named_before_its_code_is_run(command, mark, capsys):
    assert command() == 0 and mark.exists()
    output = capsys.readouterr()
    assert output.out.startswith(f"code: {Path('space.py').absolute()}\n") and not output.err


def test_code_that_only_the_folder_knows_is_refused_once_it_has_changed(command, mark, capsys):
    edit(Path("space.py"))
    refused(command(), capsys, mark, "space.py, which has changed since the search", "--trust")
    assert command("--trust") == 0 and mark.exists()
    assert "NOTE:" in (output := capsys.readouterr().out) and "has changed since the search" in output


def test_a_folder_of_another_user_is_refused(command, place, mark, capsys, monkeypatch):
    for one in (place, place / "experiment.json", place / "best", place / "best" / "config.json"):
        belongs_to_another(one, monkeypatch)
    refused(command(), capsys, mark, "belongs to user 12345" if os.geteuid() == 0 else "belongs to", "--trust")
    assert command("--trust") == 0 and mark.exists()


@pytest.mark.parametrize("name", ["space.py", "elsewhere/../space.py", "{}/space.py"])
def test_a_space_that_the_user_names_again_is_the_users_own_edit(place, tmp_path, mark, capsys, name):
    (tmp_path / "elsewhere").mkdir()
    edit(Path("space.py"))
    assert COMMANDS["resume"]("--space", name.format(tmp_path)) == 0
    assert mark.exists() and "NOTE:" in capsys.readouterr().out


def test_a_space_is_named_again_from_another_folder_and_another_file_is_refused(elsewhere, mark, capsys):
    assert COMMANDS["resume"]("--space", str(elsewhere.parent / "space.py")) == 0 and mark.exists()
    capsys.readouterr()
    shutil.copy(elsewhere.parent / "space.py", "space.py")
    mark.unlink()
    assert COMMANDS["resume"]("--space", "./space.py") == 2
    assert "--space was 'space.py', now './space.py'; leave these out" in capsys.readouterr().err


def test_a_resume_saves_the_digest_of_an_accepted_edit(place):
    edit(Path("space.py"))
    request = request_of("--resume", "mine", "--space", "space.py")
    save_experiment(request.experiment, place, request.facts)
    assert COMMANDS["resume"]() == 0  # without the space's name


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["-m", "tuner.run", "--space", "typo.py"], 2),
        (["-m", "tuner.run", "--space", "typo.py", "--metric", "los"], 0),
        (["-m", "tuner.run", "--space", "typo.py", "--metric=los"], 0),
        (["script.py"], 0),  # which may have given `metric=`
    ],
)
def test_a_changed_metric_is_refused_unless_an_option_named_it(tmp_path, monkeypatch, capsys, command, code):
    monkeypatch.chdir(tmp_path)
    text = "from ray import tune\nfrom tuner.space import Space\ndef train(config):\n    tune.report({'los': 1.0})\n"
    text += "space = Space(params={'lr': tune.uniform(0, 1)}, train=train, metric='METRIC', mode='min')\n"
    Path("typo.py").write_text(text.replace("METRIC", "los"))
    rewritten(begun(tmp_path, "typo.py"), lambda facts: {**facts, "command": ["python", *command]})
    Path("typo.py").write_text(text.replace("METRIC", "loss"))
    forget("typo")
    assert COMMANDS["resume"]("--space", "typo.py") == code
    err = capsys.readouterr().err
    assert ("the space's metric was 'los', now 'loss'; change it back, or start anew with --name" in err) == bool(code)


@pytest.mark.parametrize("space", ["results/mine/evil.py", "results.mine.evil", "results.evil", "sub.folder.evil"])
def test_what_lies_in_the_folder_or_below_here_is_no_module_of_the_users(place, mark, capsys, space, monkeypatch):
    monkeypatch.syspath_prepend(Path.cwd())  # as `python -m` does
    path = Path(space if space.endswith(".py") else space.replace(".", "/") + ".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(RAN.format(mark=str(mark)))
    assert file_of(space) == path.absolute()
    rewritten(place, space=space)
    refused(COMMANDS["resume"](), capsys, mark, "--trust")


def test_a_file_beside_the_experiment_in_the_results_is_refused_too(command, place, mark, capsys):
    """One archive may bring an experiment's folder and the code that it names."""
    shutil.copytree(place, "results/other")
    shutil.copy("space.py", "results/other/space.py")
    rewritten(place, space="results/other/space.py")
    config = json.loads((place / "best" / "config.json").read_text())
    (place / "best" / "config.json").write_text(json.dumps({**config, "space": "results/other/space.py"}))
    refused(command(), capsys, mark, "results/other/space.py, which lies in the folder of results", "--trust")


def test_the_packages_that_run_before_a_module_are_named(tmp_path, monkeypatch, place):
    package = tmp_path / "outer" / "inner"
    package.mkdir(parents=True)
    for name in ("outer/__init__.py", "outer/inner/__init__.py"):
        (tmp_path / name).touch()
    shutil.copy("space.py", package / "good.py")
    monkeypatch.syspath_prepend(tmp_path)
    sha256 = hashlib.sha256((package / "good.py").read_bytes()).hexdigest()
    _, (line,) = code_of(place, ["experiment.json"], "outer.inner.good", sha256)
    files = ("outer/inner/good.py", "outer/__init__.py", "outer/inner/__init__.py")
    assert line == "code: " + ", ".join(str(tmp_path / name) for name in files)


def test_a_module_that_is_not_found_is_refused_before_the_packages_around_it_are_imported(place):
    with pytest.raises(RequestError, match="names the module gone.space, which is not found"):
        code_of(place, ["experiment.json"], "gone.space", "")
    assert code_of(place, ["experiment.json"], "gone.space", "", named_now=True) == ("gone.space", [])
    assert code_of(place, ["experiment.json"], "gone", "") == ("gone", [])


@pytest.fixture
def elsewhere(place, tmp_path, monkeypatch):
    """Another working folder, in which the same `results` are seen; the space's relative path is not there."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "results").symlink_to(tmp_path / "results")
    monkeypatch.chdir(folder)
    return folder


def test_a_relative_space_is_found_by_its_recorded_path_from_another_folder(command, elsewhere, place, mark, capsys):
    before = load_experiment(place)
    assert command() == 0 and mark.exists()
    assert capsys.readouterr().out.startswith(f"code: {elsewhere.parent / 'space.py'}\n")
    assert load_experiment(place) == before


def test_a_recorded_file_that_has_changed_is_refused_and_one_that_is_gone_is_named(command, elsewhere, mark, capsys):
    space = elsewhere.parent / "space.py"
    edit(space)
    refused(command(), capsys, mark, f"{space}, which has changed since the search", "--trust")
    space.unlink()
    gone = f"the space space.py is not in {elsewhere}, and its file in the search, {space}, is"
    refused(command(), capsys, mark, gone, "run this in the folder that has space.py, or give space= in Python")


def test_a_recorded_file_in_the_results_is_refused(command, elsewhere, place, mark, capsys):
    evil = elsewhere.parent / "results" / "mine" / "space.py"
    (elsewhere.parent / "space.py").rename(evil)
    rewritten(place, lambda facts: {**facts, "space": {**facts["space"], "path": str(evil)}})
    refused(command(), capsys, mark, f"{place / 'experiment.json'} names {evil}, which lies in the folder of results")


@pytest.mark.parametrize("path", ["../space.py", 3, "/etc/passwd", "/\0.py", f"/{'x' * 5000}.py"])
def test_a_recorded_path_that_is_no_file_of_python_is_ignored(elsewhere, place, mark, capsys, path):
    rewritten(place, lambda facts: {**facts, "space": {**facts["space"], "path": path}})
    refused(COMMANDS["resume"](), capsys, mark, "the space space.py is not in", "give space= in Python")


def test_an_experiment_is_resumed_from_its_copy_which_belongs_to_the_user_too(place, mark, capsys, monkeypatch):
    (place / "experiment.json").rename(place / ".experiment.json.copy")
    assert COMMANDS["resume"]() == 0 and mark.exists()
    mark.unlink()
    belongs_to_another(place / ".experiment.json.copy", monkeypatch)
    refused(COMMANDS["resume"](), capsys, mark, "belongs to", "--trust")


def test_a_space_without_an_end_is_refused_in_one_line(command, place, mark, capsys):
    os.truncate("space.py", 300 << 30)
    refused(command(), capsys, mark, "space.py, which cannot be read")


def test_compiled_code_beside_a_space_is_not_run(place, mark, tmp_path):
    evil = tmp_path / "evil.py"
    evil.write_text(RAN.format(mark=str(tmp_path / "compiled")))
    compiled, unchecked = cache_from_source(str(file_of("space.py"))), py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(evil), compiled, invalidation_mode=unchecked)
    edit(Path("space.py"))
    find_space("space.py")
    assert mark.exists() and not (tmp_path / "compiled").exists()


def test_a_cluster_that_only_the_folder_names_is_not_joined(place, capsys, monkeypatch, mark):
    asked = []
    monkeypatch.setattr(checking, "check_head", asked.append)
    rewritten(place, address="198.51.100.7:6379")
    refused(COMMANDS["resume"](), capsys, mark, "names the cluster 198.51.100.7:6379")
    assert not asked
    assert COMMANDS["resume"]("--address", "198.51.100.7:6379") == 0 and asked == ["198.51.100.7:6379"]
    assert COMMANDS["resume"]("--trust") == 0 and COMMANDS["resume"]("--address", "auto") == 0


@pytest.mark.parametrize("data_dir", ["/etc", "../data", "data/../../x", "results/mine/ray", "/\0"])
def test_a_data_folder_that_only_the_folder_names_is_not_read(command, place, mark, capsys, data_dir):
    rewritten(place, data_dir=data_dir)
    config = place / "best" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "data_dir": data_dir}))
    refused(command(), capsys, mark, "names the data folder ", "which no search of yours has read here", "--trust")
    if data_dir != "/\0":
        assert command is not COMMANDS["resume"] or command("--data-dir", data_dir) == 0
        assert command("--trust") == 0
        remember(data_dir)  # a new search has read it
        assert command() == 0


def test_a_search_whose_data_folder_the_user_named_is_resumed_without_naming_it_again(search_here, tmp_path):
    (tmp_path / "data").mkdir()
    options = ["--max-epochs", "1", "--no-preflight", "--data-dir", str(tmp_path / "data")]
    assert search_here("tiny.py", "--num-samples", "1", *options).code == 0
    ran = search_here("", "--resume", "test", "--num-samples", "2")
    assert ran.code == 0 and len(ran.record.trials) == 2


def test_a_data_folder_below_the_working_folder_is_read(command, place, mark):
    rewritten(place, data_dir="data/images")
    config = place / "best" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "data_dir": "data/images"}))
    assert command() == 0 and mark.exists()


def test_the_printed_command_names_a_data_folder_elsewhere(place, capsys):
    for data_dir, given in (("/my data", " --data-dir '/my data'"), ("data", "")):
        rewritten(place, data_dir=data_dir)
        text = resume_command(load(place))
        assert text.endswith(f"tuner.run --resume mine{given}")
        words = shlex.split(text)
        assert run.main([*words[words.index("tuner.run") + 1 :], "--dry-run"]) == 0
    own = replace(load(place).experiment, space="__main__:space", data_dir="/my data")
    assert resume_command(replace(load(place), experiment=own)) == (
        "tuner.search(space, resume='mine', data_dir='/my data')"
    )


def test_a_link_in_the_folder_is_not_written_through(place, tmp_path, mark, capsys):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (place / "ray" / "00000").mkdir(parents=True)
    outside = {"ray/00001": tmp_path, "ray/00000/files": tmp_path, "data": tmp_path, "ray/00000/stdout": precious}
    outside |= dict.fromkeys([".driver", "wandb.log", "best.bak", "best/model.pt"], precious)
    for name, target in outside.items():
        (place / name).symlink_to(target)
        for command in ("resume", "audit"):
            refused(COMMANDS[command](), capsys, mark, name, "is a link")
        (place / name).unlink()
    (place / "ray" / "latest").symlink_to(place / "ray" / "00000")
    (place / "wandb").mkdir()
    (place / "wandb" / "latest-run").symlink_to(tmp_path)  # W&B's own, which it replaces
    assert COMMANDS["resume"]() == 0
    (place / ".driver").symlink_to(precious)
    with only_driver(place):
        assert precious.read_text() == "mine" and "process" in (place / ".driver").read_text()


@pytest.mark.parametrize("name", ["/home", "..", "../../x_1", "ray/../../x_1", "ray/link/1"])
def test_a_checkpoint_elsewhere_is_none(tmp_path, name):
    (tmp_path / "mine" / "ray").mkdir(parents=True)
    (tmp_path / "mine" / "ray" / "link").symlink_to(tmp_path)
    with pytest.raises(RequestError, match="not in its folder ray"):
        within(tmp_path / "mine", name)
    assert within(tmp_path / "mine", "ray/00000/checkpoint_000000").name == "checkpoint_000000"


class Payload(str):
    """Makes the folder that it names when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, (str(self),)


def test_a_snapshot_of_rays_in_the_folder_is_not_unpickled(tmp_path, mark):
    """Ray reads the newest one where a session ended before its first trial."""
    evil = {"_type": "CLOUDPICKLE_FALLBACK", "value": pickle.dumps(Payload(mark)).hex()}
    newest = tmp_path / "experiment_state-2999-01-01_00-00-00.json"
    newest.write_text(json.dumps({"trial_data": [], "x": evil}))
    assert NoAnalysis(experiment_checkpoint_path=str(tmp_path), trials=[]).trials == [] and not mark.exists()


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.write_text("[" * 200_000), lambda path: path.mkdir()])
def test_a_setting_that_is_no_file_of_json_is_named_in_one_line(tmp_path, make, capsys):
    make(tmp_path / "config.json")
    report = Report(1, {}, None, 1.0)
    assert train.main([str(tmp_path / "config.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and metrics_in(tmp_path, report) is None


WRONG = {"seed": "\x1b]0;title\x07", "strategy": "x", "config": "x", "cpus": 1e12, "workers": 100_000}
WRONG |= {"epoch": None, "space": 3, "data_dir": 3}


@pytest.mark.parametrize(("field", "value"), WRONG.items())
def test_a_field_that_no_search_can_have_is_named_in_one_line(tmp_path, field, value, capsys):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "space": "quadratic", field: value}))
    assert train.main([str(tmp_path / "config.json")]) == 2
    output = capsys.readouterr().err
    assert output.count("\n") == 1 and output[:-1].isprintable() and "give the best/config.json" in output
