"""A command as a space: its words, its reports, its failures, and how it ends."""

import os
import re
import shlex
import signal
import sys

import pytest
from ray import tune

from tuner import load, run
from tuner.errors import RequestError
from tuner.spec import domains
from tuner.spec.command import command_of, domain_of, fields_of, masked, name_of, shown_name
from tuner.spec.command_process import Program
from tuner.spec.space import Space

HEAD = "from tuner import Space, tune\n"
LR = "{'lr': tune.grid_search([0.5, 0.25])}"


@pytest.mark.parametrize(
    ("given", "config", "words"),
    [
        ("train --lr {lr}", {"lr": 1e-5}, ["train", "--lr", "1e-05"]),
        ("train fit --x={lr}:{n} '{lr} b'", {"lr": 0.1, "n": 3}, ["train", "fit", "--x=0.1:3", "0.1 b"]),
        ("train", {"lr": 0.1, "amp": True}, ["train", "--lr=0.1", "--amp=True"]),
        ("train {other} {{lr}} {lr}", {"lr": "a b"}, ["train", "{other}", "{lr}", "a b"]),
        ('train \'{"a": {"b": 1}}\' {n}', {"n": 32.0}, ["train", '{"a": {"b": 1}}', "32"]),
        ("train '{\"a\": 1}' {lr}", {"lr": -1}, ["train", '{"a": 1}', "-1"]),
        ("train {optimizer.lr}", {"optimizer": {"lr": 0.1, "name": "sgd"}}, ["train", "0.1", "--optimizer.name=sgd"]),
        (["train", "a b", 3], {"sizes": [8, 16]}, ["train", "a b", "3", "--sizes=[8, 16]"]),
    ],
)
def test_values_take_the_places_of_their_names_and_the_others_are_added(given, config, words):
    assert command_of(given, "", "--{key}={value}").filled(config) == words


def test_the_form_of_added_words_can_be_another():
    words = command_of("train", "", "--{key} {value}").filled({"lr": 0.1, "x": "a b"})
    assert words == ["train", "--lr", "0.1", "--x", "a b"]
    assert command_of("python train.py", "", "{key}={value}").filled({"lr": 0.1}) == ["python", "train.py", "lr=0.1"]


@pytest.mark.parametrize(
    ("line", "report", "metrics"),
    [
        ('{"loss": 0.5, "epoch": 1}\n', "", {"loss": 0.5, "epoch": 1}),
        ('  {"loss": 0.5, "names": ["a"], "note": "x"}', "", {"loss": 0.5, "note": "x"}),
        ('{"other": 0.5}', "", {}),
        ("epoch 1 loss=0.5, acc=1", r"loss=(?P<loss>\S+)", {"loss": 0.5}),
        ("{'loss': 0.5}", "", {}),
        ("epoch 1 loss=0.5 acc=1e-3", r"loss=(?P<loss>\S+) acc=(?P<acc>\S+)", {"loss": 0.5, "acc": 1e-3}),
        ("epoch 1 loss=0.5", r"loss=(?P<loss>\S+)( acc=(?P<acc>\S+))?", {"loss": 0.5}),
        ("epoch 1", r"loss=(?P<loss>\S+)", {}),
    ],
)
def test_a_line_is_a_report_if_it_has_the_metric_or_matches(line, report, metrics):
    assert command_of("train", report, "{value}").metrics_in(line, ["loss"]) == metrics


def test_a_diverged_value_is_a_report():
    command = command_of("train", r"loss=(?P<loss>\S+)", "{value}")
    for line in ("loss=nan", '{"loss": null}', '{"loss": NaN}'):
        (value,) = command.metrics_in(line, ["loss"]).values()
        assert value != value
    with pytest.raises(ValueError, match="report= matches 'x' as the loss: make its group match a number"):
        command.metrics_in("loss=x", ["loss"])


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"command": []}, "command=[]: give a program and its arguments"),
        ({}, "Space has none of them; give exactly one of task=, train= and command="),
        ({"command": "  "}, "command='  ': give a program and its arguments"),
        ({"command": 5}, "command=5: must be a text, such as"),
        ({"command": "x", "train": print}, "Space has train= and command=; give exactly one of"),
        ({"command": "x", "report": "loss=("}, "report='loss=(' is no regular expression (missing )"),
        ({"command": "x", "report": "loss=.*"}, "report='loss=.*' names no metric: write (?P<loss>"),
        ({"command": "x 'y"}, "No closing quotation"),
        ({"train": print, "report": "(?P<loss>.)"}, "report= and words= are for command=; leave them out"),
        ({"command": "x", "words": "--{key}"}, "words='--{key}': write {value} where the value is"),
    ],
)
def test_a_wrong_command_is_refused(fields, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        Space(params={"lr": tune.uniform(0, 1)}, **fields)


def test_a_program_that_is_missing_is_named_before_the_first_trial(search, tmp_path):
    (tmp_path / "space.py").write_text(f"{HEAD}space = Space(params={LR}, command='./missing {{lr}}')\n")
    ran = search(str(tmp_path / "space.py"))
    assert ran.code == 2 and "command './missing {lr}': ./missing: no executable in" in ran.err and not ran.record


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("python trian.py {lr}", "trian.py: no such file in TMP; did you mean 'train.py'?"),
        ("python other/train.py", "other/train.py: no such file in TMP; correct it"),
        ("train.py {lr}", "train.py: no executable on PATH; write python train.py"),
    ],
)
def test_a_script_that_is_missing_is_named_with_one_that_exists(given, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "trian2.py").mkdir()  # nearer, but a folder
    with pytest.raises(RequestError, match=re.escape(why.replace("TMP", str(tmp_path)))):
        command_of(given, "", "{value}").check()
    for right in ("python train.py", "python -m trian.py", "python {lr}.py", "python trian2.py"):
        command_of(right, "", "{value}").check()


TRAINS = """import json, os, sys
lr = float(sys.argv[1])
for epoch in range(4):
    print("epoch", epoch)
    print(json.dumps({"loss": lr / (1 + epoch), "pid": os.getpid()}))
open("model.txt", "w").write(sys.argv[1])
"""


def test_trials_run_the_command_and_its_output_has_their_reports(search, tmp_path):
    (tmp_path / "train.py").write_text(TRAINS)
    space = f"space = Space(params={LR}, command='{sys.executable} {tmp_path}/train.py {{lr}}')\n"
    (tmp_path / "space.py").write_text(HEAD + space)
    ran = search(str(tmp_path / "space.py"), "--num-samples", "1", "--scheduler", "fifo", "--dry-run")
    assert re.search(f"command     {sys.executable} {tmp_path}/train.py 0.2?5 .example.", ran.out)
    ran = search(str(tmp_path / "space.py"), "--num-samples", "1", "--scheduler", "fifo")
    assert ran.code == 0, ran.out + ran.err
    for trial in ran.record.trials:
        lr = trial.config["lr"]
        assert [report.metrics["loss"] for report in trial.reports] == [lr, lr / 2, lr / 3, lr / 4]
        assert (ran.folder / "ray" / trial.id / "stdout").read_text().count("epoch ") == 4
    assert (ran.folder / "best" / "files" / "model.txt").read_text() == "0.25"


SHELL = """trap 'echo stopped >> "OUT/stopped"; exit 0' TERM
for epoch in 1 2 3 4 5 6 7 8; do
    echo "epoch $epoch: loss is $1"
    sleep 0.2
done
echo "$1" >> "OUT/whole"
"""


def test_a_pruned_command_of_another_language_is_told_to_end(search, tmp_path):
    (out := tmp_path / "out").mkdir()
    (tmp_path / "train.sh").write_text(SHELL.replace("OUT", str(out)))
    params = "{'lr': tune.grid_search([1.0, 2.0, 3.0, 4.0])}"
    fields = "command='sh FOLDER/train.sh {lr}', report='loss is (?P<loss>[0-9.]+)'"
    text = f"{HEAD}space = Space(params={params}, {fields})\n".replace("FOLDER", str(tmp_path))
    (tmp_path / "space.py").write_text(text)
    ran = search(
        str(tmp_path / "space.py"), "--scheduler", "asha", "--num-samples", "1", "--max-concurrent-trials", "1"
    )
    statuses = [trial.status for trial in ran.record.trials]
    assert ran.code == 0 and statuses[0] == "completed" and "pruned" in statuses
    assert (out / "stopped").read_text().count("stopped") == statuses.count("pruned")
    assert "1" in (out / "whole").read_text().split()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo one; echo two >&2; sleep 0.1; exit 3", "the command ended with exit code 3; its last lines: "),
        (
            "echo one",
            "it printed no line with a JSON object that has loss; its last lines: one",
        ),
        ("kill -15 $$", f"the command was ended by signal {signal.SIGTERM.value}; it printed nothing"),
    ],
)
def test_a_command_that_fails_says_why(search, tmp_path, script, why):
    (tmp_path / "space.py").write_text(
        f"{HEAD}space = Space(params={LR}, command=['sh', '-c', {script!r}, 'x', '{{lr}}'])\n"
    )
    ran = search(str(tmp_path / "space.py"), "--num-samples", "1")
    assert ran.code == 1 and {trial.status for trial in ran.record.trials} == {"failed"}
    assert all(why in trial.reason for trial in ran.record.trials)
    line = next(line for line in ran.out.splitlines() if line.startswith("failed "))
    assert ("; all of its output: " in line and line.endswith("/stderr")) == ("its last lines" in why)


def test_output_is_passed_on_as_it_is_and_read_by_lines(tmp_path, capfd):
    command = r"printf 'a\rb \377\n'; printf c; sleep 0.1; printf 'd\n\nend'; echo err >&2"
    program = started(command, tmp_path)
    assert sorted(program.heard()) == sorted(["a\rb \ufffd", "cd", "", "end", "err"])
    program.end()
    assert capfd.readouterr() == ("a\rb \ufffd\ncd\n\nend", "err\n")


def started(script, tmp_path):
    (folder := tmp_path / "own").mkdir()
    return Program(["sh", "-c", script], folder, {})


def test_what_goes_on_printing_after_the_end_holds_nobody_up(tmp_path):
    program = started("yes & sleep 0.3; echo hi", tmp_path)
    assert "hi" in list(program.heard())
    os.killpg(program.process.pid, signal.SIGKILL)
    program.end()


def test_a_stopped_command_may_print_and_save_and_so_may_its_children(tmp_path):
    child = f"trap 'touch {tmp_path}/child; exit' TERM; echo ready; while :; do sleep 0.05; done"
    parent = f"trap 'seq 20000; sleep 0.2; touch {tmp_path}/saved; exit' TERM"
    program = started(f"{parent}; ({child}) & while :; do sleep 0.05; done", tmp_path)
    assert next(program.heard()) == "ready"
    program.end()
    assert sorted(os.listdir(tmp_path)) == ["child", "own", "saved"]


def test_what_a_command_leaves_ends_with_the_trial(search, tmp_path):
    command = ["sh", "-c", f"setsid sleep 600 & echo $! > {tmp_path}/pid; echo '{{\"loss\": 1}}'"]
    (tmp_path / "space.py").write_text(f"{HEAD}space = Space(params={LR}, command={command})\n")
    ran = search(str(tmp_path / "space.py"), "--num-samples", "1")
    assert ran.code == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert [trial.reports[0].metrics["loss"] for trial in ran.record.trials] == [1, 1]


def test_what_looks_like_a_secret_is_not_shown(search, tmp_path, monkeypatch):
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path / "cache"))
    given = [
        "--param",
        "lr=uniform(0, 1)",
        "--",
        "echo",
        '{"loss": 1}',
        "--api-key",
        "a b",
        "token=c",
        "--my.Password=d e",
    ]
    shown = shown_name(shlex.join(given))
    assert shown.endswith("-- echo '{\"loss\": 1}' --api-key '***' 'token=***' '--my.Password=***'")
    assert masked(["--tokens", "3", "--token", "--x", "a"]) == ["--tokens", "***", "--token", "--x", "a"]
    secret = "hidden-from-readers"
    words = ["--param", "lr=uniform(0, 1)", "--num-samples", "1", "--", "sh", "-c", "echo '{\"loss\": 1}'"]
    words += ["--api-key", secret]
    ran = search(None, *words)
    assert ran.code == 0 and secret not in ran.out + ran.err
    for name in ("report.html", "journal.jsonl", "trials.csv"):
        assert secret not in (ran.folder / name).read_text()


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        ("lr=loguniform(1e-5, 1e-1)", "loguniform", None),
        ("lr= tune.uniform(lower=0, upper=1)", "uniform", None),
        ("batch=choice(16, 64)", "choice", [16, 64]),
        ("net=choice([small, 'large', 3])", "choice", ["small", "large", 3]),
        ("net=grid_search(a, True, -1.5)", "grid_search", ["a", True, -1.5]),
    ],
)
def test_a_domain_is_read_without_being_evaluated(text, kind, values):
    _, domain = domain_of(text)
    assert domains.kind(domain) == kind
    assert values is None or domains.values_of(domain) == values


@pytest.mark.parametrize(("text", "value"), [("epochs=5", 5), ("name=a b", "a b"), ("lr=0.1", 0.1), ("x=True", True)])
def test_what_is_no_call_is_a_constant(text, value):
    assert domain_of(text)[1] == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("lr", "write it as name=domain"),
        ("lr=", "write it as name=domain"),
        ("lr=unifrom(0, 1)", "unifrom is no domain; did you mean 'uniform'?"),
        ("lr=system('rm')", "system is no domain; the domains are uniform"),
        ("lr=uniform(open('x'), 1)", "malformed node"),
        ("lr=uniform(1)", "missing 1 required positional argument"),
    ],
)
def test_a_wrong_domain_is_refused(text, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        domain_of(text)


def test_all_wrong_domains_are_named_at_once():
    name = name_of(["a=unifrom(0, 1)", "b=uniform(0, 1)", "c=chioce(1, 2)"], "", "--{key}={value}", ["true"])
    with pytest.raises(ValueError, match=r"did you mean 'uniform'\?; --param .*; did you mean 'choice'\?"):
        fields_of(name)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--", "true"], "a command needs --param NAME=DOMAIN, and words after --, as in: --param"),
        (["--param", "lr=uniform(0, 1)", "--"], "after --, as in"),
        (["--param", "lr=uniform(0, 1)"], "after --, as in"),
        (
            ["--space", "cifar", "--param", "lr=uniform(0, 1)", "--", "true"],
            "--space cifar: not allowed with --",
        ),
        (["--param", "lr=uniform(0)", "--", "true"], "--param 'lr=uniform(0)': uniform() missing 1 required"),
    ],
)
def test_a_wrong_command_line_is_refused(search, words, why):
    ran = search(None, *words)
    assert ran.code == 2 and why in ran.err and not ran.record


def test_a_command_line_is_a_space_that_a_resume_finds_again(search, tmp_path, monkeypatch):
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "train.py").write_text(TRAINS)
    words = "--", sys.executable, str(tmp_path / "train.py"), "{lr}"
    ran = search(None, "--param", "lr=uniform(0.25, 0.5)", "--num-samples", "2", "--scheduler", "fifo", *words)
    assert ran.code == 0 and [len(trial.reports) for trial in ran.record.trials] == [4, 4], ran.out + ran.err
    assert run.main(["--resume", str(ran.folder), "--num-samples", "3", "--wandb", "disabled"]) == 0
    assert len(load(ran.folder).trials) == 3
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path / "of another user"))
    assert run.main(["--resume", str(ran.folder), "--num-samples", "4"]) == 2
