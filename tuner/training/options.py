"""After a resume from a checkpoint, sets the optimizer options that population-based training has changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# The options that optimizers were created with: for each optimizer, for each parameter group, option -> value.
Options = list[list[dict[str, Any]]]
RATES = frozenset({"lr", "initial_lr", "max_lr", "min_lr"})  # options that are learning rates; a schedule changes them


def options_of(optimizers: Iterable[Any]) -> Options:
    return [[plain_options(group) for group in optimizer.param_groups] for optimizer in optimizers]


def plain_options(group: dict[str, Any]) -> dict[str, Any]:
    """Returns a parameter group's options that are numbers, booleans, or lists of these types; tuples become lists."""
    # An optimizer with `capturable=True` may keep its learning rate in a tensor.
    values = {name: value.item() if hasattr(value, "item") else value for name, value in group.items()}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {
        name: value
        for name, value in plain.items()
        if all(isinstance(number, (int, float)) for number in (value if isinstance(value, list) else [value]))
        and name != "params"
    }


def names_changed(optimizer: Any, before: list[dict[str, Any]]) -> set[str]:
    """Returns the names of options with other values than those of the parameter groups `before`, and of tensors.

    `capturable=True` keeps the learning rate in a tensor, which a schedule fills.
    """
    pairs = [(group, old, name) for group, old in zip(optimizer.param_groups, before, strict=False) for name in group]
    changed = {name for group, old, name in pairs if group[name] is not old.get(name) or hasattr(group[name], "item")}
    return changed - {"params"}


def keep_changes(optimizers: Iterable[Any], schedules: Iterable[Any], before: Options, now: Options) -> None:
    """Changes restored optimizers and schedules: options that differ between `before` and `now` get their new values.

    A learning rate that a schedule has already changed is multiplied by the ratio of the new rate to the old one.

    Args:
        before, now: the options with which the checkpoint's trial, and this trial, created their optimizers.
    """
    if before == now:
        return
    ratios: dict[int, list[float]] = {}
    for optimizer, olds, news in zip(optimizers, before, now, strict=True):
        for group, old, new in zip(optimizer.param_groups, olds, news, strict=True):
            ratio = _rate(new) / _rate(old) if _rate(old) else 1.0
            ratios.setdefault(id(_bare(optimizer)), []).append(ratio)
            for name in RATES & group.keys():
                unchanged = isinstance(group[name], float) and group[name] == old.get(name)
                group[name] = new[name] if unchanged and name in new else group[name] * ratio
            for name in (old.keys() & new.keys() & group.keys()) - RATES:
                if old[name] != new[name]:
                    group[name] = tuple(new[name]) if isinstance(new[name], list) else new[name]
    for schedule in schedules:
        # A SequentialLR or ChainedScheduler has the schedules that it combines in `_schedulers`.
        for each in [schedule, *getattr(schedule, "_schedulers", [])]:
            if hasattr(each, "base_lrs"):
                factors = ratios[id(_bare(each.optimizer))]
                each.base_lrs = [rate * factor for rate, factor in zip(each.base_lrs, factors, strict=True)]


def _rate(options: dict[str, Any]) -> float:
    """Returns the learning rate before any schedule. `lr` may differ: a warmup schedule sets it to 0 at the start."""
    rate: float = options.get("initial_lr", options.get("lr", 0.0))
    return rate


def _bare(optimizer: Any) -> Any:
    """Returns the torch optimizer inside a framework's wrapper; returns an optimizer without a wrapper unchanged."""
    return getattr(optimizer, "optimizer", optimizer)
