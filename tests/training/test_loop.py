"""A trial's training: exact in repeat and in resume, every example once an epoch, nothing left behind."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from tuner.space import Task
from tuner.training import batches
from tuner.training.data import Arrays, Splits
from tuner.training.loop import Training
from tuner.training.streams import reseed
from tuner.training.task import TrialSpec

NUM_EXAMPLES = 103  # a prime: no batch size divides it


class ConvNet(nn.Module):
    """All that makes exactness hard: a convolution, running statistics and dropout."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(36, 3))

    def forward(self, images):
        return self.head(self.features(images))


def images(num=NUM_EXAMPLES, seed=0):
    """uint8 images whose class, 0 to 2, is the channel that is brightest."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, num)
    pixels = rng.integers(0, 200, (num, 3, 8, 8), dtype=np.uint8)
    pixels[np.arange(num), labels] += 55
    return Arrays(pixels, labels)


def noisy(inputs):
    """Draws from each of the three streams that an augmentation may use."""
    return inputs + torch.randn_like(inputs) * 0.1 + random.random() * 0.1 + np.random.rand() * 0.1


def halving(optimizer, config, max_epochs):
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)


TASK = dict(
    data=lambda data_dir: None,
    model=lambda config: ConvNet(),
    optimizer=lambda parameters, config: torch.optim.SGD(parameters, lr=config.get("lr", 0.05), momentum=0.9),
    metrics={"accuracy": lambda outputs, targets: (outputs.argmax(1) == targets).float().mean()},
    prepare=lambda inputs: inputs.float() / 255 - 0.5,
    augment=noisy,
    schedule=halving,
    channels_last=True,
)


def training(config=None, *, seed=0, splits=None, **changes):
    task = Task(**{**TASK, **changes})
    splits = splits or Splits(images(), images(50, seed=1))
    return Training(task, splits, TrialSpec(config or {}, seed, 4))


def figures(report):
    """The part of a report that must repeat; the rest are seconds and what is counted by them."""
    return {name: value for name, value in report.items() if not name.endswith("_s")}


def weights(trial):
    return [tensor.clone() for tensor in trial.model.state_dict().values()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("batch_size", [2, 16])  # with oneDNN off and on
def test_the_same_seed_gives_the_same_bits(batch_size):
    first, second = training({"batch_size": batch_size}), training({"batch_size": batch_size})
    reports = [figures(first.run_epoch()) for _ in range(3)]
    random.random(), np.random.rand(), torch.rand(1)
    assert [figures(second.run_epoch()) for _ in range(3)] == reports
    assert same(weights(first), weights(second))
    assert figures(training({"batch_size": batch_size}, seed=1).run_epoch()) != reports[0]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("batch_size", [2, 16])
def test_resume_after_any_epoch_gives_the_same_bits(batch_size, fused, tmp_path):
    config = {"batch_size": batch_size}

    def sgd(parameters, config):
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, fused=fused)

    whole = training(config, optimizer=sgd)
    reports = []
    for epoch in range(4):
        torch.save(whole.state_dict(), tmp_path / f"{epoch}.pt")
        reports.append(figures(whole.run_epoch()))
    for epoch in range(4):
        resumed = training(config, optimizer=sgd)
        resumed.load_state_dict(torch.load(tmp_path / f"{epoch}.pt", weights_only=True))
        assert resumed.epoch == epoch
        assert [figures(resumed.run_epoch()) for _ in range(epoch, 4)] == reports[epoch:]
        assert same(weights(whole), weights(resumed))


def test_a_loaded_state_is_not_aliased():
    donor = training()
    donor.run_epoch()
    state = donor.state_dict()
    before = copy.deepcopy(state)
    other = training()
    other.load_state_dict(state)
    other.run_epoch()
    momenta = [[entry["momentum_buffer"] for entry in kept["optimizer"]["state"].values()] for kept in (state, before)]
    assert same(*momenta) and state["schedule"] == before["schedule"]


def test_a_kept_option_stays_as_the_setting_has_it():
    donor, taker = training({"lr": 0.05}, schedule=None), training({"lr": 0.01}, schedule=None)
    donor.run_epoch()
    taker.load_state_dict(donor.state_dict(), keep=["lr"])
    assert taker.optimizer.param_groups[0]["lr"] == 0.01
    taker.load_state_dict(donor.state_dict())
    assert taker.optimizer.param_groups[0]["lr"] == 0.05


def test_the_schedule_goes_on():
    trial = training()
    rates = []
    for _ in range(2):
        trial.run_epoch()
        rates.append(trial.optimizer.param_groups[0]["lr"])
    resumed = training()
    resumed.load_state_dict(trial.state_dict())
    resumed.run_epoch()
    assert [*rates, resumed.optimizer.param_groups[0]["lr"]] == [0.025, 0.0125, 0.00625]


def test_a_schedule_over_all_epochs_continues_as_if_it_had_the_new_number_from_the_start():
    def over_all(optimizer, config, max_epochs):
        return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=max_epochs)

    def of(max_epochs):
        splits = Splits(images(), images(50, seed=1))
        return Training(Task(**{**TASK, "schedule": over_all}), splits, TrialSpec({}, 0, max_epochs))

    def rate(trial):
        return trial.optimizer.param_groups[0]["lr"]

    short, long = of(4), of(8)
    rates = []
    for _ in range(4):
        short.run_epoch(), long.run_epoch()
        rates.append(rate(long))
    resumed = of(8)
    resumed.load_state_dict(short.state_dict())
    assert rate(resumed) == pytest.approx(rates[-1]) and rate(short) == 0
    resumed.run_epoch(), long.run_epoch()
    assert rate(resumed) == pytest.approx(rate(long))


@pytest.fixture
def alone():
    """A process group of this process only, which ddp needs."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("strategy", "gpus", "num_devices"), [("ddp", 2, 1), ("single", 0.5, 1), ("dp", 2, 2), ("single", 0, 1)]
)
def test_a_process_gets_the_devices_of_its_strategy(strategy, gpus, num_devices, alone):
    spec = TrialSpec({"batch_size": 4}, 3, 4, strategy=strategy, num_workers=1, gpus=gpus)
    trial = Training(Task(**TASK), Splits(images(), images(50, seed=1)), spec, device="cpu")
    assert trial.strategy.devices == [torch.device("cpu")] * num_devices and trial.device == torch.device("cpu")
    assert (trial.batch_size, trial.seed, trial.max_epochs) == (4, 3, 4)


def test_a_report_has_the_named_figures():
    trial = training()
    report = trial.run_epoch()
    seconds = {"train_s", "validate_s", "images_per_s"}
    assert set(report) == {"loss", "accuracy", "train_loss", "micro_batch_size"} | seconds
    assert report.pop("micro_batch_size") == trial.batch_size
    assert all(isinstance(value, float) for value in report.values())
    assert report["images_per_s"] == pytest.approx(NUM_EXAMPLES / report["train_s"])
    assert trial.epoch == 1


def test_evaluate_is_the_mean_over_examples(monkeypatch):
    monkeypatch.setattr(batches, "CHUNK_VALUES", 3 * 8 * 8 * 7)  # 7 images at once, the last chunk smaller
    trial = training({"batch_size": 2})
    part = images(50, seed=1)
    trial.model.eval()
    with torch.no_grad():
        outputs = trial.model(trial.task.prepare(torch.from_numpy(part.inputs)))
    labels = torch.from_numpy(part.targets)
    figures_ = trial.evaluate(part)
    assert figures_["loss"] == pytest.approx(float(nn.functional.cross_entropy(outputs, labels)), rel=1e-5)
    assert figures_["accuracy"] == pytest.approx(float((outputs.argmax(1) == labels).float().mean()))


@pytest.mark.parametrize("chunk_values", [1, 10 * 192, 2**20])
@pytest.mark.parametrize("batch_size", [1, 4, 7, 103, 500])
def test_every_example_once_an_epoch_whatever_the_chunks(monkeypatch, batch_size, chunk_values):
    monkeypatch.setattr(batches, "CHUNK_VALUES", chunk_values)
    pixels = np.zeros((NUM_EXAMPLES, 3, 8, 8), np.uint8)
    pixels[:, 0, 0, 0] = np.arange(NUM_EXAMPLES)
    part = Arrays(pixels, np.arange(NUM_EXAMPLES))
    seen = []

    def record(outputs, targets):
        seen.append(targets.tolist())
        return outputs.square().mean()

    def check(inputs):
        assert inputs.shape[1:] == (3, 8, 8)
        return inputs

    changes = dict(loss=record, metrics={}, augment=check, splits=Splits(part, part))
    trial = training({"batch_size": batch_size}, **changes)
    trial.train_epoch()
    expected = [batch_size] * (NUM_EXAMPLES // batch_size) + [NUM_EXAMPLES % batch_size]
    assert [len(batch) for batch in seen] == [length for length in expected if length]
    order = sum(seen, [])
    assert sorted(order) == list(range(NUM_EXAMPLES))
    seen.clear()
    trial.train_epoch()
    assert sum(seen, []) != order


def test_the_order_of_an_epoch_follows_from_the_seed_and_the_epoch():
    """A resume by a later version of this program trains on the examples in the same order."""
    part = Arrays(np.zeros((NUM_EXAMPLES, 3, 8, 8), np.uint8), np.arange(NUM_EXAMPLES))
    seen = []

    def record(outputs, targets):
        seen.extend(targets.tolist())
        return outputs.square().mean()

    trial = training({"batch_size": 50}, seed=3, loss=record, metrics={}, augment=None, splits=Splits(part, part))
    for epoch in (1, 2):
        seen.clear()
        trial.train_epoch()
        reseed(3, epoch=epoch)
        assert seen == torch.randperm(NUM_EXAMPLES).tolist()


def test_inputs_and_targets_stay_together():
    pixels = np.random.default_rng(0).integers(0, 256, (NUM_EXAMPLES, 3, 8, 8), dtype=np.uint8)
    part = Arrays(pixels, np.arange(NUM_EXAMPLES))
    examples = batches.examples_of(part, Task(**TASK), torch.device("cpu"))
    for inputs, targets in examples.batches(torch.randperm(NUM_EXAMPLES), 4, torch.channels_last):
        assert torch.equal(inputs, torch.from_numpy(pixels[targets.numpy()]).float() / 255 - 0.5)


def test_batches_do_not_depend_on_the_chunks(monkeypatch):
    expected = figures(training({"batch_size": 4}, augment=None).run_epoch())["train_loss"]
    monkeypatch.setattr(batches, "CHUNK_VALUES", 10 * 192)
    assert figures(training({"batch_size": 4}, augment=None).run_epoch())["train_loss"] == expected


@pytest.mark.filterwarnings("error")
def test_read_only_arrays_are_read_and_never_written():
    train, validation = images(), images(50, seed=1)
    parts = [Arrays(part.inputs.astype(np.float32), part.targets) for part in (train, validation)]
    for part in parts:
        part.inputs.flags.writeable = part.targets.flags.writeable = False
    before = [part.inputs.copy() for part in parts]

    def in_place(config):
        return nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(192, 3))

    def scaled(inputs):
        return inputs.div_(255).sub_(0.5)

    for prepare in (None, scaled):
        trial = training(model=in_place, prepare=prepare, augment=None, splits=Splits(*parts))
        trial.run_epoch()
    assert all(np.array_equal(part.inputs, kept) for part, kept in zip(parts, before, strict=True))


def test_small_convolutions_run_without_onednn_and_leave_no_trace():
    torch.backends.mkldnn.enabled = True  # whatever an earlier test left
    inside = []

    def watched(outputs, targets):
        if outputs.requires_grad:
            inside.append(torch.backends.mkldnn.enabled)
        if len(inside) == 5:
            raise RuntimeError("the user's loss")
        return nn.functional.cross_entropy(outputs, targets)

    with pytest.raises(RuntimeError, match="the user's loss"):
        training({"batch_size": 2}, loss=watched).run_epoch()
    assert inside == [False] * 5
    assert torch.backends.mkldnn.enabled
    training({"batch_size": 2}).run_epoch()
    assert torch.backends.mkldnn.enabled


@pytest.mark.parametrize(
    ("channels", "batch_size", "small"), [(4, 2, True), (4, 8, True), (4, 16, False), (2048, 2, False)]
)
def test_the_backend_follows_from_shapes(channels, batch_size, small):
    def model(config):
        return nn.Sequential(nn.Conv2d(3, channels, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    trial = training({"batch_size": batch_size}, model=model)
    assert trial.onednn is not small
    assert not any(part._forward_hooks for part in trial.model.modules())


def test_a_model_without_convolutions_keeps_torchs_default():
    trial = training({"batch_size": 2}, model=lambda config: nn.Sequential(nn.Flatten(), nn.Linear(192, 3)))
    assert trial.onednn


def test_a_problem_is_learned():
    trial = training({"batch_size": 16}, splits=Splits(images(512), images(128, seed=1)), schedule=None)
    reports = [trial.run_epoch() for _ in range(6)]
    assert reports[-1]["accuracy"] > 0.9
    assert reports[-1]["loss"] < reports[0]["loss"]


def test_a_searchers_numpy_batch_size_is_taken():
    assert figures(training({"batch_size": np.int64(4)}).run_epoch()) == figures(
        training({"batch_size": 4}).run_epoch()
    )
    assert training(batch_size=7).batch_size == 7


@pytest.mark.parametrize("wrong", [0, -1, 2.0, "8", None, True, np.float64(4)])
def test_a_wrong_batch_size_is_named(wrong):
    with pytest.raises(ValueError, match="batch_size"):
        training({"batch_size": wrong})


def test_a_missing_or_empty_part_is_named():
    with pytest.raises(ValueError, match="validation"):
        training(splits=Splits(images()))
    with pytest.raises(ValueError, match="no examples"):
        training(splits=Splits(images(), images(0)))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_learns_as_a_cpu_does():
    task, splits = Task(**{**TASK, "augment": None}), Splits(images(512), images(128, seed=1))
    reports = {}
    for device in ("cpu", "cuda"):
        trial = Training(task, splits, TrialSpec({"batch_size": 16}, 0, 4), device=device)
        reports[device] = trial.run_epoch()
    assert reports["cuda"]["train_loss"] == pytest.approx(reports["cpu"]["train_loss"], rel=0.1)
