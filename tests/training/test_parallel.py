"""Each way of training gives the losses of one process; shards are disjoint and whole."""

import contextlib
import io
import os
import random
from functools import partial

import numpy as np
import pytest
import torch
from tiers import further
from torch import nn
from trained import NUM_EXAMPLES, figures

from tuner.space import Task
from tuner.spec.experiment import CHOICES
from tuner.training.batches import examples_of
from tuner.training.data import Arrays, Splits
from tuner.training.devices import accelerator
from tuner.training.group import Group, Processes, WorkerDiedError, addresses_among
from tuner.training.loop import Training
from tuner.training.parallel import STRATEGIES, DistributedDataParallel, ModelParallel, Staged, cut, stages_of
from tuner.training.task import TrialSpec

CPU, META = torch.device("cpu"), torch.device("meta")
ECHO = RuntimeError("Connection closed by peer [127.0.0.1]:9")


def blobs(num=NUM_EXAMPLES, seed=0):
    stream = np.random.default_rng(seed)
    return Arrays(stream.normal(size=(num, 6)), stream.integers(0, 3, num))


class Layers(nn.Module):
    """Two halves that a task can name; not a Sequential."""

    def __init__(self, *middle):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), *middle, nn.Tanh())
        self.head = nn.Linear(16, 3)

    def forward(self, inputs):
        return self.head(self.body(inputs))


class WhileTraining(nn.Module):
    """Passes its inputs on, after a function of them and of the setting."""

    def __init__(self, function, config):
        super().__init__()
        self.function, self.config = function, config

    def forward(self, inputs):
        if self.training:
            self.function(inputs, self.config)
        return inputs


def run_out_of_memory(inputs, config):
    if len(inputs) > 4:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def end_rank_1(inputs, config):
    if torch.distributed.get_rank() == 1:
        os._exit(9)


def draw(inputs, config):
    """Draws from every stream that dropout and augmentation may use; writes the numbers to a file of its process."""
    with open(f"{config['folder']}/{torch.distributed.get_rank()}", "a") as file:
        print(random.random(), np.random.random(), torch.rand(1).item(), file=file)


def task(**changes):
    parts = {
        "data": lambda data_dir: None,
        "model": lambda config: Layers().double(),
        "optimizer": lambda parameters, config: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        "metrics": {"accuracy": lambda outputs, targets: (outputs.argmax(1) == targets).double().mean()},
        "stages": lambda model: [model.body, model.head],
    }
    return Task(**{**parts, **changes})


def in_the_middle(config):
    """The layers with what the setting names between their halves."""
    middle = config.get("middle", lambda inputs, config: None)
    return Layers(nn.BatchNorm1d(16) if middle == "norm" else WhileTraining(middle, config)).double()


def material():
    """A task and its data, made in each process."""
    return task(model=in_the_middle), Splits(blobs(), blobs(21, seed=1))


def summed(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="sum")


def with_summed_loss():
    return task(loss=summed), Splits(blobs(), blobs(21, seed=1))


def test_ddp_refuses_a_loss_that_is_no_mean_over_examples():
    with contextlib.closing(Processes(with_summed_loss, 2)) as group:
        group.begin(TrialSpec({"batch_size": 16}, 3, 4))
        with pytest.raises(ValueError, match="the loss is no mean over examples"):
            group.run_epoch()


def training(config=None, *, strategy="single", made=None):
    made, splits = made or task(), Splits(blobs(), blobs(21, seed=1))
    spec = TrialSpec(
        config or {"batch_size": 16}, 3, 4, strategy=strategy, gpus=2 if strategy in ("model", "pipeline") else 0
    )
    return Training(made, splits, spec, device="cpu")


def assert_close(actual, expected, tolerance=1e-12):
    for one, other in zip(actual, expected, strict=True):
        assert figures(one) == pytest.approx(figures(other), rel=0, abs=tolerance)


@pytest.mark.parametrize("num_workers", [1, 2, 3, 5])
@pytest.mark.parametrize("batch_size", [5, 16, 51, 102, 103, 500])
def test_shards_of_each_batch_are_disjoint_and_whole(num_workers, batch_size):
    part = Arrays(np.zeros((NUM_EXAMPLES, 2)), np.arange(NUM_EXAMPLES))
    order = torch.randperm(NUM_EXAMPLES)
    read = []
    for rank in range(num_workers):
        strategy = DistributedDataParallel(task(), {}, [CPU], rank, num_workers)
        batches = strategy.batches(examples_of(part, task(), CPU), order, batch_size, torch.contiguous_format)
        read.append([(targets, strategy.weight, strategy.repeated) for _, targets in batches])
    steps = list(zip(*read, strict=True))
    for step, whole in zip(steps, torch.split(order, batch_size), strict=True):
        parts, weights, repeated = zip(*step, strict=True)
        if len(whole) < num_workers:
            assert all(torch.equal(part, whole) for part in parts) and {*repeated} == {num_workers}
        else:
            assert torch.equal(torch.cat(parts), whole) and {*repeated} == {1}
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert sum(weights) == pytest.approx(num_workers)


@pytest.fixture(scope="module")
def group():
    with contextlib.closing(Processes(material, 2)) as group:
        yield group


@pytest.fixture
def two(group):
    """Two processes that train `material`, one setting after another; new ones if a test has ended one."""
    if not group.processes:
        group.start()
    return group


# 51 leaves a last batch of one; with a limit of 2, parts of 9 and 8 become five for rank 0 and four for rank 1.
@pytest.mark.parametrize(("batch_size", "limit"), [(16, None), (51, None), (17, 2)])
def test_ddp_gives_the_losses_of_one_process(two, batch_size, limit):
    alone = training({"batch_size": batch_size})
    two.begin(TrialSpec({"batch_size": batch_size}, 3, 4), limit=limit)
    reports = [two.run_epoch() for _ in range(3)]
    assert_close(reports, [alone.run_epoch() for _ in range(3)])
    assert reports[0]["micro_batch_size"] == (limit or -(-batch_size // 2))


def test_ddp_goes_on_from_a_state_to_the_last_bit_and_single_can_load_it(two):
    setting = TrialSpec({"batch_size": 16}, 3, 4)
    two.begin(setting)
    two.run_epoch()
    state = two.state(1.0)
    expected = [figures(two.run_epoch()) for _ in range(2)]
    assert two.begin(setting, state) == 1.0 and two.epoch == 1
    assert [figures(two.run_epoch()) for _ in range(2)] == expected
    alone, saved = training(), torch.load(io.BytesIO(state), weights_only=True)
    alone.load_state_dict(saved["training"])
    assert_close([alone.run_epoch() for _ in range(2)], expected)


def test_each_process_draws_its_own_random_numbers_the_same_in_each_run(two, tmp_path):
    runs = []
    for _ in range(2):
        two.begin(TrialSpec({"batch_size": 16, "middle": draw, "folder": str(tmp_path)}, 3, 4))
        two.run_epoch(), two.run_epoch()
        runs.append([(tmp_path / rank).read_text().split() for rank in "01"])
        for rank in "01":
            (tmp_path / rank).unlink()
    first, second = runs[0]
    assert len(first) == len(second) == 2 * 7 * 3  # epochs, batches, streams
    assert len({*first, *second}) == len(first) + len(second)
    assert runs[0] == runs[1]


def test_batch_norms_statistics_are_the_same_in_all_processes(two):
    two.begin(TrialSpec({"batch_size": 16, "middle": "norm"}, 3, 4))
    two.run_epoch()
    first, second = (torch.load(io.BytesIO(state), weights_only=True) for state in two.call("state", None))
    assert any("running_mean" in name for name in first["training"]["model"])
    for name, tensor in first["training"]["model"].items():
        assert torch.equal(tensor, second["training"]["model"][name]), name


def test_a_group_that_runs_out_of_memory_starts_anew_with_half(two):
    before = list(two.processes)
    two.begin(TrialSpec({"batch_size": 16, "middle": run_out_of_memory}, 3, 4))
    report = two.run_epoch()
    assert not any(process in two.processes for process in before)
    assert report["micro_batch_size"] == 4  # 8, halved once
    assert_close([report], [training({"batch_size": 16}).run_epoch()])


def test_a_processs_death_is_raised_at_once(two):
    two.begin(TrialSpec({"batch_size": 16, "middle": end_rank_1}, 3, 4))
    with pytest.raises(WorkerDiedError, match=r"worker 1 has died \(exit code 9\)"):
        two.run_epoch()
    two.close()


def test_a_batch_of_fewer_examples_than_processes_is_refused():
    strategy = DistributedDataParallel(task(), {}, [CPU], 0, 2)
    with pytest.raises(ValueError, match="batch_size 1 is split over 2 workers: give 2 or more"):
        list(strategy.batches(examples_of(blobs(), task(), CPU), torch.arange(9), 1, torch.contiguous_format))


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([[(0, None, ECHO)], [(1, None, KeyError("mine"))]], KeyError),  # the error behind an echo
        ([[(0, None, ECHO)], []], RuntimeError),  # nothing came in time
        ([[(1, None, KeyError("mine"))]], KeyError),  # an error of one does not wait for the others
    ],
)
def test_the_error_that_has_the_reason_is_raised(answers, error):
    class Recorded(Group):
        def start(self):
            self.finished = lambda calls, timeout_s: answers.pop(0)

    with pytest.raises(error, match="mine|closed by peer"):
        Recorded(None, 2).answers([0, 1])


def test_processes_of_one_node_connect_on_loopback():
    assert addresses_among(["10.0.0.1", "10.0.0.1"]) == ["127.0.0.1"] * 2
    assert addresses_among(["10.0.0.1", "10.0.0.2"]) == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize(("strategy", "split_size"), [("dp", 5), ("model", 5), *(("pipeline", n) for n in (1, 5, 20))])
def test_one_process_with_several_devices_gives_the_losses_of_one(strategy, split_size):
    config = {"batch_size": 16, "split_size": split_size}
    alone, other = training({"batch_size": 16}), training(config, strategy=strategy)
    assert_close([other.run_epoch() for _ in range(3)], [alone.run_epoch() for _ in range(3)])
    assert list(other.state_dict()["model"]) == list(alone.state_dict()["model"])


def test_a_pipeline_normalises_by_the_micro_batch():
    made = partial(task, model=lambda config: Layers(nn.BatchNorm1d(16)).double())
    pipeline = training({"batch_size": 16, "split_size": 4}, strategy="pipeline", made=made())
    alone = training({"batch_size": 16}, made=made())
    alone.train_fit.limit = 4
    # 103 = 6 batches of 16 and one of 7, in parts of 4, 4, 4, 4 and 4, 3: those of one process in parts.
    assert_close([pipeline.run_epoch() for _ in range(2)], [alone.run_epoch() for _ in range(2)])


@pytest.mark.parametrize("num_stages", [2, 4])
def test_every_stage_has_another_part_at_each_tick(num_stages):
    ran = []

    class Noted(nn.Module):
        def __init__(self, index):
            super().__init__()
            self.index = index

        def forward(self, inputs):
            ran.append((self.index, int(inputs[0, 0])))
            return inputs

    staged = Staged([Noted(index) for index in range(num_stages)], [CPU] * num_stages, 2)
    inputs = torch.arange(5.0).repeat_interleave(2)[:, None]
    assert torch.equal(staged(inputs), inputs)
    assert sorted(ran) == [(stage, part) for stage in range(num_stages) for part in range(5)]
    ticks = [part + stage for stage, part in ran]
    assert ticks == sorted(ticks)  # a stage is never given work before the others have theirs of the tick before


def test_a_sequential_is_cut_by_its_parameters():
    model = nn.Sequential(nn.Linear(4, 100), nn.ReLU(), nn.Linear(100, 4), nn.ReLU(), nn.Linear(4, 4))
    assert [len(stage) for stage in cut(model, 2)] == [1, 4]
    assert [len(stage) for stage in cut(model, 5)] == [1] * 5
    assert [layer for stage in cut(model, 3) for layer in stage] == list(model)


def test_wrong_stages_are_named():
    model = Layers()
    with pytest.raises(ValueError, match=r"parameter head.weight is in 0 stages"):
        stages_of(model, task(stages=lambda model: [model.body]), 2)
    with pytest.raises(ValueError, match="in 2 stages"):
        stages_of(model, task(stages=lambda model: [model.body, model.body, model.head]), 2)
    with pytest.raises(ValueError, match=r"Layers is no nn.Sequential of 2 or more layers: cut it"):
        stages_of(model, task(stages=None), 2)


def test_neighbouring_stages_share_a_device_where_there_are_more():
    first, second = accelerator.here.devices("cuda", 2)
    assert (first, second) == (torch.device("cuda", 0), torch.device("cuda", 1))
    for num, devices, expected in ((4, [CPU, META], [CPU, CPU, META, META]), (2, [CPU, META], [CPU, META])):
        strategy = ModelParallel(task(stages=list), {}, devices)
        assert strategy.networks(nn.Sequential(*map(nn.Linear, [2] * num, [2] * num)))[0].devices == expected


@pytest.mark.parametrize("strategy", further(["pipeline", "single"], 1))  # a compiler's 20 s
def test_a_compiled_training_gives_the_losses_and_keeps_the_names(strategy):
    alone, other = training(), training(strategy=strategy, made=task(compile=True))
    assert_close([other.run_epoch()], [alone.run_epoch()], 1e-9)
    assert list(other.state_dict()["model"]) == list(alone.state_dict()["model"])
    alone.load_state_dict(other.state_dict())


def test_without_a_compiler_it_is_said(monkeypatch):
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    with pytest.raises(RuntimeError, match="needs a C.. compiler on a CPU: install g"):
        training(made=task(compile=True))


def test_every_strategy_of_the_command_line_is_there():
    assert set(CHOICES["strategy"]) == set(STRATEGIES)


def on_cuda(test):
    """Marks a test of CUDA devices; with one device, it shows what one can show."""
    return pytest.mark.cuda(pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")(test))


@on_cuda
@pytest.mark.parametrize("strategy", ["single", "dp", "model", "pipeline"])
def test_one_process_gives_the_losses_of_a_cpu(strategy):
    made, splits = material()
    gpus = min(2, torch.cuda.device_count())
    other = Training(made, splits, TrialSpec({"batch_size": 16, "split_size": 5}, 3, 4, strategy=strategy, gpus=gpus))
    alone = training()
    assert_close([other.run_epoch() for _ in range(3)], [alone.run_epoch() for _ in range(3)], 1e-9)


@on_cuda
def test_nccl_gives_the_losses_of_a_cpu():
    with contextlib.closing(Processes(material, torch.cuda.device_count(), use_cuda=True)) as group:
        group.begin(TrialSpec({"batch_size": 16}, 3, 4))
        reports = [group.run_epoch() for _ in range(3)]
    alone = training()
    assert_close(reports, [alone.run_epoch() for _ in range(3)], 1e-9)


@on_cuda
def test_a_compiled_training_gives_the_losses():
    _, splits = material()
    trials = [Training(task(compile=c), splits, TrialSpec({}, 3, 4, gpus=1)) for c in (False, True)]
    plain, compiled = ([trial.run_epoch()] for trial in trials)
    assert_close(compiled, plain, 1e-9)
