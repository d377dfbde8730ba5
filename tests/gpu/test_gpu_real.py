"""What pretended devices show, on a real one: a share, memory that runs out, a poisoned context, a resume."""

import json
import subprocess
import sys
from functools import partial

import machines
import pytest
import torch
from machines import MIB, ROOT

from tuner.training.devices import accelerator
from tuner.training.devices.accelerator import release
from tuner.training.devices.usage import Usage

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
POISON = """
import json, torch
from tuner.engine.controller.failures import kind_of
told = []
for labels in (torch.tensor([7]), torch.tensor([0])):
    try:
        loss = torch.nn.functional.cross_entropy(torch.zeros(1, 3, device="cuda"), labels.cuda())
        told.append(["", str(loss.item())])
    except Exception as error:
        told.append(kind_of(error))
print(json.dumps(told))
"""


training = partial(machines.training, width=1024, gpus=1)


def test_a_batch_that_does_not_fit_shrinks_and_learns_the_same():
    whole = training(batch_size=65536, num=65536)
    expected = whole.run_epoch()
    whole.close()
    del whole
    release()
    try:
        accelerator.here.limit(400 * MIB / torch.cuda.get_device_properties().total_memory)
        shrunk = training(batch_size=65536, num=65536).run_epoch()
    finally:
        accelerator.here.limit(1)
    assert shrunk["micro_batch_size"] < 65536 == expected["micro_batch_size"]
    assert shrunk["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-4)
    assert shrunk["loss"] == pytest.approx(expected["loss"], rel=1e-3)


def test_a_poisoned_context_is_recognised_and_stays():
    done = subprocess.run([sys.executable, "-c", POISON], cwd=ROOT, capture_output=True, text=True, timeout=100)
    first, then = json.loads(done.stdout.splitlines()[-1])
    assert first[0] == then[0] == "cuda" and "usually a label or an index out of range" in first[1]


def test_a_resumed_training_takes_no_more_memory(tmp_path):
    trial = training(batch_size=1024, num=4096)
    trial.run_epoch()
    before = torch.cuda.memory_allocated()
    torch.save(trial.state_dict(), tmp_path / "state.pt")
    del trial
    release()
    resumed = training(batch_size=1024, num=4096)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True, map_location="cpu"))
    resumed.run_epoch()
    assert torch.cuda.memory_allocated() == pytest.approx(before, abs=MIB)


def test_a_share_holds_and_usage_has_the_figures():
    quarter = torch.cuda.get_device_properties().total_memory // 4
    accelerator.here.limit(0.25)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(quarter + 64 * MIB, dtype=torch.uint8, device="cuda")
    accelerator.here.limit(1)
    tensor = torch.empty(quarter + 64 * MIB, dtype=torch.uint8, device="cuda")
    read = Usage().read()
    assert read["gpu_memory_peak_bytes"] >= read["gpu_memory_bytes"] >= tensor.numel()
    assert 0 <= read.get("gpu_percent", 0) <= 100
