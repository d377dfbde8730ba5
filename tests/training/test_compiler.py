"""Eager training does without torch's compiler, to the same weights, and leaves it to those who use it."""

import json
import subprocess
import sys

import pytest
from tiers import further

PROGRAM = """
import json, sys, torch
{before}
def loaded():
    return type(sys.modules.get("torch._dynamo")).__name__ == "module"
def weights(kind, **options):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **options)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    return model.weight.tolist()
kinds = ["SGD", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adadelta"]
print(json.dumps([weights("SGD", fused=True), weights("Adam", foreach=True), *map(weights, kinds)]))
begun = loaded()
{use}
print(json.dumps([begun, loaded()]))
"""
LATE = "from tuner.training.devices.compiler import import_compiler_late; import_compiler_late()"
USES = [
    "assert torch.compile(lambda x: x * 2, backend='eager')(torch.ones(1)) == 2",
    "import torch._dynamo.config; assert torch._dynamo.config.recompile_limit",
    "from torch._dynamo.utils import is_compile_supported; assert is_compile_supported('cpu') is True",
    "assert torch._dynamo.is_compiling() is False",
]


def ran(before, use=""):
    """Each optimizer's weights after the steps; whether the compiler was loaded by then, and after the use."""
    program = PROGRAM.format(before=before, use=use)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return list(map(json.loads, done.stdout.splitlines()))


@pytest.mark.slow
def test_optimizers_step_without_the_compiler_to_the_same_weights():
    inspected = "import inspect; [getattr(m, '__file__', None) for m in list(sys.modules.values())]"
    assert ran(LATE, inspected) == [ran("")[0], [False, False]]


@pytest.mark.parametrize("use", further(USES, 2))
def test_whoever_uses_the_compiler_gets_it(use):
    assert ran(LATE, use)[1] == [False, True]
