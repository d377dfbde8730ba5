"""The table of devices and trials, from recorded answers of NVML and from journals."""

import os
import sys
from types import SimpleNamespace

import pytest

from tuner import gpus
from tuner.record.journal import Journal
from tuner.training.devices import nvml


class NVMLError(Exception):
    pass


class Recorded:
    """NVML's answers for two devices: one that tells all, and a MIG slice that tells neither use nor power."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, pids):
        self.pids, self.open = pids, 0

    def nvmlInit(self):
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid != "GPU-5f3a":
            raise NVMLError("Not Found")
        return 0

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetUtilizationRates(self, handle):
        if handle == 1:
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=97, memory=41)

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=85520809984, free=64035840000, used=21484969984)

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 54

    def nvmlDeviceGetPowerUsage(self, handle):
        if handle == 1:
            raise NVMLError("Not Supported")
        return 412345

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid) for pid in self.pids] if handle == 0 else []


class Without:
    """A machine without NVIDIA's driver."""

    NVMLError = NVMLError

    def nvmlInit(self):
        raise NVMLError("NVML Shared Library Not Found")


@pytest.fixture
def results(tmp_path):
    (tmp_path / "mine").mkdir()
    journal = Journal(tmp_path / "mine" / "journal.jsonl")
    journal.write("experiment_started", name="mine")
    here = {"node": "127.0.0.1", "resources": {"CPU": 1, "GPU": 0.25}, "config": {}}
    journal.write("trial_started", "00000", **here, pid=os.getpid())
    journal.write("report", "00000", epoch=3, metrics={"loss": 1.0})
    journal.write("trial_started", "00001", **here, pid=2**22 + 1)  # above the kernel's largest: a killed search's
    journal.write("trial_started", "00002", **here, pid=os.getpid())
    journal.write("trial_ended", "00002", status="pruned", reason="")
    journal.close()
    return tmp_path


def output_of(monkeypatch, capsys, driver, *options):
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    assert gpus.main(list(options)) == 0
    return capsys.readouterr().out.splitlines()


def test_every_device_is_told_with_its_trials(monkeypatch, capsys, results):
    driver = Recorded([os.getpid(), 77])
    lines = output_of(monkeypatch, capsys, driver, "--results", str(results))
    assert lines[0].split() == ["gpu", "name", "busy", "memory", "temperature", "power", "trials"]
    row = "0    NVIDIA H100 80GB HBM3  97 %  20.0 of 79.6 GiB  54 C         412 W  mine/00000, 1 other process"
    assert lines[1] == row
    assert lines[2] == "1    NVIDIA H100 80GB HBM3  -     20.0 of 79.6 GiB  54 C         -      -"
    assert lines[4].split() == ["experiment", "trial", "pid", "node", "cpus", "gpus", "epoch"]
    assert lines[5].split() == ["mine", "00000", str(os.getpid()), "127.0.0.1", "1", "0.25", "3"] and len(lines) == 6
    assert driver.open == 0


def test_without_a_gpu_it_says_so_and_tells_of_the_machine(monkeypatch, capsys, results):
    lines = output_of(monkeypatch, capsys, Without(), "--results", str(results))
    assert lines[0] == "no NVIDIA GPU was found (NVML reports none)"
    assert "CPU" in lines[1] and "load" in lines[1] and lines[1].endswith("GiB")
    assert lines[-1].startswith("mine")


def test_an_experiment_that_cannot_be_read_is_left_out_and_its_neighbours_stay(monkeypatch, capsys, results, caplog):
    for name in ("bad", "pipe"):
        (results / name).mkdir()
    (results / "bad" / "journal.jsonl").write_text("[]\n")
    os.mkfifo(results / "pipe" / "journal.jsonl")
    odd = Journal(results / "mine" / "journal.jsonl")
    odd.write("trial_started", "00003", node="n" * 5000, resources={"CPU": {}, "GPU": "all"}, pid=5, config={})
    odd.write("trial_started", "00004", node="n", resources={}, pid="../..", config={})
    odd.close()
    lines = output_of(monkeypatch, capsys, Without(), "--results", str(results))
    rows = [line.split() for line in lines[-2:]]
    assert [row[:3] for row in rows] == [["mine", "00000", str(os.getpid())], ["mine", "00003", "5"]]
    assert rows[1][3:] == ["n" * gpus.MOST_NODE, "0", "0", "0"] and caplog.text.count("skipped: ") == 2


def test_a_journal_that_is_too_long_is_left_out_and_its_neighbours_stay(monkeypatch, results, caplog):
    (results / "long").mkdir()
    monkeypatch.setattr(gpus, "MOST_BYTES", (results / "mine" / "journal.jsonl").stat().st_size)
    (results / "long" / "journal.jsonl").write_bytes(b" " * (gpus.MOST_BYTES + 1))
    assert [trial.id for _, trial in gpus.TrialScanner().running(results)] == ["00000"]
    assert "long/journal.jsonl has" in caplog.text


def test_a_trial_without_a_worker_is_left_out(results):
    journal = Journal(results / "mine" / "journal.jsonl")
    here = {"node": "127.0.0.1", "resources": {}, "config": {}, "pid": os.getpid()}

    def running():
        return [trial.id for _, trial in gpus.TrialScanner().running(results)]

    journal.write("trial_failed", "00000", error="E", kind="user", will_retry=True)
    assert running() == []
    journal.write("trial_started", "00000", **here)
    assert running() == ["00000"]
    decision = {"epoch": 4, "rung": 4, "bracket": 0, "value": 1.0, "cutoff": 0.5, "recorded": 2, "reason": "r"}
    journal.write("decision", "00000", action="pause", **decision)
    assert running() == []
    journal.write("trial_started", "00000", **here)
    journal.write("experiment_resumed")  # the earlier session was killed; its process ids may be those of others now
    assert running() == []
    journal.close()


def test_a_device_is_found_by_its_uuid_and_one_that_is_not_there_tells_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", Recorded([]))
    assert nvml.percent("5f3a") == 97 and nvml.percent("other") is None
    monkeypatch.setitem(sys.modules, "pynvml", Without())
    assert nvml.percent("5f3a") is None
