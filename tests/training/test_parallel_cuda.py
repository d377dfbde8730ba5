"""The strategies on CUDA devices; with one device, what one can show."""

import contextlib

import pytest
import torch
from test_parallel import assert_close, figures, material, training

from tuner.training.group import Processes
from tuner.training.loop import Training
from tuner.training.task import TrialSpec

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("strategy", ["single", "dp", "model", "pipeline"])
def test_one_process_gives_the_losses_of_a_cpu(strategy):
    made, splits = material()
    gpus = min(2, torch.cuda.device_count())
    other = Training(made, splits, TrialSpec({"batch_size": 16, "split_size": 5}, 3, 4, strategy=strategy, gpus=gpus))
    assert_close([other.run_epoch() for _ in range(3)], [training().run_epoch() for _ in range(3)], 1e-9)


def test_nccl_gives_the_losses_of_a_cpu():
    with contextlib.closing(Processes(material, torch.cuda.device_count(), use_cuda=True)) as group:
        group.begin(TrialSpec({"batch_size": 16}, 3, 4))
        reports = [group.run_epoch() for _ in range(3)]
    assert_close(reports, [training().run_epoch() for _ in range(3)], 1e-9)
    assert figures(reports[0])


def test_a_compiled_training_gives_the_losses():
    from test_parallel import task

    _, splits = material()
    trials = [Training(task(compile=c), splits, TrialSpec({}, 3, 4, gpus=1)) for c in (False, True)]
    plain, compiled = ([trial.run_epoch()] for trial in trials)
    assert_close(compiled, plain, 1e-9)
