"""The table of running trials, from journals."""

import os
import socket
import sys

import pytest
from journals import Journal

from tuner import gpus


class Without:
    """A machine without NVIDIA's driver; `gpu/test_nvml_stub.py` shows devices."""

    class NVMLError(Exception):
        pass

    def nvmlInit(self):
        raise self.NVMLError("NVML Shared Library Not Found")


@pytest.fixture
def results(tmp_path):
    (tmp_path / "mine").mkdir()
    journal = Journal(tmp_path / "mine" / "journal.jsonl")
    journal.write("experiment_started", name="mine")
    here = {"node": "127.0.0.1", "resources": {"CPU": 1, "GPU": 0.25}, "config": {}}
    journal.write("trial_started", "00000", **here, pid=os.getpid())
    journal.write("report", "00000", epoch=3, metrics={"loss": 1.0})
    journal.write("trial_started", "00002", **here, pid=os.getpid())
    journal.write("trial_ended", "00002", status="pruned", reason="")
    journal.close()
    return tmp_path


def output_of(monkeypatch, capsys, results):
    monkeypatch.setitem(sys.modules, "pynvml", Without())
    assert gpus.main(["--results", str(results)]) == 0
    return capsys.readouterr().out.splitlines()


def test_without_a_gpu_the_machine_and_the_running_trials_are_shown(monkeypatch, capsys, results):
    lines = output_of(monkeypatch, capsys, results)
    assert lines[0] == "no NVIDIA GPU was found (NVML reports none)"
    assert "CPU" in lines[1] and "load" in lines[1] and lines[1].endswith("GiB")
    assert lines[3].split() == ["experiment", "trial", "pid", "node", "cpus", "gpus", "epoch"]
    assert lines[4].split() == ["mine", "00000", str(os.getpid()), "127.0.0.1", "1", "0.25", "3"] and len(lines) == 5


def test_an_experiment_that_cannot_be_read_is_left_out_and_its_neighbours_stay(monkeypatch, capsys, results, caplog):
    monkeypatch.setattr(gpus, "MAX_JOURNAL_BYTES", 10_000)
    for name in ("bad", "pipe", "long"):
        (results / name).mkdir()
    (results / "bad" / "journal.jsonl").write_text("[]\n")
    os.mkfifo(results / "pipe" / "journal.jsonl")
    (results / "long" / "journal.jsonl").write_bytes(b" " * (gpus.MAX_JOURNAL_BYTES + 1))
    odd = Journal(results / "mine" / "journal.jsonl")
    odd.write("trial_started", "00003", node="n" * 5000, resources={"CPU": {}, "GPU": "all"}, pid=5, config={})
    odd.write("trial_started", "00004", node="n", resources={}, pid="../..", config={})
    odd.close()
    lines = output_of(monkeypatch, capsys, results)
    rows = [line.split() for line in lines[-2:]]
    assert [row[:3] for row in rows] == [["mine", "00000", str(os.getpid())], ["mine", "00003", "5"]]
    assert rows[1][3:] == ["n" * gpus.MOST_NODE, "0", "0", "0"] and caplog.text.count("skipped: ") == 3
    assert "long/journal.jsonl has" in caplog.text


def test_a_trial_without_a_worker_is_left_out(results):
    journal = Journal(results / "mine" / "journal.jsonl")
    here = {"node": "127.0.0.1", "resources": {}, "config": {}, "pid": os.getpid()}

    def running(known):
        return [trial.id for _, trial in gpus.running(results, known)]

    known = {}
    journal.write("trial_failed", "00000", error="E", kind="user", will_retry=True)
    assert running(known) == []
    journal.write("trial_started", "00000", **here)
    assert running(known) == ["00000"] == running(known)
    decision = {"epoch": 4, "rung": 4, "bracket": 0, "value": 1.0, "cutoff": 0.5, "recorded": 2, "reason": "r"}
    journal.write("decision", "00000", action="pause", **decision)
    assert running(known) == []
    journal.write("trial_started", "00000", **here)
    assert running(known) == ["00000"]
    (results / "mine" / ".driver").write_text(f"process 1 on {socket.gethostname()}\n")  # was killed: holds no lock
    assert running(known) == []
    (results / "mine" / ".driver").unlink()
    journal.write("experiment_resumed")  # the earlier session was killed; its process ids may be those of others now
    assert running(known) == []
    journal.close()
