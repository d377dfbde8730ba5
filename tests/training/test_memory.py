"""A batch that does not fit is halved and gives the gradients of the whole; nothing outlives a training."""

import gc
import logging

import numpy as np
import pytest
import torch
import trained
from torch import nn
from trained import figures, same, weights

from tuner.training.data import Arrays, Splits
from tuner.training.micro_batches import MicroBatcher, check_mean

NUM_EXAMPLES = 50


@pytest.fixture(autouse=True)
def only_what_a_test_makes():
    """Collections, of which a test has dozens, leave out what the tests before it made: a second each in a full run."""
    gc.freeze()
    yield
    gc.unfreeze()


class Net(nn.Module):
    """Runs out of memory above `most` examples at once, while training or always."""

    def __init__(self, most, *layers, evaluating=False):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), *layers, nn.Tanh(), nn.Linear(16, 3))
        self.most, self.evaluating, self.seen = most, evaluating, []

    def forward(self, inputs):
        outputs = self.layers(inputs)  # first, so that the failed attempt has drawn its random numbers
        if len(inputs) > self.most and (self.training or self.evaluating):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        self.seen.append(len(inputs))
        return outputs


def arrays(num, dtype=np.float32, seed=0):
    stream = np.random.default_rng(seed)
    return Arrays(stream.normal(size=(num, 6)).astype(dtype), stream.integers(0, 3, num))


def training(most=1000, *layers, batch_size=16, dtype=torch.float32, schedule=None, evaluating=False, **options):
    def model(config):
        return Net(most, *(layer() for layer in layers), evaluating=evaluating).to(dtype)

    of_numpy = np.float64 if dtype == torch.float64 else np.float32
    splits = Splits(arrays(NUM_EXAMPLES, of_numpy), arrays(20, of_numpy, seed=1))
    changes = dict(model=model, prepare=None, augment=None, schedule=schedule, channels_last=False)
    return trained.training({"batch_size": batch_size, "lr": 0.1}, splits=splits, **changes, **options)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize(("most", "micro"), [(1, 1), (3, 2), (5, 4), (9, 8)])
def test_a_training_that_shrinks_is_the_one_that_fits(most, micro, dtype, tolerance):
    fits, shrinks = training(dtype=dtype), training(most, dtype=dtype)
    for _ in range(3):
        expected, report = fits.run_epoch(), shrinks.run_epoch()
        assert (expected.pop("micro_batch_size"), report.pop("micro_batch_size")) == (16, micro)
        assert figures(report) == pytest.approx(figures(expected), rel=tolerance)
    for one, other in zip(weights(fits), weights(shrinks), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


def test_what_fitted_is_remembered_and_resumed_bit_equal(tmp_path):
    whole = training(4, nn.Dropout)
    whole.run_epoch()
    torch.save(whole.state_dict(), tmp_path / "state.pt")
    report = figures(whole.run_epoch())
    resumed = training(1000, nn.Dropout)  # where all would fit, the micro-batch stays what it was
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert figures(resumed.run_epoch()) == report
    assert max(resumed.model.seen[:13]) == 4
    assert same(weights(whole), weights(resumed))


def test_a_repeated_step_draws_what_the_failed_attempt_drew():
    shrinks, shrunk = training(4, nn.Dropout), training(4, nn.Dropout)
    shrunk.train_fit.limit = 4
    assert figures(shrinks.run_epoch()) == figures(shrunk.run_epoch())
    assert same(weights(shrinks), weights(shrunk))


def test_evaluation_halves_too_and_apart():
    fits, shrinks = training(), training(16, evaluating=True)
    expected, report = fits.run_epoch(), shrinks.run_epoch()
    assert figures(report) == pytest.approx(figures(expected), rel=1e-6) and report["micro_batch_size"] == 16
    assert max(shrinks.model.seen) == 16 and shrinks.evaluate_fit.limit == 10


@pytest.mark.parametrize(("most", "on_oom", "calls"), [(0, "shrink", [16, 8, 4, 2, 1]), (8, "fail", [16])])
def test_it_fails_when_one_example_does_not_fit_or_shrinking_is_off(most, on_oom, calls, monkeypatch):
    trial, tried = training(most, on_oom=on_oom), []
    monkeypatch.setattr(trial.model.layers, "forward", lambda inputs: tried.append(len(inputs)))
    with pytest.raises(torch.OutOfMemoryError, match="2.00 GiB"):
        trial.run_epoch()
    assert tried == calls


def test_the_failed_attempt_is_freed_before_the_next():
    alive = []

    def work(size):
        if size > 4:
            tensor = torch.ones(12345)
            raise torch.OutOfMemoryError(f"no room for {tensor.numel()}")
        alive.append(tensors(lambda tensor: tensor.numel() == 12345))
        return torch.empty(2**58 if size > 2 else 1).numel() * size  # a CPU allocation that fails shrinks, too

    assert MicroBatcher("a test", shrink=True)(work, 8) == 2
    assert alive == [0, 0]


def test_another_error_is_not_repeated():
    trial = training()
    trial.train_fit(lambda size: size, 8)
    with pytest.raises(ZeroDivisionError):
        trial.train_fit(lambda size: 1 // 0, 8)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        trial.train_fit(lambda size: torch.ones(1, 2) @ torch.ones(1, 2), 8)
    assert trial.train_fit.limit is None


def test_batch_norm_is_warned_about_once(caplog):
    with caplog.at_level(logging.WARNING, logger="tuner.training"):
        training(2, lambda: nn.BatchNorm1d(16), batch_size=10).run_epoch()
        assert sum("batch norm normalizes" in record.getMessage() for record in caplog.records) == 1
        caplog.clear()
        training(4).run_epoch()
        messages = [record.getMessage() for record in caplog.records]
    assert not any("batch norm" in line for line in messages)
    assert "training continues with 4 examples at once" in messages


def tensors(of=lambda tensor: True):
    return sum(issubclass(type(each), torch.Tensor) and of(each) for each in gc.get_objects())


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("most", [1000, 4])
def test_a_dropped_training_leaves_no_tensor(most, precision):
    def constant(optimizer, config, max_epochs):
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=9)

    gc.collect()
    before = tensors()
    for _ in range(3):
        trial = training(most, nn.Dropout, precision=precision, schedule=constant)
        trial.run_epoch()
        state = trial.state_dict()
        del trial, state
        gc.collect()
        assert tensors() == before


@pytest.mark.parametrize("most", [1000, 4])
def test_no_graph_is_held_across_steps(most):
    trial, graphs = training(most), []
    step = trial.train_step

    def counted(inputs, targets):
        graphs.append(tensors(lambda tensor: tensor.grad_fn is not None))
        return step(inputs, targets)

    trial.train_step = counted
    trial.run_epoch()
    assert graphs == [graphs[0]] * 4 and all(parameter.grad is None for parameter in trial.model.parameters())


def weighted(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, weight=torch.tensor([1.0, 5.0, 0.1]))


def ignoring(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, ignore_index=1)


def summed(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="sum")


@pytest.mark.parametrize("loss", [weighted, ignoring, summed])
def test_a_loss_that_is_no_mean_is_refused_only_where_a_batch_is_cut(loss):
    whole = training(loss=loss)
    whole.run_epoch()
    with pytest.raises(ValueError, match="the loss is no mean over examples: that of .* give --strategy single and"):
        training(most=5, loss=loss).run_epoch()


def test_a_loss_that_cannot_be_compared_with_its_halves_is_not_checked():
    outputs, targets = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    for loss in (
        lambda outputs, targets: outputs["scores"].mean() + outputs["scale"],
        lambda outputs, targets: torch.rand(()),
        lambda outputs, targets: torch.tensor(float("nan")),
    ):
        check_mean(loss, {"scores": outputs, "scale": torch.tensor(2.0)}, targets)
        check_mean(lambda outputs, targets: nn.functional.cross_entropy(outputs, targets), outputs, targets)
