"""Eager training does without torch's compiler, gives the same figures, and leaves it to those who ask for it."""

import json
import subprocess
import sys

import pytest
from tiers import further

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
print(json.dumps([[weights(kind, **options) for kind, options in kinds], loaded()]))
{use}
print(json.dumps(loaded()))
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
NO_USES = "import inspect, torchvision.models; [getattr(m, '__file__', None) for m in list(sys.modules.values())]"


def ran(before, use):
    """Each optimiser's weights after the steps; whether the compiler was loaded by then, and after the use."""
    program = STEPS.format(before=before, use=use)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return *json.loads(done.stdout.splitlines()[0]), json.loads(done.stdout.splitlines()[1])


@pytest.mark.slow
def test_optimizers_step_without_the_compiler_to_the_same_weights():
    usual, loaded_by_torch, _ = ran("", "")
    weights, loaded, after = ran(LATE, NO_USES)  # nor do torchvision and what goes through all modules load it
    assert weights == usual
    assert loaded_by_torch and not loaded and not after


@pytest.mark.parametrize("use", further(USES, 2))
def test_whoever_uses_the_compiler_gets_it(use):
    assert ran(LATE, use)[1:] == (False, True)
