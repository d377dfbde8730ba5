"""The journal mirrored into W&B: one run a trial, in a group, with why it ended."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tuner.record.journal import Journal
from tuner.record.saved_experiment import save_experiment
from tuner.spec.experiment import Experiment
from tuner.tuning.output.mirroring import wait_for, wandb_mode
from tuner.tuning.output.wandb_mirror import LazyWandb, Mirror, main


class Run:
    """As much of a W&B run as is used, keeping what it was told."""

    def __init__(self, **options):
        self.options, self.summary, self.tags, self.logged, self.exit_code = options, {}, (), [], "open"

    def log(self, metrics, step):
        self.logged.append((step, metrics))

    def finish(self, exit_code=0):
        self.exit_code = exit_code


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    """The command lowers its process's priority and ignores SIGTERM; later tests and their children do neither."""
    monkeypatch.setattr(os, "nice", lambda increment: 0)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)


@pytest.fixture
def wandb():
    runs = []

    def init(**options):
        runs.append(Run(**options))
        return runs[-1]

    return SimpleNamespace(init=init, runs=runs, Settings=lambda **options: options, setup=lambda settings: None)


def mirrored(wandb, tmp_path, *events):
    mirror = Mirror(wandb, Experiment(name="mine", wandb_project="proj"), tmp_path, "offline")
    for event in events:
        mirror.handle(event)
    return mirror


STARTED = {"event": "trial_started", "trial": "00000", "config": {"lr": 0.1}}
REPORT = {"event": "report", "trial": "00000", "epoch": 1, "metrics": {"loss": 0.5}}


def ended(status, reason="why", trial="00000"):
    return {"event": "trial_ended", "trial": trial, "status": status, "reason": reason}


def test_a_trial_is_one_run_in_the_experiments_group(wandb, tmp_path):
    mirrored(
        wandb,
        tmp_path,
        {"event": "experiment_started"},
        STARTED,
        REPORT,
        {**REPORT, "epoch": 2},
        ended("completed"),
    )
    (run,) = wandb.runs
    asked = {
        name: run.options[name] for name in ("id", "name", "group", "project", "config", "mode", "resume", "reinit")
    }
    assert asked == {
        "id": "mine-00000",
        "name": "00000",
        "group": "mine",
        "project": "proj",
        "config": {"lr": 0.1},
        "mode": "offline",
        "resume": "allow",
        "reinit": "create_new",
    }
    assert run.logged == [(1, {"loss": 0.5}), (2, {"loss": 0.5})]
    assert run.tags == ("completed",) and run.summary == {"status": "completed", "reason": "why"} and run.exit_code == 0


@pytest.mark.parametrize(("more", "mirrored"), [([], {"00001"}), (["--all"], {"00000", "00001"})])
def test_an_extended_search_is_mirrored_to_its_end(wandb, tmp_path, monkeypatch, more, mirrored):
    save_experiment(Experiment(name="mine"), tmp_path, {})
    book = Journal(tmp_path / "journal.jsonl")
    for number, event in enumerate(["experiment_started", "experiment_resumed"]):
        trial = f"{number:05d}"
        book.write(event, name="mine")
        book.write("trial_started", trial, config={}, resources={}, node="")
        book.write("report", trial, epoch=1, metrics={"loss": 1.0})
        book.write("trial_ended", trial, status="completed", reason="")
        book.write("experiment_finished", state="finished", reason="")
    book.close()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    assert main([str(tmp_path), "--mode", "offline", *more]) == 0
    assert {run.options["name"] for run in wandb.runs} == mirrored


def test_auto_is_online_with_a_key_and_offline_without(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert wandb_mode("auto") == "offline"
    (tmp_path / "netrc").write_text("machine github.com login x password y\n")
    assert wandb_mode("auto") == "offline"
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password y\n")
    assert wandb_mode("auto") == "online"
    (tmp_path / "netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "k")
    assert wandb_mode("auto") == "online"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert wandb_mode("auto") == "offline"


@pytest.mark.parametrize("argv", [[], ["x"], ["x", "--mode", "loud"], ["x", "--mode"]])
def test_a_wrong_command_line_of_the_mirror_prints_its_use(argv, capsys):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2 and "tuner mirror" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("does", "note"),
    [
        ("raise SystemExit(3)", "process failed; see"),
        ("import time; time.sleep(60)", "did not finish within 1 s"),
        ("", ""),
    ],
)
def test_a_mirror_that_fails_or_hangs_costs_a_line_that_says_what_to_do(tmp_path, capsys, does, note):
    process = subprocess.Popen([sys.executable, "-c", does])
    wait_for(process, 1.0 if "sleep" in does else 60.0, "later", tmp_path / "wandb.log")
    printed = capsys.readouterr().out
    assert process.returncode is not None
    assert (note in printed and "later" in printed) if note else not printed


@pytest.mark.parametrize("how", [["--attached"], ["--all"]])
def test_a_mirror_whose_driver_is_gone_ends_with_what_is_there(wandb, tmp_path, monkeypatch, how):
    save_experiment(Experiment(name="mine"), tmp_path, {})
    book = Journal(tmp_path / "journal.jsonl")
    book.write("experiment_started", name="mine")
    book.write("trial_started", "00000", config={}, resources={}, node="")
    book.write("report", "00000", epoch=1, metrics={"loss": 1.0})
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr(sys, "stdin", open(os.devnull))
    assert main([str(tmp_path), "--mode", "offline", *how]) == 0
    assert wandb.runs[0].logged == [(1, {"loss": 1.0})] and wandb.runs[0].exit_code == 0


def test_a_damaged_journal_is_named_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_SILENT", "true")
    save_experiment(Experiment(name="mine"), tmp_path, {"space": {"params": {}}})
    (tmp_path / "journal.jsonl").write_text("[\n")
    assert main([str(tmp_path), "--mode", "offline"]) == 2
    assert "is damaged at line 1" in (output := capsys.readouterr().err) and output.count("\n") == 1


def test_a_link_for_wandbs_folder_is_not_written_through(tmp_path, monkeypatch, capsys):
    folder, elsewhere = tmp_path / "mine", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    save_experiment(Experiment(name="mine"), folder, {"space": {"params": {}}})
    (folder / "wandb").symlink_to(elsewhere)
    assert main([str(folder), "--mode", "offline"]) == 2
    assert "wandb is a link" in capsys.readouterr().err and not list(elsewhere.iterdir())


def test_without_a_key_the_command_says_so_in_one_line(tmp_path, monkeypatch, capsys):
    errors = pytest.importorskip("wandb.errors")

    def refuse(self, **options):
        raise errors.UsageError("No API key configured. Use `wandb login` to log in.")

    monkeypatch.setattr(LazyWandb, "init", refuse)
    save_experiment(Experiment(name="mine"), tmp_path, {})
    journal = Journal(tmp_path / "journal.jsonl")
    journal.write("trial_started", "00000", config={}, resources={}, node="")
    journal.write("report", "00000", epoch=1, metrics={"loss": 0.5})
    journal.write("experiment_finished", state="finished")
    journal.close()
    assert main([str(tmp_path), "--mode", "online", "--all"]) == 2
    text = "tuner: error: --mode online: No API key configured. Use `wandb login` to log in. Or give --mode offline.\n"
    assert capsys.readouterr().err == text
