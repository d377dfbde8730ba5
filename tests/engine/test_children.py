"""A trial whose function reports in a process that it starts."""

import multiprocessing
import pickle
from multiprocessing.process import BaseProcess
from types import SimpleNamespace

import pytest

from tuner.engine.workers.reports import ELSEWHERE, explained


def work(rank):
    """What a process does."""


@pytest.fixture
def processes(monkeypatch):
    """Processes that do not start; those of `broken` cannot get their function."""

    def start(process):
        if process.name == "broken":
            raise pickle.PicklingError("Can't pickle <function work>: import of module 'x' failed")

    monkeypatch.setattr(BaseProcess, "start", start)
    return lambda **options: multiprocessing.Process(target=work, args=(0,), **options).start()


def test_a_trial_that_reports_nothing_names_the_process_that_it_started(processes):
    before = BaseProcess.start
    said = (
        r"own process has reported nothing; it ran work \(.*test_children.py, line 14\) in another one; send the metric"
    )
    with pytest.raises(ValueError, match=said), explained(SimpleNamespace(num_reports=0)):
        processes()
    assert BaseProcess.start is before
    with explained(SimpleNamespace(num_reports=1)):
        processes()
    with explained(SimpleNamespace(num_reports=0)):
        pass  # no process: Ray says that there is no report


def test_a_report_in_another_process_names_it(processes):
    said = rf"^{ELSEWHERE}, by work \(.*line 14\); send the metric"
    with pytest.raises(ValueError, match=said), explained(SimpleNamespace(num_reports=0)):
        processes()
        raise RuntimeError(f"-- Process 0 terminated:\nTraceback ...\nRuntimeError: {ELSEWHERE}; ...")


def test_a_function_that_a_process_cannot_import_is_named(processes):
    said = r"^work \(.*line 14\) cannot run in another process: .* put it into a module beside the space's file; send"
    with pytest.raises(ValueError, match=said), explained(SimpleNamespace(num_reports=0)):
        processes(name="broken")


def test_the_processes_of_a_data_loader_report_nothing(monkeypatch):
    monkeypatch.setattr(BaseProcess, "start", lambda process: None)
    monkeypatch.setattr(work, "__module__", "torch.utils.data._utils.worker")
    with explained(SimpleNamespace(num_reports=0)):
        multiprocessing.Process(target=work).start()
