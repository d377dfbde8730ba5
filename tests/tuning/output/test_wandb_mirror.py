"""The journal mirrored into W&B: one run a trial, in a group, with why it ended."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from journals import Journal
from wandb.errors import UsageError

from tuner.record.saved_experiment import save_experiment
from tuner.spec.experiment import Experiment
from tuner.tuning.output.wandb_mirror import main, wait_for, wandb_mode


class Config(dict):
    """A run's configuration, of which W&B changes no value without being told so."""

    def update(self, values, allow_val_change=False):
        assert allow_val_change
        super().update(values)


class Run:
    """As much of a W&B run as is used, keeping what it was told."""

    def __init__(self, **options):
        self.options, self.summary, self.tags, self.logged, self.exit_code = options, {}, (), [], "open"
        self.config, self.starting_step, self.axes = Config(options["config"]), 0, {}

    def define_metric(self, name, step_metric):
        self.axes[name] = step_metric

    def log(self, metrics, step):
        if not self.logged or step > self.logged[-1][0]:  # W&B drops the others
            self.logged.append((step, metrics))

    def finish(self, exit_code=0):
        self.exit_code = exit_code


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    """The command lowers its process's priority and ignores SIGTERM; later tests and their children do neither."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setattr(os, "nice", lambda increment: 0)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in for W&B, with the runs that it has begun."""
    runs = []

    def init(**options):
        runs.append(Run(**options))
        return runs[-1]

    module = SimpleNamespace(init=init, runs=runs, Settings=lambda **options: options, setup=lambda settings: None)
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def written(folder, *events):
    """An experiment's folder with these events of its journal, each a name, a trial and fields."""
    save_experiment(Experiment(name="mine", wandb_project="proj"), folder, {"space": {"params": {}}})
    journal = Journal(folder / "journal.jsonl")
    for event, trial, fields in events:
        journal.write(event, *trial, **fields)
    journal.close()


def trained(trial="00000", ends=True):
    """The events of a trial that reports once."""
    yield "trial_started", [trial], {"config": {"lr": 0.1}, "resources": {}, "node": ""}
    yield "report", [trial], {"epoch": 1, "metrics": {"loss": 0.5}}
    if ends:
        yield "trial_ended", [trial], {"status": "completed", "reason": "why"}


BEGUN, RESUMED = ("experiment_started", [], {"name": "mine"}), ("experiment_resumed", [], {"name": "mine"})
FINISHED = ("experiment_finished", [], {"state": "finished", "reason": ""})


def test_a_trial_is_one_run_in_the_experiments_group(wandb, tmp_path):
    written(tmp_path, BEGUN, *trained(), FINISHED)
    assert main([str(tmp_path), "--mode", "offline"]) == 0
    (run,) = wandb.runs
    names = {"id": "mine-00000", "name": "00000", "group": "mine", "project": "proj", "config": {"lr": 0.1}}
    assert run.options == names | {"mode": "offline", "resume": "allow", "reinit": "create_new", "dir": str(tmp_path)}
    assert run.logged == [(1, {"training_iteration": 1, "loss": 0.5})] and run.axes == {"*": "training_iteration"}
    assert run.tags == ("completed",) and run.summary == {"status": "completed", "reason": "why"} and run.exit_code == 0


def test_a_trial_of_confirm_has_its_own_seed_beside_a_parameter_of_this_name(wandb, tmp_path):
    again = "trial_suggested", ["00001"], {"config": {"seed": 3}, "confirms": "00000", "seed": 5}
    started = "trial_started", ["00001"], {"config": {"seed": 3}, "resources": {}, "node": ""}
    written(tmp_path, BEGUN, again, started, *list(trained("00001"))[1:], FINISHED)
    assert main([str(tmp_path), "--mode", "offline"]) == 0
    assert wandb.runs[0].options["config"] == {"seed": 3, "confirms": "00000", "confirms_seed": 5}


def test_a_trial_that_pbt_changed_has_the_configuration_and_all_steps_that_it_has_now(wandb, tmp_path):
    """It copies the state of epoch 2 after epoch 3: W&B would drop the epochs 3 and 4 that come then."""
    copied = "trial_started", ["00000"], {"config": {"lr": 0.2}, "resources": {}, "node": ""}
    epochs, values = (1, 2, 3, 3, 4), (0.5, 0.4, 0.3, 0.2, 0.1)
    reports = [("report", ["00000"], {"epoch": e, "metrics": {"loss": v}}) for e, v in zip(epochs, values, strict=True)]
    written(tmp_path, BEGUN, *list(trained())[:1], *reports[:3], copied, *reports[3:], FINISHED)
    assert main([str(tmp_path), "--mode", "offline"]) == 0
    (run,) = wandb.runs
    assert run.options["config"] == {"lr": 0.1} and run.config == {"lr": 0.2}
    assert [(step, *logged.values()) for step, logged in run.logged] == [*zip(range(1, 6), epochs, values, strict=True)]


def test_parameters_and_metrics_with_our_names_replace_none_of_ours(wandb, tmp_path):
    config = {"confirms": 1, "status": 2}
    again = "trial_suggested", ["00001"], {"config": config, "confirms": "00000", "seed": 5}
    started = "trial_started", ["00001"], {"config": config, "resources": {}, "node": ""}
    metrics = {"loss": 0.5, "error": 0.2, "status": 3, "_step": 4}
    report = "report", ["00001"], {"epoch": 1, "metrics": metrics}
    failed = "trial_failed", ["00001"], {"error": "ValueError: no", "kind": "user", "will_retry": False}
    ended = "trial_ended", ["00001"], {"status": "failed", "reason": "ValueError: no"}
    written(tmp_path, BEGUN, again, started, report, failed, ended, FINISHED)
    assert main([str(tmp_path), "--mode", "offline"]) == 0
    (run,) = wandb.runs
    assert run.options["config"] == {"confirms": "00000", "confirms_seed": 5, "config/confirms": 1, "status": 2}
    theirs = {"loss": 0.5, "metrics/error": 0.2, "metrics/status": 3, "metrics/_step": 4}
    assert run.logged == [(1, {"training_iteration": 1, **theirs})]
    ours = {"error": "ValueError: no", "error_kind": "user", "status": "failed", "reason": "ValueError: no"}
    assert run.summary == ours and not ours.keys() & theirs.keys()


@pytest.mark.parametrize(("more", "mirrored"), [([], {"00001"}), (["--all"], {"00000", "00001"})])
def test_an_extended_search_is_mirrored_to_its_end(wandb, tmp_path, more, mirrored):
    written(tmp_path, BEGUN, *trained(), FINISHED, RESUMED, *trained("00001"), FINISHED)
    assert main([str(tmp_path), "--mode", "offline", *more]) == 0
    assert {run.options["name"] for run in wandb.runs} == mirrored


@pytest.mark.parametrize("how", [["--attached"], ["--all"]])
def test_a_mirror_whose_driver_is_gone_ends_with_what_is_there(wandb, tmp_path, monkeypatch, how):
    written(tmp_path, BEGUN, *trained(ends=False))
    monkeypatch.setattr(sys, "stdin", open(os.devnull))
    assert main([str(tmp_path), "--mode", "offline", *how]) == 0
    assert wandb.runs[0].logged == [(1, {"training_iteration": 1, "loss": 0.5})] and wandb.runs[0].exit_code == 0


def test_auto_is_online_with_a_key_and_offline_without(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    netrc = tmp_path / "netrc"  # as the fixture `no_home` has it, and no key in the environment
    for host, mode in (("github.com", "offline"), ("api.wandb.ai", "online")):
        netrc.write_text(f"machine {host} login user password y\n")
        assert wandb_mode("auto") == mode
    netrc.unlink()
    assert wandb_mode("auto") == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "k")
    assert wandb_mode("auto") == "online"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert wandb_mode("auto") == "offline"


SLEEPS = "import time; time.sleep(60)"


@pytest.mark.parametrize(
    ("does", "note"), [("raise SystemExit(3)", "process failed; see"), (SLEEPS, "did not finish within 1 s"), ("", "")]
)
def test_a_mirror_that_fails_or_hangs_costs_a_line_that_says_what_to_do(tmp_path, capsys, does, note):
    process = subprocess.Popen([sys.executable, "-c", does])
    wait_for(process, 1.0 if "sleep" in does else 60.0, "later", tmp_path / "wandb.log")
    printed = capsys.readouterr().out
    assert process.returncode is not None
    assert (note in printed and "later" in printed) if note else not printed


def test_what_it_cannot_mirror_is_said_in_one_line(wandb, tmp_path, capsys):
    """A damaged journal, a link for W&B's folder, which is not written through, and an account without a key."""

    def refuse(**options):
        raise UsageError("No API key configured. Use `wandb login` to log in.")

    def error(*options):
        assert main([str(tmp_path), "--mode", "online", *options]) == 2
        output = capsys.readouterr().err
        assert output.startswith("tuner: error: ") and output.count("\n") == 1
        return output

    written(tmp_path, *trained(), FINISHED)
    wandb.init = refuse
    assert "--mode online: No API key configured. Use `wandb login` to log in. Or give --mode" in error("--all")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "wandb").symlink_to(tmp_path / "elsewhere")
    assert "wandb is a link" in error() and not list((tmp_path / "elsewhere").iterdir())
    (tmp_path / "wandb").unlink()
    (tmp_path / "journal.jsonl").write_text("[\n")
    assert "is damaged at line 1" in error()
