"""Chooses the settings that the preflight check tries: they depend on the space alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.spec import domains, parameters
from tuner.spec.space import Space
from tuner.spec.spaces import with_place
from tuner.tuning.checks.advice import CheckFailed, Config
from tuner.tuning.searchers.sampling import variants

LOW, HIGH = 0.0, 1.0  # the ends of a range, as `domains.from_unit` names them


def settings_of(space: Space, seed: int) -> list[tuple[str, Config]]:
    """Returns the configs to try, each with the alternative that it is for, such as `optimizer=adam`.

    The first has the smallest number or the first value of each parameter. Each of the others changes one parameter:
    to another value of a choice, another dictionary of a conditional parameter, or the largest whole number. Ranges of
    real numbers have no alternatives; all settings but the first have their upper ends.
    """
    low, (high, *others) = _tried(space.declared, LOW)[0], _tried(space.declared, HIGH)
    named = [(_difference(high, config), config) for config in others]
    if not others and repr(high) != repr(low):
        named = [("the largest values", high)]
    settings = []
    for number, (name, config) in enumerate([("the smallest values", low), *named]):
        try:
            settings.append((name, variants(config, seed, number)[0]))
        except Exception as error:  # from a function of tune.sample_from
            why = f"raises {with_place(error)}"
            raise CheckFailed("a tune.sample_from of the params", why, tried=config) from error
    return settings


def _tried(params: Mapping[str, Any], end: float) -> list[Config]:
    """Returns one config with the first alternative of each parameter, then one for each other alternative."""
    values = {name: _alternatives(value, end) for name, value in params.items()}
    first = {name: each[0] for name, each in values.items()}
    return [first, *({**first, name: value} for name in values for value in values[name][1:])]


def _alternatives(value: Any, end: float) -> list[Any]:
    """Returns the values of a parameter that are tried; a range of real numbers has only the one at its `end`."""
    if branches := parameters.branches(value):
        return [each for branch in branches for each in _alternatives(branch, end)]
    if parameters.is_nested(value):
        return list(_tried(value, end))
    if parameters.is_constant(value):
        return [value]
    kind = domains.kind(value)
    if kind in ("choice", "grid_search"):
        values = domains.values_of(value)
        is_numeric = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in values)
        return sorted({min(values), max(values)}) if is_numeric else values
    if kind == "sample_from":
        return [value]  # `variants` calls it
    if kind == "normal":
        return [float(value.sampler.mean)]
    return [domains.from_unit(value, each) for each in ((LOW, HIGH) if "randint" in kind else (end,))]


def _difference(first: Config, config: Config) -> str:
    """Names the values that a config has and `first` has not: `optimizer/name=adam`."""
    before = {name: repr(value) for name, value in domains.leaves(first)}
    changed = [f"{name}={shown(each)}" for name, each in domains.leaves(config) if before.get(name) != repr(each)]
    return ", ".join(changed) or "an empty dictionary"


def shown(value: Any) -> str:
    """Formats a value; a text has quotes if it could be taken for another value, such as '0.1'."""
    if isinstance(value, str):
        return value if value.isidentifier() else repr(value)
    return str(float(f"{value:.5g}")) if isinstance(value, float) else str(value)
