"""A trial's reports: what they have besides metrics, and those of processes that the trial starts."""

import errno
import io
import json
import multiprocessing
import os
import pdb
import pickle
import re
import sys
import threading
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from ray import cloudpickle
from ray.tune.result import RESULT_DUPLICATE

from tuner.engine.controller.failures import kind_of
from tuner.engine.workers import retried
from tuner.engine.workers.reports import ELSEWHERE, EscapedError, Reporter, errors_sent, explained, persisted
from tuner.record.report_keys import EPOCH, IMPROVED, RAY_KEYS, WAITS


def work(rank):
    """What a process does."""


WORK = rf"work \(.*test_reports.py, line {work.__code__.co_firstlineno}\)"


@pytest.fixture
def processes(monkeypatch):
    """Processes that do not start; those of `broken` cannot get their function."""

    def start(process):
        if process.name == "broken":
            raise pickle.PicklingError("Can't pickle <function work>: import of module 'x' failed")

    monkeypatch.setattr(BaseProcess, "start", start)
    return lambda **options: multiprocessing.Process(target=work, args=(0,), **options).start()


def test_a_trial_that_reports_nothing_names_the_process_that_it_started(processes, monkeypatch):
    before = BaseProcess.start
    said = f"own process has reported nothing; it ran {WORK} in another one; send the metric"
    with pytest.raises(ValueError, match=said), explained(SimpleNamespace(num_reports=0)):
        processes()
    assert BaseProcess.start is before
    with explained(SimpleNamespace(num_reports=1)):
        processes()
    with explained(SimpleNamespace(num_reports=0)):
        pass  # no process: Ray says that there is no report
    monkeypatch.setattr(work, "__module__", "torch.utils.data._utils.worker")
    with explained(SimpleNamespace(num_reports=0)):
        processes()  # of a DataLoader


@pytest.mark.parametrize("ask", [breakpoint, input])
def test_a_trial_that_asks_for_input_is_told_that_it_has_none(ask, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys, "breakpointhook", lambda: pdb.Pdb(nosigint=True).set_trace(sys._getframe(1)))

    def run():
        ask()
        return 1

    with pytest.raises(RuntimeError, match="a trial has no input; take breakpoint.. and input.. out"):
        with explained(SimpleNamespace(num_reports=1)):
            run()


def test_a_report_in_another_process_and_a_function_that_it_cannot_import_are_named(processes):
    said = f"^{ELSEWHERE}, by {WORK}; send the metric"
    with pytest.raises(ValueError, match=said), explained(SimpleNamespace(num_reports=0)):
        processes()
        raise RuntimeError(f"-- Process 0 terminated:\nTraceback ...\nRuntimeError: {ELSEWHERE}; ...")
    said = f"^{WORK} cannot run in another process: .* put it into a module beside the space's file; send"
    with pytest.raises(ValueError, match=said), explained(SimpleNamespace(num_reports=0)):
        processes(name="broken")


def test_a_process_may_run_a_method_without_a_module():
    with pytest.raises(ValueError, match="own process has reported nothing"), explained(SimpleNamespace(num_reports=0)):
        process = multiprocessing.get_context("fork").Process(target=[].append, args=(1,))
        process.start()
        process.join()
        assert process.exitcode == 0


def test_reports_carry_the_figures_and_tensors_are_numbers(search_here, tmp_path):
    space = tmp_path / "tensors.py"
    space.write_text(TENSORS)
    ran = search_here(str(space), "--scheduler", "fifo")
    by_kind = {trial.config["kind"]: trial for trial in ran.record.trials}
    for kind in ("scalar", "one", "numpy"):
        assert [report.metrics["loss"] for report in by_kind[kind].reports] == [1.0, 0.5], kind
    assert by_kind["many"].status == "failed"
    said = "ValueError: 'loss' is reported as a tensor of shape (2,): report a number"
    assert by_kind["many"].reason.startswith(said)
    assert {"cpu_percent", "rss_bytes"} <= set(by_kind["one"].reports[0].metrics)
    assert "rss_bytes" not in ran.out


TENSORS = '''"""Reports what is no plain number."""
import numpy as np
import torch
from ray import tune
from tuner.space import Space
AS = {"scalar": torch.tensor, "one": lambda value: torch.tensor([value], requires_grad=True), "numpy": np.float32,
      "many": lambda value: torch.tensor([value, value])}
def train(config):
    for epoch in (1, 2):
        tune.report({"loss": AS[config["kind"]](1.0 / epoch)})
space = Space(params={"kind": tune.grid_search(list(AS))}, train=train, max_epochs=2, num_samples=1)
'''


def test_a_checkpoint_and_all_names_on_its_way_are_on_the_disk_before_it_is_reported(tmp_path, monkeypatch):
    synced, folder = [], tmp_path / "experiment" / "ray" / "00000" / "checkpoint_000000"

    def persist(checkpoint):
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "state.pt").touch()
        assert not synced
        return SimpleNamespace(path=str(folder))

    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(Path(os.readlink(f"/proc/self/fd/{handle}"))))
    assert persisted(persist, None).path == str(folder)
    assert set(synced) == {folder / "deep" / "state.pt", folder / "deep", folder, *folder.parents[:3]}


class Stopped:
    """A reporter of a function that Ray does not stop."""

    num_reports, stopped_by_ray = 1, False


def empties():
    return next(iter([]))


def gives_up():
    try:
        {}["lr"]
    except KeyError:
        raise SystemExit(1)  # noqa: B904


def closes():
    raise GeneratorExit


def line_of(function, further):
    return rf"\(.*test_reports.py, line {function.__code__.co_firstlineno + further}\)"


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (empties, rf"^StopIteration {line_of(empties, 1)}: next\(iterator, None\)"),
        (gives_up, rf"called sys.exit\(1\) {line_of(gives_up, 4)} after KeyError: 'lr' {line_of(gives_up, 2)}$"),
        (closes, rf"^GeneratorExit {line_of(closes, 1)}$"),
    ],
)
def test_an_exception_that_ray_takes_for_an_end_is_told_with_its_cause(function, told):
    with pytest.raises((EscapedError, RuntimeError), match=told) as raised, explained(Stopped()):
        function()
    assert isinstance(raised.value.__cause__, (StopIteration, SystemExit, GeneratorExit))
    assert kind_of(raised.value)[0] == "user"
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_an_exit_without_an_error_says_what_to_do_and_one_by_ray_passes():
    with pytest.raises(RuntimeError, match=r"called sys.exit\('bad'\) \(.*\): return, or raise"), explained(Stopped()):
        raise SystemExit("bad")
    with pytest.raises(SystemExit), explained(SimpleNamespace(stopped_by_ray=True)):
        raise SystemExit(0)


def test_a_functions_checkpoint_waits_for_room_on_the_disk(monkeypatch):
    told, errors = [], iter([OSError(errno.ENOSPC, "No space left on device"), None, None])

    def report(metrics, checkpoint=None):
        told.append((dict(metrics), checkpoint))
        if checkpoint and (error := next(errors)):
            raise error

    monkeypatch.setattr(retried, "RETRY_INTERVAL_S", 0)
    reporter = Reporter(report, "loss")
    reporter({"loss": 1.0}, checkpoint="c")
    assert [checkpoint for _, checkpoint in told] == ["c", None, "c"]
    assert told[1][0] == {WAITS: "a checkpoint cannot be saved (No space left on device)"}
    assert reporter.num_reports == 1
    errors = iter([OSError(errno.ENOENT, "no")])
    with pytest.raises(FileNotFoundError):
        reporter({"loss": 1.0}, checkpoint="c")


def test_a_trial_that_is_stopped_while_it_waits_for_room_is_stopped_by_ray(monkeypatch):
    def report(metrics, checkpoint=None):
        raise OSError(errno.ENOSPC, "full") if checkpoint else SystemExit(0)

    reporter = Reporter(report, "loss")
    with pytest.raises(SystemExit):
        reporter({"loss": 1.0}, checkpoint="c")
    assert reporter.stopped_by_ray


class Closed:
    def __repr__(self):
        raise RuntimeError("closed")


@pytest.fixture
def sent():
    """`sent(metrics)` reports; returns what the driver gets, without the usage of this process."""
    got = []
    reporter = Reporter(lambda metrics, **options: got.append(metrics), "loss", {"loss", "size_mb"})
    usage = reporter._usage.read().keys()

    def report(metrics, **options):
        reporter(metrics, **options)
        return {name: value for name, value in got.pop().items() if name not in usage}

    return report


def test_a_metric_that_cannot_be_kept_is_left_out_and_told_once_with_its_line(sent):
    first = sent({"loss": 0.5, "handle": Closed(), 0: True}, checkpoint=None)
    ((name, told),) = first.pop("left_out")
    assert first == {"loss": 0.5, "0": True} and name == "handle"
    assert re.fullmatch(r"its Closed cannot be read \(RuntimeError: closed\) \(.*test_reports.py, line \d+\)", told)
    assert sent({"loss": 0.25, "handle": Closed()}, checkpoint=None) == {"loss": 0.25}


@pytest.mark.parametrize(
    "name", [*sorted(RAY_KEYS), "timesteps_this_iter", "waits_for_disk", "final_report", "improved"]
)
def test_no_name_of_rays_or_tuners_is_obeyed(sent, name):
    got = sent({"loss": 0.5, str(name): True}, checkpoint=None)
    (told,) = got.pop("left_out")
    assert got == {"loss": 0.5} and told[0] == name and "sets it itself; report it under another name" in told[1]


def test_tuners_own_keys_reach_the_driver_and_ray_tells_the_end(sent):
    assert sent({EPOCH: 3, IMPROVED: 3, "loss": 1.0}, checkpoint=None) == {
        "training_iteration": 3,
        "improved": 3,
        "loss": 1,
    }
    assert sent({WAITS: "why"}, checkpoint=None) == {"waits_for_disk": "why"}
    assert sent({RESULT_DUPLICATE: True}) == {RESULT_DUPLICATE: True}
    assert RESULT_DUPLICATE not in sent({RESULT_DUPLICATE: True}, checkpoint=None)


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        (
            {"loss": Closed()},
            r"'loss' cannot be the metric of a search: its Closed cannot be read \(RuntimeError: closed\)",
        ),
        ({"loss": 0.5, "size_mb": Closed()}, "'size_mb' cannot be"),
        ({"_metric": np.zeros((2, 3))}, r"'loss' is reported as an array of shape \(2, 3\): report a number"),
        (0.5, r"tune.report got a float: give a dictionary, as \{'loss': loss\}"),
    ],
)
def test_an_objective_or_constraint_that_cannot_be_kept_fails_the_trial(sent, metrics, text):
    with pytest.raises(ValueError, match=text):
        sent(metrics, checkpoint=None)


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Unloadable(Exception):
    def __init__(self, one, two):
        super().__init__(one)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Mute(), r"^Mute: \(Mute has no text: str\(\) raises RuntimeError\)$"),
        (Unloadable("one", 2), "^Unloadable: one$"),
        (ValueError("caf\udce9"), r"^ValueError: caf\\udce9$"),
        (ValueError("x" * 2_000_000), "^ValueError: x{4096} .1,995,904 more characters.$"),
        (ValueError(threading.Lock()), "^ValueError: <unlocked _thread.lock object at "),
    ],
)
def test_an_error_that_ray_cannot_send_or_print_is_replaced_by_its_text(error, text):
    with pytest.raises(RuntimeError, match=text) as caught, errors_sent():
        raise error
    assert caught.traceback[-1].name == "test_an_error_that_ray_cannot_send_or_print_is_replaced_by_its_text"
    cloudpickle.loads(cloudpickle.dumps(caught.value))
    kept = KeyError("x")
    with pytest.raises(KeyError) as caught, errors_sent():
        raise kept
    assert caught.value is kept


def test_a_search_goes_on_without_what_it_cannot_keep(search_here, tmp_path):
    space = tmp_path / "hostile.py"
    space.write_text(HOSTILE)
    ran = search_here(str(space), "--scheduler", "fifo", "--point", "x=0.75")
    assert ran.code == 0 and ran.out.count("its metric") == 4, ran.out
    line = next(number for number, text in enumerate(HOSTILE.splitlines(), 1) if "tune.report" in text)
    said = (
        rf"NOTE: trial 00000: its metric 'handle' is left out: its Handle cannot be read .*closed\) \(.*, line {line}\)"
    )
    assert re.search(said, " ".join(ran.out.split())) and "Traceback" not in ran.out + ran.err
    for trial in ran.record.trials:
        last = trial.reports[-1]
        assert last.epoch == 10 and last.metrics["0"] == 0.5 and last.metrics["cell"] == 2.5
        assert last.metrics["word"] == "caf\\udce9" and last.metrics["depth"] == 3
    config = ran.record.trials[0].config
    assert config == {"x": 0.75, "f": config["f"], "g": config["g"], "w": config["w"]} and "0x" not in str(config)
    assert json.loads((ran.folder / "best" / "config.json").read_text())["config"]["net"] == {"depth": 3}
    resumed = search_here("", "--resume", "test", "--trust", "--num-samples", "4")
    assert resumed.code == 0 and len(resumed.record.trials) == 4 and "its metric" not in resumed.out, resumed.err
    assert [t.config for t in resumed.record.trials[:2]] == [t.config for t in ran.record.trials]
    assert {type(trial.config["g"]) for trial in resumed.record.trials} == {float}


HOSTILE = '''"""Reports what cannot be kept, and chooses what is no constant."""
import math
import numpy as np
import pandas
from ray import tune
from tuner.space import Space
class Handle:
    def __repr__(self):
        raise RuntimeError("closed")
def linear(x):
    return x
def train(config):
    depth = config["net"]["depth"]
    config["net"]["depth"] += 1
    for step in range(10):
        rays = {"done": True, "training_iteration": 100 * step}
        odd = {"handle": Handle(), "cell": pandas.DataFrame({"a": [2.5]}), "word": "caf\\udce9", "x" * 2000: 1, 0: 0.5}
        tune.report({"loss": config["f"](config["x"]), "depth": depth, **rays, **odd})
params = {"x": tune.uniform(0, 1), "net": {"depth": 3}, "f": tune.choice([linear, math.tanh, lambda x: x / 2])}
params |= {"g": tune.choice([1.0, math.inf]), "w": tune.choice([np.array([0.1, 0.9]), {"a", "b", "c"}])}
space = Space(params=params, train=train, max_epochs=10, num_samples=2)
'''
