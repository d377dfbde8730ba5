"""Wrong requests: exit code 2 and one line that says what was given, what is allowed and what to do."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuner import audit, gpus, report, run, train
from tuner.serve import __main__ as serve
from tuner.spec import patience

ROOT = Path(__file__).parents[3]
SPACES = ROOT / "tests" / "spaces"
TINY = str(SPACES / "tiny.py")
HEAD = "from ray import tune\nfrom tuner.space import Space\ntrain = print\n"


@pytest.mark.parametrize(
    ("main", "argv", "message"),
    [
        (report, ["nothing"], "no experiment 'nothing': no such folder TMP/results; change to the folder in which"),
        (report, ["nothing", "--results", "."], "no experiment 'nothing' in TMP; this folder has no experiments"),
        (
            run,
            ["--resume", "results/x"],
            "no experiment 'x': no such folder TMP/results; change to the folder in which",
        ),
        (train, ["results/x", "--trial", "1"], "no experiment 'x': no such folder TMP/results; change to the folder"),
        (train, ["x/best/config.json"], "x/best/config.json: no such file TMP/x/best/config.json; give"),
        (report, [], "give name (see --help)"),
        (audit, ["x", "--trials", "many"], "--trials many: must be a whole number (see --help)"),
        (audit, ["x", "--trials", "3", "--trials=3"], "--trials is given twice, with 3 and with 3: give it once"),
        (serve, ["--port", "1", "--port", "2"], "--port is given twice, with 1 and with 2: give it once"),
        (gpus, ["--wach"], "--wach: is no option; did you mean '--watch'? (see --help)"),
    ],
)
def test_the_other_commands_answer_in_one_line(main, argv, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main.main(argv) == 2
    err = capsys.readouterr().err
    assert message.replace("TMP", str(tmp_path)) in err and err.startswith("tuner: error: ") and err.count("\n") == 1


REQUESTS = [
    (["--space", TINY, "--num-samples", "2.5"], "--num-samples 2.5: must be a whole number"),
    (["--space", TINY, "--num-samples"], "--num-samples: needs a value"),
    (["--space", TINY, "--num-smaples", "3"], "--num-smaples: is no option; did you mean '--num-samples'?"),
    (
        ["--space", TINY, "--num-smaples", "3", "--sed", "1"],
        "--num-smaples: is no option; did you mean '--num-samples'?; --sed: is no option; did you mean '--seed'?",
    ),
    (["--space", TINY, "--seed", "-1"], "--seed -1: must be 0 or more, at most 4,294,967,295"),
    (
        ["--searcher", "hyperot"],
        "--searcher hyperot: must be one of auto, random, grid, refine, forest, hyperopt, bohb, optuna, nsga2; "
        "did you mean 'hyperopt'?",
    ),
    (["--space", TINY, "--time-budget", "10"], "--time-budget 10: write it as 90s, 30m or 2h"),
    (["--space", TINY, "--cpus-per-trial", "4096"], "--cpus-per-trial 4096: there "),
    (["--space", TINY, "--cpus-per-trial", "many"], "--cpus-per-trial many: must be a number or auto"),
    (["--space", TINY, "--results", ""], "--results '': give a folder, or an object store"),
    (
        ["--space", TINY, "--results", "nowhere://bucket/tuner"],
        "--results nowhere://bucket/tuner: Unrecognized filesystem type",
    ),
    (["--space", TINY, "--results", "s3://bucket/tuner", "--address", "auto"], "where all nodes need a shared folder"),
    (["--space", TINY, "--wandb-project", "a/b"], "--wandb-project 'a/b': W&B takes 1 to 128 characters, none of / "),
    (["--space", TINY, "--metric", "accuray"], "did you mean 'accuracy'?"),
    (["--space", TINY, "--prune-by", "accuracyy"], "--prune-by accuracyy: every report of space "),
    (["--space", TINY, "--prune-mode", "max"], "--prune-mode max: there is no --prune-by; leave it out, or add"),
    (
        ["--space", TINY, "--metric", "accuracy", "--mode", "max", "--prune-by", "accuracy"],
        "--prune-mode min: --prune-by accuracy is also the metric, whose --mode is max; give that",
    ),
    (
        ["--space", f"{TINY}:finals", "--prune-by", ""],
        ": only a trial's last report has 'accuracy', a final metric; add --prune-by with a metric that every report",
    ),
    (
        ["--space", f"{TINY}:finals", "--prune-by", "accuracy", "--prune-mode", "max"],
        "--prune-by accuracy: only a trial's last report has 'accuracy'",
    ),
    (["--space", f"{TINY}:finals", "--metric", "acuracy"], "reports accuracy, loss, train_loss; did you mean"),
    (["--space", f"{TINY}:finals", "--stop", "accuracy=0.9"], "--stop accuracy=0.9: only a trial's last report has"),
    (["--space", f"{TINY}:finals", "--searcher", "bohb"], "bohb learns from the values at rungs, which a final"),
    (
        ["--space", f"{TINY}:finals", "--scheduler", "hyperband", "--reduction-factor", "3", "--max-epochs", "10"],
        "--max-epochs 10: brackets of hyperband end at epoch 9, before a trial's last epoch, which has 'accuracy'",
    ),
    (
        ["--space", f"{SPACES}/functions.py:derived", "--searcher", "grid"],
        "cannot propose parameter 'half', a sample_from",
    ),
    ([], "give --space NAME (see --list), or --resume NAME"),
    (["--space", "cifra"], "no space named 'cifra'; did you mean 'cifar'?"),
    (["--space", "no.such.module"], "No module named"),
    (["--space", "search_spaces.cifar:other"], "has no other = Space(...)"),
    (["--space", "search_spaces.quadratic", "--scheduler", "pbt"], "has no mutable parameters"),
    (["--space", "search_spaces.cifar", "--data-dir", "TMP/empty"], "empty"),
    (["--space", "my", "space.py"], "space.py: belongs to no option; write a value with spaces in"),
    (["--space", TINY, "--batch-size", "32"], "is no option; values of parameters belong in the params"),
    (["--space", TINY, "--point"], "--point: needs values; write it as --point name=value"),
    (["--space", TINY, "--start-from"], "--start-from: needs a value"),
    (["--space", TINY, "--start-from", "gone"], "--start-from gone: cannot be read (no experiment 'gone'"),
    (["--space", TINY, "--num-samples", "4", "--num-samples", "5"], "--num-samples is given twice, with 4 and with 5"),
    (["--space", TINY, "--confirm-seeds", "5"], "--confirm-seeds 5: does nothing without --confirm; add --confirm 3"),
    (["--space", TINY, "--constraint", "loss < 1"], "'loss < 1': write it as 'size_mb <= 10' or 'accuracy >= 0.9'"),
    (["--space", TINY, "--stop", "accuracy"], "--stop 'accuracy': write it as name=value"),
    (["--space", TINY, "--address", "ray://127.0.0.1:10001"], "start the search on a node: ray job submit"),
    (["--space", TINY, "--address", "127.0.0.1:1"], "--address 127.0.0.1:1: nothing answers there"),
    (["--space", TINY, "--address", "nowhere"], "must be auto or host:port"),
    (["--space", TINY, "--results", "taken"], "--results taken: is a file"),
    (["--space", TINY, "--results", "taken/below"], "cannot be written to (Not a directory); give another"),
]


@pytest.mark.parametrize(
    ("argv", "message"), REQUESTS, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_a_wrong_request_is_refused(refused, argv, message):
    assert message in refused(*argv)


def test_the_command_says_in_one_line_why_ray_does_not_start_here(tmp_path):
    (tmp_path / "mine.txt").write_text("")
    words = [sys.executable, "-m", "tuner.run", "--space", "quadratic", "--name", "mine"]
    variables = os.environ | {"PYTHONPATH": str(ROOT), "RAY_TMPDIR": str(tmp_path / "mine.txt")}
    ended = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)
    (line,) = [line for line in ended.stderr.splitlines() if not line.startswith("still ")]  # on a busy machine
    assert ended.returncode == 2 and "Traceback" not in ended.stdout and line.startswith("tuner: error: ")
    assert "File exists" in line and "RAY_TMPDIR" in line
    assert not (tmp_path / "results" / "mine").exists()  # the same command can be given again


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


def test_an_import_that_takes_long_is_told_with_its_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(patience, "FIRST_S", 0.05)
    Path("loop.py").write_text("import time\n\ntime.sleep(0.5)\n")
    assert run.main(["--space", "loop.py", "--dry-run"]) == 2  # the file has no space
    told, *_, error = capsys.readouterr().err.splitlines()
    assert told.startswith("still importing loop.py after 0 s (loop.py, line 3); Ctrl-C ends it; the usual cause is a")
    assert "training loop" in told and "has no space = Space(...)" in error


def test_a_command_beside_python_is_no_line_of_the_users(tmp_path):
    code = "import sys; from tuner.errors.users_code import place_of_frame; place = place_of_frame(sys._getframe())"
    for folder, is_named in ((Path(sys.executable).parent, False), (tmp_path, True)):
        names = {}
        exec(compile(code, f"{folder}/tuner", "exec"), names)
        assert ("/tuner, line 1" in names["place"]) == is_named


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
