"""A trial's reports: what they have besides metrics, and those of processes that the trial starts."""

import errno
import multiprocessing
import os
import pickle
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tuner.engine.controller.failures import kind_of
from tuner.engine.workers import reports
from tuner.engine.workers.reports import ELSEWHERE, EscapedError, Reporter, explained, persisted
from tuner.record.report_keys import WAITS


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


def test_a_report_in_another_process_and_a_function_that_it_cannot_import_are_named(processes):
    said = f"^{ELSEWHERE}, by {WORK}; send the metric"
    with pytest.raises(ValueError, match=said), explained(SimpleNamespace(num_reports=0)):
        processes()
        raise RuntimeError(f"-- Process 0 terminated:\nTraceback ...\nRuntimeError: {ELSEWHERE}; ...")
    said = f"^{WORK} cannot run in another process: .* put it into a module beside the space's file; send"
    with pytest.raises(ValueError, match=said), explained(SimpleNamespace(num_reports=0)):
        processes(name="broken")


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

    monkeypatch.setattr(reports, "RETRY_S", 0)
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
