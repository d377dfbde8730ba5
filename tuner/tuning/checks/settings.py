"""Chooses the settings that the preflight check tries: they depend on the space alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.spec import domains, parameters
from tuner.spec.space import Space
from tuner.spec.spaces import with_place
from tuner.tuning.checks.advice import CheckFailed, Config
from tuner.tuning.searchers.sampling import seeded

LOW, HIGH = 0.0, 1.0  # the ends of a range, as `domains.from_unit` names them
Labelled = tuple[str, Any]  # a value with the text that names it, such as `=adam` or `, depth=3`


def settings_of(space: Space, seed: int) -> list[tuple[str, Config]]:
    """Returns the configs to try, each with the alternative that it is for, such as `optimizer=adam`.

    The first has the smallest number or the first value of each parameter. Each of the others changes one parameter
    to another alternative: to any other value of a choice, to any other dictionary of a conditional parameter, and to
    the largest of whole numbers. Ranges of real numbers have no alternatives; all settings but the first have
    their upper ends.
    """
    low, (high, *others) = tried(space.declared, LOW)[0], tried(space.declared, HIGH)
    if not others and repr(high) != repr(low):
        others = [("the largest values", high[1])]
    chosen = [("the smallest values", low[1]), *others]
    settings = []
    for number, (label, config) in enumerate(chosen):
        with seeded(seed, number):
            settings.append((label, computed(config)))
    return settings


def tried(params: Mapping[str, Any], end: float) -> list[Labelled]:
    """Returns one config with the first alternative of each parameter, then one for each other alternative."""
    values = {name: alternatives(value, end) for name, value in params.items()}
    first = {name: each[0][1] for name, each in values.items()}
    others = [(f"{name}{label}", {**first, name: value}) for name in values for label, value in values[name][1:]]
    return [("", first), *others]


def alternatives(value: Any, end: float) -> list[Labelled]:
    """Returns the values of a parameter that are tried; a range of real numbers has only the one at its `end`."""
    if branches := parameters.branches(value):
        return [each for branch in branches for each in alternatives_of_branch(branch, end)]
    if parameters.is_nested(value):
        return [(f"/{label}", config) for label, config in tried(value, end)]
    if parameters.is_constant(value):
        return [("", value)]
    kind = domains.kind(value)
    if kind in ("choice", "grid_search"):
        values = domains.values_of(value)
        if all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in values):
            values = sorted({min(values), max(values)})
    elif kind == "sample_from":
        values = [value]  # `computed` calls it
    elif kind == "normal":
        values = [float(value.sampler.mean)]
    else:
        values = [domains.from_unit(value, each) for each in ((LOW, HIGH) if "randint" in kind else (end,))]
    return [(f"={shown(each)}", each) for each in values]


def alternatives_of_branch(branch: Any, end: float) -> list[Labelled]:
    """Returns what is tried of one value of a conditional parameter, named by its constants: `=adam`."""
    if not parameters.is_nested(branch):
        return [(f"={shown(branch)}", branch)]
    names = ", ".join(shown(value) for _, value in domains.leaves(parameters.constants(branch)))
    names = names or f"{{{', '.join(branch)}}}"
    return [(f"={names}{label and f', {label}'}", config) for label, config in tried(branch, end)]


def computed(config: Config) -> Config:
    """Returns the config with the values that the functions of `tune.sample_from` compute."""
    from ray.tune.search.variant_generator import generate_variants

    try:
        drawn: Config = next(spec["config"] for _, spec in generate_variants({"config": config}))
    except Exception as error:  # from the user's function
        raise CheckFailed("a tune.sample_from of the params", f"raises {with_place(error)}", tried=config) from error
    return drawn


def shown(value: Any) -> str:
    """Formats a value; a text has quotes if it could be taken for another value, such as '0.1'."""
    if isinstance(value, str):
        return value if value.isidentifier() else repr(value)
    return str(float(f"{value:.5g}")) if isinstance(value, float) else str(value)
