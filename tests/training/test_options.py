"""What pbt changed reaches a restored optimizer and its schedule."""

import pytest
import torch
from torch.optim import lr_scheduler as schedules

from tuner.training.options import keep_changes, options_of

SCHEDULES = {
    "none": lambda optimizer: None,
    "cosine": lambda optimizer: schedules.CosineAnnealingLR(optimizer, 10),
    "warmup": lambda optimizer: schedules.LambdaLR(optimizer, lambda step: min(1, step / 5)),
    "cycle": lambda optimizer: schedules.OneCycleLR(optimizer, optimizer.defaults["lr"], 10),
    "sequence": lambda optimizer: schedules.SequentialLR(
        optimizer, [schedules.LinearLR(optimizer, 0.1, total_iters=3), schedules.ExponentialLR(optimizer, 0.9)], [3]
    ),
}


def made(lr, weight_decay, schedule):
    """An optimizer with two groups, the second of half the rate, and its schedule."""
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))]}, {"params": [torch.nn.Parameter(torch.ones(1))]}]
    groups[1]["lr"] = lr / 2
    optimizer = torch.optim.AdamW(groups, lr=lr, weight_decay=weight_decay)
    return optimizer, SCHEDULES[schedule](optimizer)


def stepped(optimizer, schedule, steps):
    rates = []
    for _ in range(steps):
        optimizer.step()
        if schedule:
            schedule.step()
        rates.append([group["lr"] for group in optimizer.param_groups])
    return rates


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_rest_of_the_schedule_is_that_of_the_new_rate(schedule):
    donor, taker = made(0.1, 0.01, schedule), made(0.03, 0.5, schedule)
    before, now = options_of([donor[0]]), options_of([taker[0]])
    stepped(*donor, 4)
    taker[0].load_state_dict(donor[0].state_dict())
    if taker[1]:
        taker[1].load_state_dict(donor[1].state_dict())
    keep_changes([taker[0]], [taker[1]] if taker[1] else [], before, now)
    unbroken = made(0.03, 0.5, schedule)
    expected = stepped(*unbroken, 7)[4:]
    assert [group["weight_decay"] for group in taker[0].param_groups] == [0.5, 0.5]
    for rates, others in zip(stepped(*taker, 3), expected, strict=True):
        assert rates == pytest.approx(others)
