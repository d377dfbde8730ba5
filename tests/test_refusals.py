"""Wrong requests: exit code 2 and one line that says what was given, what is allowed and what to do; no Ray is left."""

import contextlib
import io
import itertools
import os
import shutil
import socket
from collections import Counter
from pathlib import Path

import pytest
from asking import request_of
from crashing import killed_at

from tuner import audit, gpus, report, run, train
from tuner.errors import RequestError
from tuner.serve import __main__ as serve
from tuner.spec import spaces
from tuner.tuning import session
from tuner.tuning.checks.data import load_data

SPACES = Path(__file__).parent / "spaces"
TINY = str(SPACES / "tiny.py")
HEAD = "from ray import tune\nfrom tuner.space import Space\ntrain = print\n"


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Runs a command line that must be refused; gives the text of its one line."""
    import ray

    from tuner.tuning import driver

    def start(*args, **kwargs):
        pytest.fail("Ray was started for a wrong request")

    running = []

    @contextlib.contextmanager
    def ray_here(*args):
        running.append(args)
        try:
            yield
        finally:
            running.pop()

    monkeypatch.setattr(ray, "init", start)
    monkeypatch.setattr(driver, "ray_here", ray_here)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(SPACES)
    (tmp_path / "empty").mkdir()

    def command(*argv):
        before = sorted(tmp_path.rglob("*"))
        code = run.main([argument.replace("TMP", str(tmp_path)) for argument in argv])
        message = capsys.readouterr()
        assert code == 2 and not running
        assert message.err.startswith("tuner: error: ") and message.err.count("\n") == 1, message.err
        assert "Traceback" not in message.out + message.err
        left = [path for path in sorted(tmp_path.rglob("*")) if path not in before and "__pycache__" not in path.parts]
        assert [path for path in left if path != tmp_path / "results"] == [], "a refused request left files"
        return message.err.removeprefix("tuner: error: ").strip()

    return command


@pytest.mark.parametrize(
    ("main", "argv", "message"),
    [
        (report, ["nothing"], "no experiment 'nothing': no such folder TMP/results; change to the folder in which"),
        (report, ["nothing", "--results", "."], "no experiment 'nothing' in TMP; this folder has no experiments"),
        (run, ["--resume", "results/x"], "no such folder TMP/results/results; change to the folder in which"),
        (train, ["results/x", "--trial", "1"], "no experiment 'x': no such folder TMP/results; change to the folder"),
        (train, ["x/best/config.json"], "x/best/config.json: no such file TMP/x/best/config.json; give"),
        (report, [], "give NAME (see --help)"),
        (audit, ["x", "--trials", "many"], "--trials many: must be a whole number (see --help)"),
        (audit, ["x", "--trials", "3", "--tri=4"], "--trials is given twice, with 3 and with 4: give it once"),
        (serve, ["--port", "1", "--port", "2"], "--port is given twice, with 1 and with 2: give it once"),
        (gpus, ["--wach"], "--wach: is no option of this command (see --help)"),
    ],
)
def test_the_other_commands_answer_in_one_line(main, argv, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main.main(argv) == 2
    err = capsys.readouterr().err
    assert message.replace("TMP", str(tmp_path)) in err and err.startswith("tuner: error: ") and err.count("\n") == 1


OPTIONS = [
    (["--num-samples", "0"], "--num-samples 0: must be 1 or more"),
    (["--num-samples", "2.5"], "--num-samples 2.5: must be a whole number"),
    (["--num-samples"], "--num-samples: needs a value"),
    (["--num-smaples", "3"], "--num-smaples: is no option; did you mean '--num-samples'?"),
    (["--frobnicate"], "--frobnicate"),
    (["surplus"], "surplus"),
    (["--max-epochs", "2", "--grace-period", "3"], "--grace-period 3 is above --max-epochs 2"),
    (["--reduction-factor", "1"], "--reduction-factor 1: must be above 1"),
    (["--reduction-factor", "nan"], "--reduction-factor nan: must be above 1"),
    (["--seed", "-1"], "--seed -1: must be 0..4294967295"),
    (["--max-concurrent-trials", "-1"], "--max-concurrent-trials -1: must be 1 or more, or 0 for"),
    (
        ["--searcher", "hyperot"],
        "--searcher hyperot: must be one of auto, random, grid, refine, forest, hyperopt, bohb, optuna; "
        "did you mean 'hyperopt'?",
    ),
    (["--searcher", "bohb", "--scheduler", "asha"], "bohb does not work with --scheduler asha; bohb works with bohb"),
    (["--searcher", "refine", "--scheduler", "hyperband"], "refine works with asha, median, fifo"),
    (["--searcher", "hyperopt", "--scheduler", "pbt"], "pbt works with random, grid"),
    (["--strategy", "ddp", "--workers-per-trial", "2", "--cpus-per-trial", "3"], "--cpus-per-trial 3: each of"),
    (["--workers-per-trial", "2"], "--workers-per-trial 2"),
    (["--time-budget", "10"], "--time-budget 10: write it as 90s, 30m or 2h"),
    (["--time-budget", "0s"], "--time-budget 0s: write it as"),
    (["--time-budget", "\u0663m"], "write it as 90s, 30m or 2h"),
    (["--cpus-per-trial", "0"], "--cpus-per-trial 0"),
    (["--cpus-per-trial", "4096"], "--cpus-per-trial 4096: there "),
    (["--cpus-per-trial", "many"], "--cpus-per-trial many: must be a number or auto"),
    (["--gpus-per-trial", "1.5"], "--gpus-per-trial 1.5: above 1 it must be a whole number"),
    (["--gpus-per-trial", "64"], "--gpus-per-trial 64: there "),
    (["--gpus-per-trial", "inf"], "--gpus-per-trial inf"),
    (["--name", "../x"], "--name '../x': letters, digits"),
    (["--name", "-x"], "--name"),
    (["--name", "x" * 101], "at most 100"),
    (["--results", ""], "--results '': give a folder, or an object store"),
    (["--results", "nowhere://bucket/tuner"], "--results nowhere://bucket/tuner: Unrecognized filesystem type"),
    (["--results", "s3://bucket/tuner", "--address", "auto"], "where all nodes need a shared folder"),
    (["--wandb-project", "a/b"], "--wandb-project 'a/b': W&B takes 1 to 128 characters, none of / "),
    (["--metric", ""], "--metric '': give the name of a reported metric"),
    (["--metric", "accuray"], "did you mean 'accuracy'?"),
]


@pytest.mark.parametrize(
    ("argv", "message"), OPTIONS, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_a_wrong_option_is_refused(refused, argv, message):
    assert message in refused("--space", TINY, *argv)


SPACE_NAMES = [
    (
        ["--space", f"{SPACES}/numbers.py:derived", "--searcher", "grid"],
        "cannot propose parameter 'half', a sample_from",
    ),
    ([], "give --space NAME (see --list), or --resume NAME"),
    (["--space", "cifra"], "no space named 'cifra'; did you mean 'cifar'?"),
    (["--space", "zzz"], "known: cifar, imagefolder, mobilenet, quadratic, "),
    (["--space", "nowhere.py"], "--space nowhere.py: no such file"),
    (["--space", "TMP"], "is a folder; give the .py file"),
    (["--space", "no.such.module"], "No module named"),
    (["--space", "search_spaces.cifar:other"], "has no other = Space(...)"),
    (["--space", "search_spaces.quadratic", "--scheduler", "pbt"], "has no mutable parameters"),
    (["--space", "search_spaces.cifar", "--data-dir", "TMP/empty"], "empty"),
    (["--space", "search_spaces.cifar", "--data-dir", "TMP/gone"], "gone"),
]


@pytest.mark.parametrize(
    ("argv", "message"), SPACE_NAMES, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_a_wrong_space_is_refused(refused, argv, message):
    assert message in refused(*argv)


FILES = [
    ("x = (\n", "does not parse"),
    ("import no_such_thing\n", "No module named 'no_such_thing' (mine.py, line 1)"),
    ("1 / 0\n", "ZeroDivisionError: division by zero (mine.py, line 1)"),
    (
        "space = Space(params={'x': tune.uniform(0, 1)}, train=train, metics={})",
        "Space has no argument 'metics'; did you mean 'metric'? (mine.py, line 4)",
    ),
    ("from tuner.space import Task\nTask(optimiser=1)", "Task has no argument 'optimiser'; did you mean 'optimizer'?"),
    (
        "space = Space(params={'x': tune.uniform(0, 1)}, train=train, mode='minimum')",
        "mode='minimum': must be 'min' or 'max'; did you mean 'min'? (mine.py, line 4)",
    ),
    ("", "has no space = Space(...)"),
    (
        "space = Space(params={'lr': [0.1, 1]}, train=train)",
        "parameter 'lr' (line 4): list [0.1, 1]; did you mean tune.choice([0.1, 1])?",
    ),
    (
        "space = Space(params={'l': tune.choice([])}, train=train)",
        "parameter 'l' (line 4): tune.choice([]) has no values",
    ),
    ("space = Space(params={'x': tune.loguniform(0, 1)}, train=train)", "0"),
    ("space = Space(params={'x': tune.uniform(1, 0)}, train=train)", "range 1..0 is reversed or empty"),
    ("space = Space(params=[('x', tune.uniform(0, 1))], train=train)", "params is a list: must be a dict"),
    ("space = Space(params={1: tune.uniform(0, 1)}, train=train)", "parameter 1: a name is a string without '/'"),
    ("space = Space(params={'a/b': tune.uniform(0, 1)}, train=train)", "parameter 'a/b' (line 4): a name is a string"),
    ("space = Space(params={'x': tune.uniform(0, 1)}, train='mine')", "train='mine': must be a function"),
    ("space = Space(params={'x': tune.uniform(0, 1)}, train=lambda a, b: 3)", "must be a function of one argument"),
    ("space = Space(params={'x': tune.uniform(0, 1)}, train=train, metric='')", "--metric '': give the name"),
    ("x = 1\0\n", "does not parse: source code string cannot contain null bytes"),
    ("space = Space(params={}, train=train)", "there is nothing to search"),
    ("space = Space(params={'x': tune.uniform(0, 1)}, train=train, num_samples='ten')", "ten"),
    ("raise SystemExit(3)\n", "mine.py"),
]


@pytest.mark.parametrize(("text", "message"), FILES)
def test_a_wrong_space_file_is_refused(refused, tmp_path, text, message):
    (tmp_path / "mine.py").write_text((HEAD if "Space(" in text else "") + text)
    assert message in refused("--space", "mine.py")


def test_results_that_are_a_file_are_refused(refused, tmp_path):
    (tmp_path / "taken").touch()
    assert "--results taken: is a file; give another folder" in refused("--space", TINY, "--results", "taken")
    assert "cannot be written to" in refused("--space", TINY, "--results", "taken/below")


# states of a search


@pytest.fixture
def saved(tmp_path, monkeypatch, capsys):
    """A search `mine` over a copy of tiny.py, as it is on disk once it has begun."""
    shutil.copy(TINY, tmp_path / "space.py")
    monkeypatch.chdir(tmp_path)
    request = request_of("--space", "space.py", "--name", "mine", "--num-samples", 6)
    folder = request.experiment.folder
    folder.mkdir(parents=True)
    for name in (".lock", ".driver"):
        (folder / name).touch()
    session.open_journal(request).close()
    return folder


def test_what_was_saved_can_be_resumed(saved, capsys):
    assert run.main(["--resume", "mine", "--dry-run"]) == 0
    assert run.main(["--resume", "latest", "--dry-run", "--num-samples", "9"]) == 0
    assert "settings    9 by random" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--space", "space.py", "--name", "mine"],
            "already exists; continue it with --resume mine, or give another name",
        ),
        (
            ["--space", "space.py", "--name", "latest"],
            "--resume latest means the newest experiment; give another name",
        ),
        (["--resume", "mien"], "no experiment 'mien' in TMP/results; did you mean 'mine'?"),
        (["--resume", "latest", "--results", "TMP/empty"], "no experiment in"),
        (["--resume", "latest", "--results", "TMP/gone"], "no such folder TMP/gone; give the --results of a search"),
        (["--resume", "mine", "--seed", "3"], "--seed was 0, now 3"),
        (["--resume", "mine", "--space", "quadratic"], "--space was 'space.py', now 'quadratic'"),
        (["--resume", "mine", "--num-samples", "5"], "--num-samples 5 is below the previous 6"),
        (["--resume", "mine", "--cpus-per-trial", "4096"], "--cpus-per-trial 4096"),
        (["--resume", "mine", "--name", "other"], "--name was 'mine', now 'other'"),
        (["--resume", "../results/mine/x"], "no experiment"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_resume_is_refused(refused, saved, tmp_path, argv, message):
    assert message.replace("TMP", str(tmp_path)) in refused(*argv)


def test_a_space_that_has_changed_is_refused_with_what_changed(refused, saved, tmp_path):
    text = (tmp_path / "space.py").read_text()
    (tmp_path / "space.py").write_text(text.replace("tune.loguniform(1e-4, 1e-1)", "tune.loguniform(1e-4, 1)"))
    message = refused("--resume", "mine", "--space", "space.py")
    assert "the space has changed: lr was" in message and "start anew with --name" in message


def test_a_space_that_is_gone_is_refused(refused, saved, tmp_path):
    (tmp_path / "space.py").unlink()
    message = refused("--resume", "mine")
    assert "the space space.py is not in" in message and f"{tmp_path / 'space.py'}, is gone; run this in" in message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"format": 2, "options": 3}',
        '{"format": 2, "options": {"searcher": "gone"}}',
    ],
)
def test_a_damaged_experiment_without_its_copy_is_refused(refused, saved, text):
    (saved / "experiment.json").write_text(text)
    (saved / ".experiment.json.copy").write_text(text)
    message = refused("--resume", "mine")
    assert "experiment.json is damaged" in message and "start anew with --name" in message


def test_a_journal_whose_first_line_is_damaged_is_refused(refused, saved):
    (saved / "journal.jsonl").write_text('{"time": 1, "event": "repo\n')
    assert "journal.jsonl is damaged at line 1" in refused("--resume", "mine")


@pytest.mark.parametrize("left", [None, b"", bytes(9), b'{"time": 1, "ev'])
def test_a_journal_that_has_lost_its_events_is_refused_once_the_search_has_begun(refused, saved, left):
    path = saved / "journal.jsonl"
    path.unlink() if left is None else path.write_bytes(left)
    assert "journal.jsonl is missing or empty: its trials are unknown" in refused("--resume", "mine")


def test_a_search_that_was_killed_at_its_start_begins_and_is_refused_only_without_its_journal(saved, capsys):
    """It is killed before each change of its files, up to the one that says that it has begun."""
    seen = Counter()
    request = request_of("--space", "space.py", "--name", "other", "--num-samples", 6)
    folder = request.experiment.folder
    for step in itertools.count(1):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        if not killed_at(step, lambda: session.open_journal(request).close()):
            break
        if not (folder / "experiment.json").exists():
            continue
        for gone in (False, True):
            if gone:
                (folder / "journal.jsonl").unlink(missing_ok=True)
            try:
                seen[gone, bool(request_of("--resume", "other", "--trust").history)] += 1
            except RequestError as error:
                assert gone and "its trials are unknown" in str(error)
                seen["refused"] += 1
    assert set(seen) == {(False, False), (False, True), (True, False), "refused"}


def test_the_first_event_is_on_the_disk_before_experiment_json_says_so(saved, monkeypatch):
    """Otherwise a power failure might leave the word without the event."""
    request = request_of("--space", "space.py", "--name", "other")
    request.experiment.folder.mkdir()
    synced, sync = [], os.fsync

    def fsync(handle):
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        synced.append((path, path.read_text() if path.is_file() else ""))
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    session.open_journal(request).close()
    events = next(n for n, (path, text) in enumerate(synced) if "experiment_started" in text)
    folder = next(n for n, (path, _) in enumerate(synced) if n > events and path == request.experiment.folder.resolve())
    begun = next(n for n, (_, text) in enumerate(synced) if '"begun": true' in text)
    assert events < folder < begun


@pytest.mark.parametrize("foreign", ["a folder of something else", "a file"])
def test_a_foreign_folder_is_refused(refused, saved, foreign):
    other = saved.parent / "other"
    if foreign == "a file":
        other.write_text("hello")
    else:
        other.mkdir()
        (other / "notes.txt").write_text("hello")
    assert "no experiment 'other' in " in refused("--resume", "other")


def test_a_second_driver_is_refused_and_told_which_is_the_first(refused, saved):
    from tuner.record.storage.lock import only_driver

    with only_driver(saved):
        assert f"process {os.getpid()} on {socket.gethostname()} is running this" in refused("--resume", "mine")


def test_a_cluster_that_does_not_answer_is_refused_at_once(capsys, tmp_path):
    words = ["--space", "quadratic", "--address", "127.0.0.1:1", "--results", str(tmp_path / "none")]
    assert run.main(words) == 2
    assert "--address 127.0.0.1:1: nothing answers there" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    return open('my_data.npz')", ["FileNotFoundError", "my_data.npz", "space.py, line 6"]),
        ("    return (1, 2)", ["returns a tuple of 2: int, int; return Splits(train=", "space.py, line 5"]),
        ("    return None", ["returns None; return Splits(train="]),
        ("    return data_dir / 'train.csv'", ["needs a folder: give --data-dir DIR", "space.py, line 6"]),
        ("    return open(f'{data_dir}/train.csv')", ["needs a folder: give --data-dir DIR", "space.py, line 6"]),
        ("    raise SystemExit('no data')", ["raises SystemExit: no data", "space.py, line 6"]),
    ],
)
def test_a_data_function_that_fails_is_named_with_its_line(tmp_path, body, message):
    """What `load_data` does between the checks and the first trial."""
    place = tmp_path / "space.py"
    head = "from ray import tune\nfrom tuner.space import Space, Task\n\n\ndef data(data_dir):\n"
    tail = "space = Space(params={'x': tune.uniform(0, 1)}, task=Task(data=data, model=print, optimizer=print))\n"
    place.write_text(f"{head}{body}\n\n\n{tail}")
    request = request_of("--space", place, "--results", tmp_path)
    with pytest.raises(RequestError) as refusal:
        load_data(request)
    assert all(word in str(refusal.value) for word in message), refusal.value


TASK_HEAD = HEAD + (
    "from torch import nn, optim\nimport numpy as np\nfrom tuner.space import Task\n"
    "x = np.zeros((64, 4), 'float32')\n"
    "t = dict(data=lambda: (x, np.zeros(64, 'int64')), model=lambda config: nn.Linear(4, 2),\n"
    "         optimizer=lambda parameters, config: optim.SGD(parameters, lr=config['lr']))\n"
    "p = {'lr': tune.uniform(0.1, 0.9)}\n"
)
DRY = "space = Space(params=p, task=Task(**t))"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (f"p[''] = 1; {DRY}", "a parameter has the empty name ''; give it a name"),
        (f"t['metrics'] = {{'loss': print}}; {DRY}", "has 'loss', which every task reports itself; rename the metric"),
        ("space = Space(params=p, train=nn.Linear(4, 2))", "train= is a module: give a function of the config"),
        ("space = Space(params=p)", "Space has neither; give exactly one of task= and train="),
        (
            "space = Space(params=p, task=Task(**t), train=print)",
            "Space has both; give exactly one of task= and train=",
        ),
        ("p['lr'] = tune.uniform(float('nan'), 1)", "write tune.uniform(low, high), or another domain, with finite"),
        ("def f(): f()\nf()", "a function, or a dictionary in params, contains itself"),
        (f"t['optimizer'] = optim.SGD; {DRY}", "lambda parameters, config: SGD(parameters, lr=config['lr'])"),
        (f"t['loss'] = nn.CrossEntropyLoss; {DRY}", "give an object, not the class: CrossEntropyLoss()"),
        (f"t['data'] = lambda: ['a', 'b']; {DRY}", "returns a list of 2: str, str; return Splits("),
        (f"t['data'] = lambda: (x, np.array(['cat'] * 64)); {DRY}", "text cannot become a tensor; give numbers"),
    ],
)
def test_a_dry_run_refuses_a_mistake_in_the_space(code, message, refused, tmp_path):
    Path("mine.py").write_text(f"{TASK_HEAD}{code}\n")
    said = refused("--space", "mine.py", "--dry-run")
    assert message in said and str(tmp_path) not in said and len(said) <= 300, said
    assert not Path("results").exists(), "a refused request left the folder of results"


def test_options_are_compared_with_the_epochs_of_the_space_and_not_with_the_default(refused, tmp_path, capsys):
    space = "space = Space(params={'lr': tune.uniform(0, 1)}, train=train, metric='loss', mode='min', max_epochs=%d)\n"
    (tmp_path / "long.py").write_text(HEAD + space % 52)
    (tmp_path / "short.py").write_text(HEAD + space % 8)
    rungs = ["--brackets", "6", "--grace-period", "1", "--reduction-factor", "2", "--num-samples", "30"]
    for options in (["--grace-period", "20"], rungs):
        assert run.main(["--space", "long.py", *options, "--dry-run"]) == 0, capsys.readouterr().err
    assert "--grace-period 20 is above --max-epochs 8" in refused("--space", "short.py", "--grace-period", "20")
    assert "--brackets 6: must be at most 4, the number of rungs" in refused("--space", "short.py", *rungs)


@pytest.mark.parametrize("name", ["my space.py", "größe.py", "λ.py", "_mine.py"])
def test_any_file_name_gives_an_experiment_its_name(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(f"{HEAD}space = Space(params={{'x': tune.uniform(0, 1)}}, train=train)\n")
    assert run.main(["--space", name, "--dry-run"]) == 0, capsys.readouterr().err
    assert not Path("results").exists(), "a dry run left the folder of results"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--space", "my", "space.py"], "space.py: no option before it takes this word; write a value with spaces in"),
        (["--space", TINY, "--batch-size", "32"], "is no option; values of parameters belong in the params"),
        (["--space", TINY, "--point"], "--point: needs values; write it as --point name=value"),
        (
            ["--space", TINY, "--num-samples", "4", "--num-samples", "5"],
            "--num-samples is given twice, with 4 and with 5",
        ),
        (["--space", "README.md"], "No module named 'README', and no such file in "),
    ],
)
def test_a_wrong_word_on_the_command_line_is_named(argv, message, refused):
    assert message in refused(*argv)


def test_an_import_that_goes_on_is_told_once_with_its_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(spaces, "IMPORT_S", 0.05)
    Path("loop.py").write_text("import time\n\ntime.sleep(0.5)\n")
    assert run.main(["--space", "loop.py", "--dry-run"]) == 2  # the file has no space
    told, error = capsys.readouterr().err.splitlines()
    assert told.startswith("still importing loop.py after 0 s (loop.py, line 3); Ctrl-C ends it; the usual cause is a")
    assert "training loop" in told and "has no space = Space(...)" in error


@pytest.mark.parametrize("name", ["loop.py", "looping.forever"])
def test_an_interrupted_import_names_its_line(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("tuner.engine.local.signals.end_family", lambda: None)  # would kill the Ray of the other tests
    Path("looping").mkdir()
    for file in ("loop.py", "looping/forever.py"):
        Path(file).write_text("for epoch in range(3):\n    raise KeyboardInterrupt\n")
    assert run.main(["--space", name, "--dry-run"]) == 130
    line = capsys.readouterr().err.strip()
    assert line.startswith(f"interrupted while importing {name} (") and "line 2); the usual cause is a training" in line


def test_a_file_that_asks_for_input_is_told_what_to_do(tmp_path, monkeypatch, refused):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    Path("asks.py").write_text("name = input()\n")
    assert "EOF when reading a line (asks.py, line 1); the file asks for input" in refused("--space", "asks.py")
