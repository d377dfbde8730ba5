"""Reports of a command's processes: by Ray Tune, by `tuner_trial`, with checkpoints; and the values of its own."""

import json
import os
import socket
import subprocess
import sys
import sysconfig
import threading

import pytest

from tuner import load
from tuner.record import results
from tuner.spec.command_process import IN_COMMAND, VARIABLE, Program, search_path
from tuner.spec.space import Space

HEAD = "from tuner import Space, tune\n"
GRID = "{'lr': tune.grid_search([0.5, 0.25])}"
BY_TUNE = """
import sys, json, tempfile, os
from ray import tune
lr, begin = float(sys.argv[1]), 0
if checkpoint := tune.get_checkpoint():
    with checkpoint.as_directory() as folder:
        begin = json.load(open(os.path.join(folder, "state.json")))
print("begins at", begin)
for epoch in range(begin + 1, 5):
    with tempfile.TemporaryDirectory() as folder:
        json.dump(epoch, open(os.path.join(folder, "state.json"), "w"))
        tune.report({"loss": lr + 1 / epoch}, checkpoint=tune.Checkpoint.from_directory(folder))
"""
BY_FILE = """
import json, os, sys
import tuner_trial
folder, lr = os.environ["TUNER_TRIAL"], float(sys.argv[1])
own = os.path.join(folder, "checkpoint", "state.json")
begin = json.load(open(own)) if tuner_trial.checkpoint_folder() else 0
print("begins at", begin)
for epoch in range(begin + 1, 5):
    json.dump(epoch, open(own, "w"))
    tuner_trial.report({"loss": lr + 1 / epoch})
"""


def written(tmp_path, text, fields="", name="train.py"):
    (tmp_path / name).write_text(text)
    command = [sys.executable, str(tmp_path / name), "{lr}"]
    (tmp_path / "space.py").write_text(f"{HEAD}space = Space(params={GRID}, command={command}, {fields})\n")
    return str(tmp_path / "space.py")


@pytest.mark.parametrize("text", [BY_TUNE, BY_FILE], ids=["tune.report", "tuner_trial"])
def test_a_process_of_a_command_reports_and_goes_on_from_its_checkpoint(search, tmp_path, text):
    space = written(tmp_path, text)
    words = "--num-samples", "2", "--scheduler", "asha-promotion", "--max-epochs", "4", "--max-concurrent-trials", "1"
    ran = search(space, *words)
    assert ran.code == 0, ran.out + ran.err
    whole = [trial for trial in ran.record.trials if trial.status == "completed"]
    assert whole and [report.metrics["loss"] for report in whole[0].reports] == [
        whole[0].config["lr"] + 1 / epoch for epoch in range(1, 5)
    ]
    outputs = [path.read_text() for path in ran.folder.glob("ray/*/stdout*")]
    assert any("begins at 1" in each or "begins at 2" in each for each in outputs), outputs
    assert json.loads((ran.folder / "best" / "checkpoint" / "state.json").read_text()) == 4
    assert load(ran.folder).best.epoch == 4


def test_a_stopped_process_may_end_by_itself(search, tmp_path):
    text = f"""
import sys, time
import tuner_trial
try:
    tuner_trial.report({{"loss": 1}})
finally:
    time.sleep(0.5)
    open({str(tmp_path / "ended")!r}, "a").write("x")
"""
    ran = search(written(tmp_path, text), "--num-samples", "1", "--max-epochs", "1")
    assert ran.code == 0 and (tmp_path / "ended").read_text() == "xx"


def test_only_rank_0_reports_and_nobody_outside_of_a_trial(search, tmp_path):
    text = """
import os, subprocess, sys
import tuner_trial
other = [sys.executable, "-c", "import tuner_trial; tuner_trial.report({'loss': -1})"]
subprocess.run(other, env={**os.environ, "RANK": "1"})
tuner_trial.report({"loss": 1, "rank": 0})
"""
    ran = search(written(tmp_path, text), "--num-samples", "1")
    assert [[report.metrics["loss"] for report in trial.reports] for trial in ran.record.trials] == [[1], [1]]
    alone = {name: value for name, value in os.environ.items() if name != VARIABLE}
    code = "import tuner_trial; tuner_trial.report({'loss': 1}); print(tuner_trial.checkpoint_folder())"
    done = subprocess.run([sys.executable, "-c", code], env={**alone, "PYTHONPATH": IN_COMMAND}, capture_output=True)
    assert done.stdout == b"None\n", done.stderr


def test_a_program_in_another_language_reports_by_a_program(search, tmp_path):
    script = f"{sys.executable} -m tuner_trial '{{\"loss\": 0.5}}' && echo went on || echo stopped with $?"
    (tmp_path / "space.py").write_text(f"{HEAD}space = Space(params={GRID}, command={['sh', '-c', script]!r})\n")
    ran = search(str(tmp_path / "space.py"), "--num-samples", "1")
    assert [trial.reports[0].metrics["loss"] for trial in ran.record.trials] == [0.5, 0.5]
    assert any("went on" in path.read_text() for path in ran.folder.glob("ray/*/stdout*"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "print('{\"loss\": 1}'); tuner_trial.report({'loss': 2})",
            "the program reports loss by printed lines, and then another value",
        ),
        ("open(os.environ['TUNER_TRIAL'] + '/checkpoint/x', 'w').close(); print('{\"loss\": 1}')", "which waits"),
        ("tuner_trial.report({'loss': [1]})", "loss"),
        ("tuner_trial.report({'other': 1})", "other"),
        ("tuner_trial.report({'loss': object()})", "a metric is a number or a text, not <object"),
    ],
)
def test_a_report_that_would_be_wrong_fails_the_trial(search, tmp_path, text, why):
    ran = search(
        written(tmp_path, f"import os, time\nimport tuner_trial\n{text}\ntime.sleep(1)\n"), "--num-samples", "1"
    )
    assert ran.code in (1, 2) and why in ran.out + ran.err, ran.out + ran.err


def test_a_command_gets_values_of_its_own(search, tmp_path):
    text = """
import json, sys
lr, most, seed, cpus, file = sys.argv[1:]
assert json.load(open(file))["lr"] == float(lr)
for epoch in range(int(most)):
    print(json.dumps({"loss": float(lr), "seed": int(seed), "cpus": float(cpus)}))
"""
    (tmp_path / "train.py").write_text(text)
    words = [sys.executable, str(tmp_path / "train.py"), "{lr}", "{max_epochs}", "{seed}", "{cpus}", "{config}"]
    (tmp_path / "space.py").write_text(f"{HEAD}space = Space(params={{**{GRID}, 'n': 3}}, command={words})\n")
    ran = search(str(tmp_path / "space.py"), "--num-samples", "1", "--scheduler", "fifo", "--max-epochs", "3")
    assert ran.code == 0, ran.out + ran.err
    reports = [trial.reports for trial in ran.record.trials]
    assert [len(each) for each in reports] == [3, 3] and reports[0][0].metrics["cpus"] == 1
    assert reports[0][0].metrics["seed"] != reports[1][0].metrics["seed"]


def test_parameters_take_precedence_over_values_of_the_trial():
    from ray import tune

    params = {"lr": tune.uniform(0, 1), "config": "a.yaml", "max_epochs": 50}
    space = Space(params=params, command="train --config {config} --epochs {max_epochs}")
    assert space.max_epochs == 1000
    words = space.train.filled({"lr": 0.5, "config": "a.yaml", "max_epochs": 50}, {"max_epochs": 3, "config": "own"})
    assert words == ["train", "--config", "a.yaml", "--epochs", "50", "--lr=0.5"]
    Space(params={"optim": {"lr": tune.uniform(0, 1)}}, command="train {optim/lr}")


RANKS = """
import os, subprocess, sys, time
import tuner_trial
if len(sys.argv) == 2:
    for rank in range(2):
        subprocess.Popen([sys.executable, __file__, sys.argv[1], "rank"])
    time.sleep(60)
for epoch in range(3):
    tuner_trial.report({"loss": 1})
time.sleep(60)
"""


def test_two_processes_that_report_at_once_fail_the_trial(search, tmp_path):
    ran = search(written(tmp_path, RANKS), "--num-samples", "1")
    assert ran.code == 1 and "two processes of the command report" in ran.out


def test_a_launchers_rank_and_another_current_folder_are_not_the_trials(search, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    text = """
import os
import tuner_trial
os.makedirs("elsewhere/saved")
os.chdir("elsewhere")
open("saved/state", "w").write("right")
tuner_trial.report({"loss": 1}, checkpoint="saved")
"""
    ran = search(written(tmp_path, text), "--num-samples", "1")
    assert ran.code == 0, ran.out + ran.err
    assert (ran.folder / "best" / "checkpoint" / "state").read_text() == "right"


WAITS = """
import os, sys
import tuner_trial
own = os.path.join(sys.argv[1], "state")
for epoch in range(4):
    open(own, "wb").write(bytes([epoch]) * 20_000_000)
    tuner_trial.report({"loss": 4 - epoch})
    tuner_trial.report({"loss": 9})
"""


def test_a_process_waits_until_its_checkpoint_is_copied_and_an_unchanged_one_is_not(search, tmp_path):
    (tmp_path / "train.py").write_text(WAITS)
    command = [sys.executable, str(tmp_path / "train.py"), "{checkpoint}", "{lr}"]
    (tmp_path / "space.py").write_text(f"{HEAD}space = Space(params={GRID}, command={command})\n")
    ran = search(str(tmp_path / "space.py"), "--num-samples", "1")
    assert ran.code == 0, ran.out + ran.err
    state = (ran.folder / "best" / "checkpoint" / "state").read_bytes()
    assert set(state) == {3} and len(state) == 20_000_000
    saved = [event["epoch"] for event in ran.events if event["event"] == "report" and event.get("checkpoint")]
    assert not saved or set(saved) == {1, 3, 5, 7}


def test_a_stopped_program_of_another_language_gets_its_exit_code(search, tmp_path):
    script = f"{sys.executable} -m tuner_trial '{{\"loss\": 0.5}}'; echo ended with $? > {tmp_path}/code"
    (tmp_path / "space.py").write_text(f"{HEAD}space = Space(params={GRID}, command={['sh', '-c', script]!r})\n")
    assert search(str(tmp_path / "space.py"), "--num-samples", "1", "--max-epochs", "1").code == 0
    assert (tmp_path / "code").read_text() == "ended with 3\n"


def test_what_is_no_report_is_refused_and_the_program_goes_on(tmp_path):
    (folder := tmp_path / "own").mkdir()
    program = Program([sys.executable, "-c", "import time; print('up'); time.sleep(60)"], folder, {})
    heard = program.heard(2.0)
    assert next(heard) == "up"
    answers = []
    for text in (b"garbage\n", b'{"metrics": 3}\n', b"[]\n"):
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(str(folder / "socket"))
            other.sendall(text)
            other.settimeout(5)
            thread = threading.Thread(target=lambda other=other: answers.append(other.recv(1)))
            thread.start()
            list(program.heard(0.3))
            thread.join()
    program.end()
    assert answers == [b"!"] * 3


NESTED = """
import json, sys
import tuner
from ray import tune
from tuner.space import Space

def train(config):
    for epoch in range(2):
        tune.report({"loss": config["x"]})

space = Space(params={"x": tune.grid_search([2.0, 1.0])}, train=train)
tuner.search(space, num_samples=1, results=sys.argv[2], name="inner", wandb="disabled")
print(json.dumps({"loss": 1.0}))
"""


@pytest.mark.slow
def test_a_search_within_a_command_gets_its_own_trials_reports(search, tmp_path):
    (tmp_path / "train.py").write_text(NESTED)
    command = [sys.executable, str(tmp_path / "train.py"), "{lr}", str(tmp_path / "inner")]
    text = f"{HEAD}space = Space(params={{'lr': tune.choice([1.0, 2.0])}}, command={command})\n"
    (tmp_path / "space.py").write_text(text)
    ran = search(str(tmp_path / "space.py"), "--num-samples", "1")
    assert ran.code == 0, ran.out + ran.err
    inner = results.load(tmp_path / "inner" / "inner")
    assert [len(trial.reports) for trial in inner.trials] == [2, 2]


def test_a_misspelt_name_is_refused_and_a_name_with_dots_is_nested(search, tmp_path):
    from ray import tune

    params = {"lr": tune.uniform(0, 1), "batch_size": 16}
    with pytest.raises(ValueError, match="{lrr} is no parameter; did you mean 'lr'?"):
        Space(params=params, command="train {lrr} {batch_size}")
    with pytest.raises(
        ValueError, match="{batchsize} is no parameter; .* 'batch_size'.*{lrr} is no parameter; .* 'lr'"
    ):
        Space(params=params, command="train {lrr} {batchsize}")
    Space(params=params, command="train {lr} {lrr} ${HOME} {print}")
    text = "import json, sys; print(json.dumps({'loss': json.load(open(sys.argv[1]))['optim']['lr']}))"
    words = [
        "--param",
        "optim.lr=grid_search(1, 2)",
        "--num-samples",
        "1",
        "--",
        sys.executable,
        "-c",
        text,
        "{config}",
    ]
    ran = search(None, *words)
    assert [trial.reports[0].metrics["loss"] for trial in ran.record.trials] == [1, 2]
    assert "not checked" not in ran.out and "rss_bytes" not in ran.record.trials[0].reports[0].metrics


def test_three_commands_that_fail_alike_end_the_search(search, tmp_path):
    program = "import random; print('seconds', random.random())"
    words = ["--param", "lr=uniform(0, 1)", "--num-samples", "8", "--report", "losss=(?P<loss>.+)"]
    ran = search(None, *words, "--", sys.executable, "-c", program)
    assert ran.code == 1 and len(ran.record.trials) < 8
    assert "the search was stopped, as these trials failed alike" in ran.out
    assert "--resume then tries these trials again; for another command, start a new search" in ran.out


def test_a_command_that_names_its_length_or_its_seed_declares_them():
    from ray import tune

    params = {"lr": tune.uniform(0, 1)}
    own = Space(params=params, command="train --epochs {max_epochs} --seed {seed}")
    other = Space(params=params, command="train --epochs {{max_epochs}}")
    assert (own.max_epochs, own.seeded, other.max_epochs, other.seeded) == (10, True, 1000, False)


NEWEST = """
import os, sys
import tuner_trial
seen = [tuner_trial.checkpoint_folder()]
open(os.environ["TUNER_TRIAL"] + "/checkpoint/log", "w").close()
seen += [tuner_trial.checkpoint_folder()]
tuner_trial.report({"loss": 1})
seen += [os.listdir(tuner_trial.checkpoint_folder())]
assert seen == [None, None, ["log"]], seen
"""
NEWEST_OF_TUNE = """
import tempfile
from ray import tune
seen = [tune.get_checkpoint()]
for epoch in range(2):
    with tempfile.TemporaryDirectory() as folder:
        open(folder + "/state", "w").write(str(epoch))
        tune.report({"loss": 1}, checkpoint=tune.Checkpoint.from_directory(folder))
    seen += [open(tune.get_checkpoint().path + "/state").read()]
assert seen == [None, "0", "1"], seen
"""


@pytest.mark.parametrize("text", [NEWEST, NEWEST_OF_TUNE], ids=["tuner_trial", "tune.report"])
def test_only_what_is_reported_is_a_checkpoint_and_the_newest_one_is_given(search, tmp_path, text):
    ran = search(written(tmp_path, text), "--num-samples", "1")
    assert {trial.status for trial in ran.record.trials} == {"completed"}, ran.out + ran.err


def test_words_for_parameters_that_all_have_a_place_are_refused():
    from ray import tune

    params = {"lr": tune.uniform(0, 1), "optim": {"decay": 0.1}}
    for command in ("train {lr} {optim.decay}", "train {config}"):
        with pytest.raises(ValueError, match="words='{key}={value}' is for parameters without a place"):
            Space(params=params, command=command, words="{key}={value}")
    Space(params=params, command="train {lr}", words="{key}={value}")


def test_the_environments_programs_are_found_first_unless_another_one_is_activated(monkeypatch):
    own = sysconfig.get_path("scripts")
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin")
    assert search_path() == f"{own}:/usr/bin"
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)  # this one
    assert search_path() == f"{own}:/usr/bin"
    monkeypatch.setenv("CONDA_PREFIX", "/other")
    assert search_path() == f"/usr/bin:{own}"
    monkeypatch.setenv("PATH", f"/usr/bin:{own}")
    assert search_path() == f"/usr/bin:{own}"
    monkeypatch.delenv("CONDA_PREFIX")
    monkeypatch.delenv("PATH")
    assert search_path() == f"{own}:{os.defpath}"


def test_the_gpus_of_a_trial_take_their_place():
    from ray import tune

    space = Space(params={"lr": tune.uniform(0, 1)}, command="torchrun --nproc_per_node {gpus} train.py {lr} {cpus}")
    filled = space.train.filled({"lr": 0.5}, {"gpus": 2.0, "cpus": 1.5})
    assert filled == ["torchrun", "--nproc_per_node", "2", "train.py", "0.5", "1.5"]


def test_an_environments_own_sitecustomize_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('own')")
    path = os.pathsep.join([IN_COMMAND, str(tmp_path)])
    for more in ({}, {VARIABLE: str(tmp_path)}):
        done = subprocess.run(
            [sys.executable, "-c", "print(1)"], env={**os.environ, **more, "PYTHONPATH": path}, capture_output=True
        )
        assert done.stdout == b"own\n1\n", done.stderr


SAVES_LAST = """
import json, os, sys
import tuner_trial
own = os.path.join(os.environ["TUNER_TRIAL"], "checkpoint", "state.json")
begin = json.load(open(own)) if os.path.exists(own) else 0
for epoch in range(begin + 1, int(sys.argv[2]) + 1):
    json.dump(epoch, open(own, "w"))
    tuner_trial.report({"loss": float(sys.argv[1]) + 1 / epoch})
open("last", "w").write(f"{begin} to {sys.argv[2]}")
"""


def test_what_follows_a_commands_last_report_runs_and_more_epochs_continue_it(search, tmp_path):
    space = written(tmp_path, SAVES_LAST)
    text = (tmp_path / "space.py").read_text()
    (tmp_path / "space.py").write_text(text.replace("'{lr}'", "'{lr}', '{max_epochs}'"))
    ran = search(space, "--num-samples", "1", "--scheduler", "fifo", "--max-epochs", "2")
    assert ran.code == 0, ran.out + ran.err
    assert {(each.status, each.reason, each.last_epoch) for each in ran.record.trials} == {
        ("completed", "trained its 2 epochs", 2)
    }
    assert (ran.folder / "best" / "files" / "last").read_text() == "0 to 2"
    ran = search(space, "--resume", "test", "--max-epochs", "3")
    assert [each.last_epoch for each in ran.record.trials] == [3, 3], ran.out + ran.err
    assert (ran.folder / "best" / "files" / "last").read_text() == "2 to 3"
    config = json.loads((ran.folder / "best" / "config.json").read_text())["config"]
    assert config == {"lr": 0.25, "max_epochs": 3}


def test_a_command_whose_last_epoch_is_saved_may_end_without_another_report(tmp_path, monkeypatch):
    from ray import tune

    space = Space(params={"lr": tune.uniform(0, 1)}, command=[sys.executable, "-c", "pass", "{lr}"])
    (saved := tmp_path / "saved").mkdir()
    for checkpoint, fails in ((tune.Checkpoint.from_directory(saved), False), (None, True)):
        monkeypatch.setattr(tune, "get_checkpoint", lambda checkpoint=checkpoint: checkpoint)
        (folder := tmp_path / str(fails)).mkdir()
        if fails:
            with pytest.raises(RuntimeError, match="has not reported"):
                space.train({"lr": 0.5}, ["loss"], folder, {})
        else:
            space.train({"lr": 0.5}, ["loss"], folder, {})


def test_a_command_without_a_place_for_a_seed_says_so_and_is_not_offered_to_be_confirmed(search, tmp_path):
    program = "import json, sys; print(json.dumps({'loss': float(sys.argv[1])}))"
    words = "--param", "lr=grid_search(1, 2)", "--num-samples", "1", "--", sys.executable, "-c", program, "{lr}"
    ran = search(None, "--confirm", "1", "--dry-run", *words)
    assert "NOTE: --confirm 1: the command gets no seed" in ran.out
    for more, is_offered in (("{seed}", True), ("", False)):
        name = f"seeded{is_offered}"
        ran = search(None, *words, more, name=name)
        assert ran.code == 0 and (" --confirm 2" in ran.out) == is_offered, ran.out
