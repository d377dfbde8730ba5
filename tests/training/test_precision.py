"""fp32, bf16 and fp16: what is computed in which, and steps that overflow; `test_loop` resumes in each."""

import numpy as np
import pytest
import torch
from torch import nn
from trained import training

from tuner.training.devices.precision import Precision

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("batch_size", [2, 16])  # with oneDNN off and on
def test_the_model_runs_in_it_and_the_loss_in_float32(name, batch_size):
    seen = set()

    def loss(outputs, targets):
        seen.add(outputs.dtype)
        return nn.functional.cross_entropy(outputs, targets)

    trial = training({"batch_size": batch_size}, loss=loss, precision=name)
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
def test_steps_that_overflow_are_left_out(fused):
    trial = training({"fused": fused}, precision="fp16", schedule=None)
    trial.precision.scaler.load_state_dict({**trial.state_dict()["scaler"], "scale": 2.0**30})
    report = trial.run_epoch()
    assert np.isfinite(report["loss"]) and trial.state_dict()["scaler"]["scale"] < 2.0**30
    assert all(parameter.isfinite().all() for parameter in trial.model.parameters())


def test_outputs_are_widened_inside_containers_and_never_narrowed():
    low, double = torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.float64)
    precision = Precision("bf16", torch.device("cpu"))
    result = precision.forward(lambda inputs: {"a": (inputs, [double]), "b": 3}, low)
    assert result["a"][0].dtype == torch.float32 and result["a"][1][0] is double and result["b"] == 3
