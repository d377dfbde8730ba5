"""A trial's training: exact in repeat and in resume, every example once an epoch, nothing left behind."""

import copy
import random
import time

import numpy as np
import pytest
import torch
from torch import nn
from trained import NUM_EXAMPLES, figures, images, same, training, weights

from tuner.training import batches
from tuner.training.data import Arrays, Splits
from tuner.training.task import reseed


@pytest.mark.parametrize("batch_size", [2, 16])  # with oneDNN off and on
def test_the_same_seed_gives_the_same_bits(batch_size):
    first, second = training({"batch_size": batch_size}), training({"batch_size": batch_size})
    reports = [figures(first.run_epoch()) for _ in range(3)]
    random.random(), np.random.rand(), torch.rand(1)
    assert [figures(second.run_epoch()) for _ in range(3)] == reports
    assert same(weights(first), weights(second))
    assert figures(training({"batch_size": batch_size}, seed=1).run_epoch()) != reports[0]


def test_a_report_has_the_seconds_of_its_epoch():
    trial, began = training(), time.perf_counter()
    report = trial.run_epoch()
    assert 0 < report["train_s"] and 0 < report["validate_s"]
    assert report["train_s"] + report["validate_s"] <= time.perf_counter() - began
    assert report["images_per_s"] == pytest.approx(NUM_EXAMPLES / report["train_s"])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("batch_size", [2, 16])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_resume_after_any_epoch_gives_the_same_bits(batch_size, fused, precision, tmp_path):
    config = {"batch_size": batch_size, "fused": fused}
    whole = training(config, precision=precision)
    reports = []
    for epoch in range(4):
        torch.save(whole.state_dict(), tmp_path / f"{epoch}.pt")
        reports.append(figures(whole.run_epoch()))
    for epoch in range(4) if precision == "fp32" else (0, 2):
        resumed = training(config, precision=precision)
        resumed.load_state_dict(torch.load(tmp_path / f"{epoch}.pt", weights_only=True))
        assert resumed.epoch == epoch
        assert [figures(resumed.run_epoch()) for _ in range(epoch, 4)] == reports[epoch:]
        assert same(weights(whole), weights(resumed))
        assert whole.state_dict()["scaler"] == resumed.state_dict()["scaler"]


def test_a_loaded_state_is_not_aliased():
    donor, other = training(), training()
    donor.run_epoch()
    state = donor.state_dict()
    before = copy.deepcopy(state)
    other.load_state_dict(state)
    other.run_epoch()
    momenta = [[entry["momentum_buffer"] for entry in kept["optimizer"]["state"].values()] for kept in (state, before)]
    assert same(*momenta) and state["schedule"] == before["schedule"]


def test_a_changed_rate_changes_the_restored_one_in_proportion():
    donor = training({"lr": 0.05})
    donor.run_epoch()  # the schedule halves the rate
    for lr in (0.01, 0.05):
        taker = training({"lr": lr})
        taker.load_state_dict(donor.state_dict())
        assert taker.optimizer.param_groups[0]["lr"] == pytest.approx(lr / 2)


def test_a_schedule_over_all_epochs_continues_as_if_it_had_the_new_number_from_the_start():
    def over_all(optimizer, config, max_epochs):
        return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=max_epochs)

    def rate(trial):
        return trial.optimizer.param_groups[0]["lr"]

    short, long, resumed = (training(max_epochs=number, schedule=over_all) for number in (4, 8, 8))
    rates = []
    for _ in range(4):
        short.run_epoch(), long.run_epoch()
        rates.append(rate(long))
    resumed.load_state_dict(short.state_dict())
    assert rate(resumed) == pytest.approx(rates[-1]) and rate(short) == 0
    resumed.run_epoch(), long.run_epoch()
    assert rate(resumed) == pytest.approx(rate(long))


def test_a_schedule_of_rate_and_momentum_continues_both():
    def one_cycle(optimizer, config, max_epochs):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=max_epochs + 1)

    def options(trial):
        return {name: trial.optimizer.param_groups[0][name] for name in ("lr", "momentum")}

    short, long, resumed = (training(max_epochs=number, schedule=one_cycle) for number in (4, 8, 8))
    for _ in range(4):
        short.run_epoch(), long.run_epoch()
    assert options(short)["momentum"] != pytest.approx(options(long)["momentum"])
    resumed.load_state_dict(short.state_dict())
    for _ in range(2):
        assert options(resumed) == pytest.approx(options(long))
        resumed.run_epoch(), long.run_epoch()


def test_evaluate_is_the_mean_over_examples(monkeypatch):
    monkeypatch.setattr(batches, "CHUNK_VALUES", 3 * 8 * 8 * 7)  # 7 images at once, the last chunk smaller
    trial = training({"batch_size": 2})
    part = images(50, seed=1)
    trial.model.eval()
    with torch.no_grad():
        outputs = trial.model(trial.task.prepare(torch.from_numpy(part.inputs)))
    labels = torch.from_numpy(part.targets)
    evaluated = trial.evaluate(part)
    assert evaluated["loss"] == pytest.approx(float(nn.functional.cross_entropy(outputs, labels)), rel=1e-5)
    assert evaluated["accuracy"] == pytest.approx(float((outputs.argmax(1) == labels).float().mean()))


@pytest.mark.parametrize("chunk_values", [1, 10 * 192, 2**20])
@pytest.mark.parametrize("batch_size", [1, 4, 7, 103, 500])
def test_every_example_once_an_epoch_with_its_target_whatever_the_chunks(monkeypatch, batch_size, chunk_values):
    monkeypatch.setattr(batches, "CHUNK_VALUES", chunk_values)
    pixels = np.zeros((NUM_EXAMPLES, 3, 8, 8), np.uint8)
    pixels[:, 0, 0, 0] = np.arange(NUM_EXAMPLES)
    part = Arrays(pixels, np.arange(NUM_EXAMPLES))
    read, seen = [], []

    def record(outputs, targets):
        seen.append(targets.tolist())
        return outputs.square().mean()

    def check(inputs):
        assert inputs.shape[1:] == (3, 8, 8)
        read.append(((inputs[:, 0, 0, 0] + 0.5) * 255).round().int().tolist())
        return inputs

    changes = dict(loss=record, metrics={}, augment=check, splits=Splits(part, part))
    trial = training({"batch_size": batch_size}, seed=3, **changes)
    trial.train_epoch()
    expected = [batch_size] * (NUM_EXAMPLES // batch_size) + [NUM_EXAMPLES % batch_size]
    assert [len(batch) for batch in seen] == [length for length in expected if length] and read == seen
    # A resume by a later version of this program trains on the examples in the same order.
    reseed(3, epoch=1)
    assert sum(seen, []) == torch.randperm(NUM_EXAMPLES).tolist()
    order = sum(seen, [])
    seen.clear()
    trial.train_epoch()
    assert sum(seen, []) != order


@pytest.mark.filterwarnings("error")
def test_read_only_arrays_are_read_and_never_written():
    parts = [Arrays(part.inputs.astype(np.float32), part.targets) for part in (images(), images(50, seed=1))]
    for part in parts:
        part.inputs.flags.writeable = part.targets.flags.writeable = False
    before = [part.inputs.copy() for part in parts]

    def in_place(config):
        return nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(192, 3))

    for prepare in (None, lambda inputs: inputs.div_(255).sub_(0.5)):
        training(model=in_place, prepare=prepare, augment=None, splits=Splits(*parts)).run_epoch()
    assert all(np.array_equal(part.inputs, kept) for part, kept in zip(parts, before, strict=True))


@pytest.mark.parametrize(("batch_size", "is_fast"), [(2, False), (16, True)])
def test_small_convolutions_run_without_onednn_and_leave_no_trace(batch_size, is_fast):
    torch.backends.mkldnn.enabled = True  # whatever an earlier test left
    inside = []

    def watched(outputs, targets):
        if outputs.requires_grad:
            inside.append(torch.backends.mkldnn.enabled)
        if len(inside) == 5:
            raise RuntimeError("the user's loss")
        return nn.functional.cross_entropy(outputs, targets)

    with pytest.raises(RuntimeError, match="the user's loss"):
        training({"batch_size": batch_size}, loss=watched).run_epoch()
    assert inside == [is_fast] * 5 and torch.backends.mkldnn.enabled


@pytest.mark.parametrize("wrong", [0, 2.0, "8", None, True, np.float64(4)])
def test_a_wrong_batch_size_is_named_and_a_searchers_numpy_integer_is_taken(wrong):
    assert training({"batch_size": np.int64(4)}).batch_size == 4
    with pytest.raises(ValueError, match="batch_size is .*: give an integer of at least 1"):
        training({"batch_size": wrong})


@pytest.mark.parametrize(("splits", "word"), [((images(),), "validation"), ((images(), images(0)), "no examples")])
def test_a_missing_or_empty_part_is_named(splits, word):
    with pytest.raises(ValueError, match=word):
        training(splits=Splits(*splits))
