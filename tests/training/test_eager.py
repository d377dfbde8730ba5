"""Eager training does without torch's compiler, gives the same figures, and leaves it to those who ask for it."""

import json
import subprocess
import sys

import pytest

STEPS = """
import json, sys, torch
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
steps_loaded = loaded()
{after}
print(json.dumps([found, steps_loaded, loaded()]))
"""
LATE = "from tuner.training.eager import import_compiler_late; import_compiler_late()"


def ran(before="", after=""):
    """Weights after the steps of each optimiser, and whether the compiler was loaded by then and at the end."""
    program = STEPS.format(before=before, after=after)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_optimizers_step_without_the_compiler_to_the_same_weights():
    usual, by_torch, _ = ran()
    late, steps_loaded, at_the_end = ran(before=LATE)
    assert late == usual
    assert by_torch and not steps_loaded and not at_the_end


@pytest.mark.parametrize(
    "use",
    [
        "assert torch.compile(lambda x: x * 2, backend='eager')(torch.ones(1)) == 2",
        "import torch._dynamo.config; assert torch._dynamo.config.recompile_limit",
        "from torch._dynamo import utils; assert utils.counters is not None",
        "assert torch._dynamo.is_compiling() is False",
    ],
)
def test_whoever_uses_the_compiler_gets_it(use):
    _, steps_loaded, at_the_end = ran(before=LATE, after=use)
    assert not steps_loaded and at_the_end


def test_who_goes_through_all_modules_does_not_load_it():
    after = "import inspect; [getattr(each, '__file__', None) for each in list(sys.modules.values())]"
    _, _, at_the_end = ran(before=LATE, after=after)
    assert not at_the_end
