"""fp32, bf16 and fp16: what is computed in which, exact resume in each, and steps that overflow."""

import numpy as np
import pytest
import torch
from torch import nn

from tuner.space import Task
from tuner.training.data import Arrays, Splits
from tuner.training.devices.precision import widened
from tuner.training.loop import Training
from tuner.training.task import TrialSpec

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 3)
        )
        self.computed_in = set()

    def forward(self, inputs):
        outputs = self.layers(inputs)
        self.computed_in.add(outputs.dtype)
        return outputs


def images(num, seed=0):
    stream = np.random.default_rng(seed)
    labels = stream.integers(0, 3, num)
    pixels = stream.normal(size=(num, 3, 8, 8)).astype(np.float32)
    pixels[np.arange(num), labels] += 0.5
    return Arrays(pixels, labels)


def training(config=None, *, seen=None, fused=False, **options):
    def loss(outputs, targets):
        if seen is not None:
            seen.add(outputs.dtype)
        return nn.functional.cross_entropy(outputs, targets)

    task = Task(
        data=lambda data_dir: None,
        model=lambda config: ConvNet(),
        optimizer=lambda parameters, config: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, fused=fused),
        loss=loss,
        batch_size=16,
        channels_last=True,
    )
    splits = Splits(images(103), images(50, seed=1))
    return Training(task, splits, TrialSpec(config or {}, 0, 4, **options))


def figures(report):
    return {name: value for name, value in report.items() if not name.endswith("_s")}


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("batch_size", [2, 16])  # with oneDNN off and on
def test_the_model_runs_in_it_and_the_loss_in_float32(name, batch_size):
    seen = set()
    trial = training({"batch_size": batch_size}, seen=seen, precision=name)
    trial.model.computed_in.clear()  # of the choice of a backend, which runs the model once
    trial.run_epoch()
    assert trial.model.computed_in == {DTYPES[name]} and seen == {torch.float32}
    assert {parameter.dtype for parameter in trial.model.parameters()} == {torch.float32}


def test_the_settings_precision_goes_first():
    trial = training({"precision": "bf16"}, precision="fp32")
    trial.run_epoch()
    assert trial.model.computed_in == {torch.bfloat16}


@pytest.mark.parametrize("wrong", ["fp8", "", None, 16])
def test_a_wrong_precision_is_named(wrong):
    with pytest.raises(ValueError, match=r"precision is .*: give one of fp32, bf16, fp16"):
        training({"precision": wrong})


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_lower_precision_learns_as_fp32_does(name):
    low, full = training(precision=name), training()
    for _ in range(2):
        report, expected = low.run_epoch(), full.run_epoch()
        assert report["train_loss"] == pytest.approx(expected["train_loss"], rel=0.05)
        assert report["loss"] == pytest.approx(expected["loss"], rel=0.05)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("batch_size", [2, 16])
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_resume_gives_the_same_bits(name, batch_size, fused, tmp_path):
    config = {"batch_size": batch_size}
    whole = training(config, precision=name, fused=fused)
    whole.run_epoch()
    torch.save(whole.state_dict(), tmp_path / "state.pt")
    reports = [figures(whole.run_epoch()) for _ in range(2)]
    resumed = training(config, precision=name, fused=fused)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert [figures(resumed.run_epoch()) for _ in range(2)] == reports
    states = (whole.state_dict(), resumed.state_dict())
    assert all(map(torch.equal, *(state["model"].values() for state in states)))
    assert states[0]["precision"] == states[1]["precision"]


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_overflow_are_left_out(fused):
    trial = training(precision="fp16", fused=fused)
    trial.precision.load_state_dict({**trial.state_dict()["precision"], "scale": 2.0**30})
    report = trial.run_epoch()
    assert np.isfinite(report["loss"]) and trial.state_dict()["precision"]["scale"] < 2.0**30
    assert all(parameter.isfinite().all() for parameter in trial.model.parameters())


def test_outputs_are_widened_inside_containers_and_never_narrowed():
    low, double = torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.float64)
    result = widened({"a": (low, [double]), "b": 3})
    assert result["a"][0].dtype == torch.float32 and result["a"][1][0] is double and result["b"] == 3
