"""Eager training does without torch's compiler, gives the same figures, and leaves it to those who ask for it."""

import json
import subprocess
import sys

import pytest

STEPS = """
import json, os, sys, torch
{before}
def loaded():
    return type(sys.modules.get("torch._dynamo")).__name__ == "module"
def weights(kind, **options):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = kind(model.parameters(), lr=0.1, **options)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    return model.weight.tolist()
kinds = [
    (torch.optim.SGD, dict(momentum=0.9)), (torch.optim.SGD, dict(fused=True)), (torch.optim.Adam, dict(foreach=True)),
    (torch.optim.AdamW, dict(fused=True)), (torch.optim.RMSprop, {{}}), (torch.optim.Adagrad, {{}}),
    (torch.optim.NAdam, {{}}), (torch.optim.RAdam, {{}}), (torch.optim.Adadelta, {{}}),
]
found = [weights(kind, **options) for kind, options in kinds]
print(json.dumps([found, loaded()]), flush=True)
for use in {uses}:  # each in a process that has done the steps
    if not (child := os.fork()):
        exec(use)
        print(json.dumps(loaded()), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
LATE = "from tuner.training.devices.compiler import import_compiler_late; import_compiler_late()"


USES = [
    "assert torch.compile(lambda x: x * 2, backend='eager')(torch.ones(1)) == 2",
    "import torch._dynamo.config; assert torch._dynamo.config.recompile_limit",
    "from torch._dynamo import utils; assert utils.counters is not None",
    "assert torch._dynamo.is_compiling() is False",
    "from torch._dynamo.utils import is_compile_supported; assert is_compile_supported('cpu') is True",
    "import torch._dynamo.utils; assert torch._dynamo.utils.counters is not None",
    "assert torch.compiler.disable(recursive=False)(len)([]) == 0",
]
LOOKS = "import inspect; [getattr(each, '__file__', None) for each in list(sys.modules.values())]"


def ran(before="", uses=()):
    """Each optimiser's weights after the steps; whether the compiler was loaded by then, and after each use."""
    program = STEPS.format(before=before, uses=list(uses))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stderr
    (found, loaded), *after = map(json.loads, done.stdout.splitlines())
    return found, loaded, dict(zip(uses, after, strict=True))


@pytest.fixture(scope="module")
def late():
    return ran(LATE, [*USES[:2], LOOKS])


def test_optimizers_step_without_the_compiler_to_the_same_weights(late):
    usual, loaded_by_torch, _ = ran()
    weights, loaded, _ = late
    assert weights == usual
    assert loaded_by_torch and not loaded


@pytest.mark.parametrize("use", USES[:2])
def test_whoever_uses_the_compiler_gets_it(late, use):
    assert late[2][use]


@pytest.mark.slow  # each loads the compiler; by default a call and an import do
def test_whoever_uses_the_compiler_in_any_way_gets_it():
    assert all(ran(LATE, USES)[2].values())


def test_who_goes_through_all_modules_does_not_load_it(late):
    assert not late[2][LOOKS]


def test_torchvision_is_imported_without_the_compiler():
    done = subprocess.run(
        [sys.executable, "-c", f"{LATE}; import torchvision.models, sys; assert 'torch._inductor' not in sys.modules"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
