"""A metric is that of all examples, whatever the batches, the processes and the memory."""

import contextlib

import numpy as np
import pytest
import torch
from torch import nn

from tuner.space import Task, mean_of_batches
from tuner.training import metrics
from tuner.training.data import Arrays, Files, Splits
from tuner.training.group import Processes
from tuner.training.loop import Training
from tuner.training.task import TrialSpec

NUM_EXAMPLES = 101
STREAM = np.random.default_rng(0)
INPUTS = STREAM.normal(size=(NUM_EXAMPLES, 6)).astype(np.float32)
TARGETS = (INPUTS.sum(axis=1) + STREAM.normal(size=NUM_EXAMPLES) > 3).astype(np.int64)


def f1(scores, labels):
    chosen = scores.argmax(1)
    hits = ((chosen == 1) & (labels == 1)).sum()
    return 2 * hits / ((chosen == 1).sum() + (labels == 1).sum())


def auc(scores, labels):
    """Undefined, as scikit-learn's, where one of the classes is missing."""
    margins = scores[:, 1] - scores[:, 0]
    if len(labels.unique()) < 2:
        raise ValueError("only one class is present")
    return float((margins[labels == 1][:, None] > margins[labels == 0]).double().mean())


def accuracy(scores, labels):
    return (scores.argmax(1) == labels).float().mean()


class StreamedF1:
    """As a metric of torchmetrics."""

    def __init__(self):
        self.hits, self.total = 0, 0

    def update(self, scores, labels):
        chosen = scores.argmax(1)
        self.hits += int(((chosen == 1) & (labels == 1)).sum())
        self.total += int((chosen == 1).sum() + (labels == 1).sum())

    def compute(self):
        return 2 * self.hits / self.total


def model(config):
    layer = nn.Linear(6, 2)
    with torch.no_grad():
        layer.weight[0], layer.weight[1] = 0.0, 0.5
        layer.bias[0], layer.bias[1] = 0.0, -1.0
    return layer


def task(model=model, **measured):
    return Task(
        data=lambda data_dir: None,
        model=model,
        optimizer=lambda parameters, config: torch.optim.SGD(parameters, lr=0.0),
        metrics=measured or {"f1": f1, "auc": auc, "accuracy": accuracy},
    )


def decode(path):
    return INPUTS[int(path)]


def in_memory():
    return Splits(Arrays(INPUTS, TARGETS), Arrays(INPUTS, TARGETS))


def in_files():
    files = Files(np.array([str(row).encode() for row in range(NUM_EXAMPLES)]), TARGETS, decode)
    return Splits(files, files)


def material():
    return task(), in_memory()


def report(made, splits, **config):
    with contextlib.closing(Training(made, splits, TrialSpec(config, 3, 1))) as training:
        return training.run_epoch()


with torch.no_grad():
    SCORES = model({})(torch.from_numpy(INPUTS))
WHOLE = {name: float(each(SCORES, torch.from_numpy(TARGETS))) for name, each in dict(f1=f1, auc=auc).items()}


@pytest.mark.parametrize("splits", [in_memory, in_files])
@pytest.mark.parametrize("batch_size", [1, 4, 100, 300])
def test_a_metric_does_not_depend_on_the_batches(splits, batch_size):
    figures = report(task(), splits(), batch_size=batch_size)
    assert figures["f1"] == WHOLE["f1"] and figures["auc"] == WHOLE["auc"]
    assert figures["accuracy"] == pytest.approx((SCORES.argmax(1).numpy() == TARGETS).mean(), abs=1e-7)


def test_processes_give_the_metric_of_one():
    with contextlib.closing(Processes(material, 2)) as group:
        group.begin(TrialSpec({"batch_size": 16}, 3, 1))
        figures = group.run_epoch()
    assert figures["f1"] == WHOLE["f1"] and figures["auc"] == pytest.approx(WHOLE["auc"], abs=1e-12)


def test_a_metric_with_update_and_compute_gets_batches_and_keeps_no_state():
    metric = StreamedF1()
    with contextlib.closing(Training(task(f1=metric), in_files(), TrialSpec({"batch_size": 4}, 3, 2))) as training:
        assert [training.run_epoch()["f1"] for _ in range(2)] == pytest.approx([WHOLE["f1"]] * 2)
    assert metric.total == 0
    two = Training(task(f1=metric), in_memory(), TrialSpec({}, 3, 1))
    two.strategy.num_workers = 2
    with pytest.raises(ValueError, match="metric 'f1' has no `sync`"):
        two.run_epoch()


def test_a_metric_of_batches_is_averaged_over_examples():
    figures = report(task(f1=mean_of_batches(f1), accuracy=mean_of_batches(accuracy)), in_files(), batch_size=4)
    assert figures["accuracy"] == pytest.approx((SCORES.argmax(1).numpy() == TARGETS).mean())
    assert not figures["f1"] == pytest.approx(WHOLE["f1"])


class Both(nn.Module):
    """Returns a structure; `extra` may be no row for each example."""

    def __init__(self, extra):
        super().__init__()
        self.layer, self.extra = model({}), extra

    def forward(self, inputs):
        return {"scores": self.layer(inputs), "more": (self.extra(inputs),)}


def loss(outputs, labels):
    return nn.functional.cross_entropy(outputs["scores"], labels)


def test_outputs_may_be_structures_of_tensors():
    made = task(
        lambda config: Both(lambda inputs: inputs[:, 0]), f1=lambda outputs, labels: f1(outputs["scores"], labels)
    )
    made = Task(**{**vars(made), "loss": loss})
    assert report(made, in_files(), batch_size=4)["f1"] == WHOLE["f1"]
    for extra in (lambda inputs: inputs.mean(), lambda inputs: "text"):
        other = Task(**{**vars(made), "model": lambda config, extra=extra: Both(extra)})
        with pytest.raises(ValueError, match="no row for each example.*mean_of_batches"):
            report(other, in_files(), batch_size=4)


def test_outputs_that_are_too_large_to_keep_are_refused(monkeypatch):
    monkeypatch.setattr(metrics, "MAX_OUTPUT_BYTES", 8 * NUM_EXAMPLES - 1)
    with pytest.raises(ValueError, match="the metrics f1, auc, accuracy need the outputs of all examples"):
        report(task(), in_memory())
    assert report(task(f1=StreamedF1()), in_files())["f1"] == pytest.approx(WHOLE["f1"])


def test_a_metric_is_that_of_all_examples_after_memory_ran_out():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = model({})

        def forward(self, inputs):
            if len(inputs) > 5:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return self.layer(inputs)

    figures = report(task(lambda config: Net()), in_memory(), batch_size=50)
    assert figures["f1"] == WHOLE["f1"] and figures["micro_batch_size"] == 3
