"""GPUs that NVML reports, through a stub of its library: `tuner.gpus`, Ray's count, and the errors of a driver."""

import json
import os

import pytest
from journals import Journal
from machines import LOST, MISMATCH, NO_PERMISSION, Gpu
from tiers import further


def gpus_of(machine, *options):
    done = machine.python("-m", "tuner.gpus", "--results", machine.folder / "results", *options)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.splitlines()


def test_each_device_is_shown_with_its_figures_and_trials(machine, tmp_path):
    here = machine([Gpu(pids=(os.getpid(), 4_000_001)), Gpu(percent=-1, milliwatts=-1, celsius=-1), Gpu(result=LOST)])
    (here.folder / "results" / "mine").mkdir(parents=True)
    journal = Journal(here.folder / "results" / "mine" / "journal.jsonl")
    shares = {"node": "127.0.0.1", "resources": {"CPU": 1, "GPU": 0.5}, "config": {}}
    journal.write("trial_started", "00000", **shares, pid=os.getpid())
    journal.close()
    lines = [" ".join(line.split()) for line in gpus_of(here)]
    assert lines[1:4] == [
        "0 NVIDIA H200 97 % 0.2 of 1.0 GiB 54 C 412 W mine/00000, 1 other process",
        "1 NVIDIA H200 - 0.2 of 1.0 GiB - - -",
        "2 cannot be read (GPU is lost) - - - - -",
    ]
    assert lines[-1].split()[:2] == ["mine", "00000"]


def test_a_driver_that_does_not_answer_says_why(machine):
    why = "NVIDIA's driver does not answer: RM has detected an NVML/RM version mismatch"
    assert gpus_of(machine(1, init=MISMATCH))[0] == f"no NVIDIA GPU was found ({why})"


COUNTS = """
import json, sys
from tuner.engine.local.alone import local_cluster
from tuner.errors import RequestError
from tuner.spec.experiment import Experiment
from tuner.spec.resources import resources_of

def fit(gpus):
    try:
        found = resources_of(Experiment(cpus_per_trial=0.01, gpus_per_trial=gpus), [local_cluster()])
    except RequestError as error:
        return str(error)
    return [found.gpus, found.concurrent]

print(json.dumps([fit(gpus) for gpus in ("auto", 1, 0.5, 0.25, 2, 3)]))
"""


def counted(machine):
    done = machine.python("-c", COUNTS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("num", "expected"),
    [
        (1, [[1, 1], [1, 1], [0.5, 2], [0.25, 4], "there is 1 GPU on this machine; ask for 1 or less", "there is 1"]),
        pytest.param(8, [[1, 8], [1, 8], [0.5, 16], [0.25, 32], [2, 4], [3, 2]], marks=pytest.mark.slow),
    ],
)
def test_as_many_trials_as_fit_on_the_devices_that_ray_finds(machine, num, expected):
    for found, wanted in zip(counted(machine(num)), expected, strict=True):
        assert wanted in found if isinstance(wanted, str) else found == wanted


@pytest.mark.slow  # by default the tests of `tuner.gpus` above
def test_cuda_visible_devices_reduces_what_a_search_may_use(machine):
    assert counted(machine(4, more={"CUDA_VISIBLE_DEVICES": "1,3"}))[0] == [1, 2]


@pytest.mark.parametrize(
    ("error", "text"),
    further([(MISMATCH, "an NVML/RM version mismatch"), (NO_PERMISSION, "Insufficient Permissions")], 1),
)
def test_a_request_for_a_gpu_whose_driver_does_not_answer_is_refused_with_the_reason(machine, error, text):
    auto, one, *_ = counted(machine(2, init=error))
    assert auto[0] == 0
    assert one.startswith("--gpus-per-trial 1: there are 0 GPUs on this machine (NVIDIA's driver does not answer: ")
    assert one.endswith(f"{text}); leave it out")
