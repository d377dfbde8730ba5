"""Chooses the settings of a space's parameters that the preflight check tries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tuner.drive.preflight import limits
from tuner.drive.preflight.limits import Config, Failed, Tries
from tuner.spec import domains, parameters
from tuner.spec.experiment import nested
from tuner.spec.space import Space
from tuner.spec.spaces import with_place


def settings(space: Space, seed: int, tries: Tries) -> Iterator[Config]:
    """Yields the configs to try until BUDGET_S is over: all smallest values, then one parameter at a time changed."""
    from tuner.drive.sampling import seeded

    ends = {name: ends_of(domain) for name, domain in domains.leaves(space.encoded)}
    base = {name: values[0] for name, values in ends.items()}
    others = [(name, value) for name, values in ends.items() for value in values[1:]]
    for number, flat in enumerate([base, *({**base, name: value} for name, value in others)]):
        tries.remaining = [f"{name}={shown(value)}" for name, value in others[max(0, number - 1) :]]
        if number and (tries.spent_s > limits.BUDGET_S or tries.left_out):
            tries.left_out += tries.remaining
            return
        with seeded(seed, number):
            config = resolved(space, flat)
        yield config


def ends_of(domain: Any) -> list[Any]:
    """Returns the values of a domain that are tried, usually the smallest and the largest one.

    A choice that has a bool or a value that is no number is tried with all its values. A normal distribution is tried
    with one random value. For `tune.sample_from`, the list has the domain itself, which `resolved` samples.
    """
    kind = domains.kind(domain)
    if kind in ("choice", "grid_search"):
        values = domains.values_of(domain)
        numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
        return sorted({min(values), max(values)}) if numbers else values
    if kind == "sample_from":
        return [domain]
    if kind == "normal":
        return [domain.sample()]
    return [domains.from_unit(domain, 0.0), domains.from_unit(domain, 1.0)]


def resolved(space: Space, flat: Mapping[str, Any]) -> Config:
    """Returns the nested config of flat values; calls the functions of `tune.sample_from`."""
    from ray.tune.search.variant_generator import generate_variants

    config = parameters.decode(space.declared, nested(flat))
    try:
        drawn: Config = next(spec["config"] for _, spec in generate_variants({"config": config}))
    except Exception as error:  # from the user's function in tune.sample_from
        raise Failed("a tune.sample_from of the params", f"raises {with_place(error)}") from error
    return drawn


def shown(value: Any) -> str:
    if isinstance(value, float):
        return str(float(f"{value:.5g}"))
    return repr(value) if isinstance(value, str) else str(value)
