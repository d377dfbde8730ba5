"""Splits declared parameters into searched ones and constants, and encodes conditional ones for searchers.

A parameter is conditional if it is a `tune.choice` with at least one dictionary that declares domains of its own:
`"optimizer": tune.choice([{"name": "sgd", "momentum": tune.uniform(0, 0.99)}, {"name": "adam"}])`.
A trial's config has only the chosen dictionary. A searcher proposes the name of the chosen dictionary (a branch), and
a value for each domain of every branch: `{"optimizer": {"chosen": "branch0", "branch0": {"momentum": 0.9}}}`. Of any
other choice of lists, dictionaries or objects, a searcher proposes the name of the value, too, since libraries copy,
compare or convert what they get. The searchers of all libraries can propose such a setting; `decode` turns it into a
config.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tuner.errors import nearest
from tuner.spec import domains
from tuner.spec.domains import is_constant

CHOSEN, BRANCH = "chosen", "branch"
Params = Mapping[str, Any]
Setting = dict[str, Any]


def is_nested(value: Any) -> bool:
    return isinstance(value, Mapping) and not domains.is_grid(value)


def check(params: Params, of: str = "parameter") -> None:
    """Raises a ValueError that names the first parameter that is neither a constant nor a valid domain."""
    for name, value in domains.leaves(params):
        if is_constant(value):
            continue
        try:
            domains.check_domain(value)
        except ValueError as error:
            raise ValueError(f"{of} {name!r}: {error}") from None
        for each in branches(value):
            if is_nested(each):
                check(each, of=f"{of} {name!r}, one of its choices:")
            elif not is_constant(each):
                raise ValueError(f"{of} {name!r}: a {type(each).__name__} among dictionaries with domains; give a dict")


def branches(value: Any) -> list[Any]:
    """The values of a choice if at least one is a dictionary that contains a domain, else an empty list."""
    if not domains.is_choice(value):
        return []
    values = domains.values_of(value)
    return values if any(is_nested(each) and searched(each) for each in values) else []


def _objects(value: Any) -> list[Any]:
    """The values of a choice if at least one is a list, a dictionary or another object, else an empty list."""
    values = domains.values_of(value) if domains.is_choice(value) else []
    return [] if all(map(is_constant, values)) else values


def searched(params: Params) -> Setting:
    """The searched parameters: drops constants, and dictionaries that hold only constants."""
    inner = {name: searched(value) if is_nested(value) else value for name, value in params.items()}
    return {name: value for name, value in inner.items() if value != {} and not is_constant(value)}


def constants(params: Params) -> Setting:
    inner = {name: constants(value) if is_nested(value) else value for name, value in params.items()}
    return {name: value for name, value in inner.items() if is_constant(value) or (value and is_nested(value))}


def searched_in(params: Params, config: Params) -> Setting:
    """Removes the constants from a trial's whole config: the inverse of `training.task.whole_config`."""
    left = {}
    for name, value in searched(params).items():
        left[name] = searched_in(params[name], config[name]) if is_nested(value) else config[name]
    return left


def encode(params: Params) -> Setting:
    """Encodes searched parameters for searchers; a conditional one becomes a choice of branch and encoded branches."""
    from ray import tune

    encoded: Setting = {}
    for name, value in searched(params).items():
        if values := branches(value):
            inner = {_key(i): encode(each) for i, each in enumerate(values) if is_nested(each)}
            encoded[name] = {CHOSEN: tune.choice([_key(i) for i in range(len(values))])}
            encoded[name] |= {key: each for key, each in inner.items() if each}
        elif values := _objects(value):
            encoded[name] = tune.choice([_key(i) for i in range(len(values))])
            encoded[name].sampler = value.sampler  # which may have probabilities
        else:
            encoded[name] = encode(value) if is_nested(value) else value
    return encoded


def _key(number: int) -> str:
    # `branch0`, not `0`: Ray's BOHB adapter turns a dictionary whose keys are numbers into a list.
    return f"{BRANCH}{number}"


def decode(params: Params, setting: Params) -> Setting:
    """Turns a setting that was proposed for `encode(params)` into a config, with the constants of `params`."""
    config: Setting = {}
    for name, value in params.items():
        if values := branches(value):
            key = setting[name][CHOSEN]
            chosen = values[int(key.removeprefix(BRANCH))]
            config[name] = decode(chosen, setting[name].get(key, {})) if is_nested(chosen) else chosen
        elif is_nested(value):
            config[name] = decode(value, setting.get(name, {}))
        elif values := _objects(value):
            config[name] = values[int(setting[name].removeprefix(BRANCH))]
        else:
            config[name] = value if is_constant(value) else setting[name]
    return config


def chosen_by(name: str) -> list[tuple[str, str]]:
    """For each branch that a flattened, encoded parameter is in: the parameter that chooses it, and its own name."""
    path = name.split("/")
    above = (depth for depth, step in enumerate(path[:-1]) if step.startswith(BRANCH))
    return [("/".join([*path[:depth], CHOSEN]), path[depth]) for depth in above]


def in_use(flat: Params) -> Setting:
    """Leaves out the values of the branches that a flattened, encoded setting does not choose."""
    return {n: value for n, value in flat.items() if all(flat.get(by, key) == key for by, key in chosen_by(n))}


def describe(params: Params) -> dict[str, dict[str, Any]]:
    """Returns searched parameter -> its domain as JSON, for experiment.json; names of nested ones are joined by `/`.

    If branches declare a name in different ways, it gets all their values if each is a choice, else kind `conditional`.
    """
    found: dict[str, list[Any]] = {}
    for name, value in searched(params).items():
        for path, each in _leaves(name, value):
            found.setdefault(path, []).append(each)
    return {path: _described(values) for path, values in found.items()}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    nested_in = branches(value) or ([value] if is_nested(value) else [])
    if not nested_in:
        yield path, value
    for each in nested_in:
        for name, inner in each.items() if is_nested(each) else [("", each)]:
            yield from _leaves(f"{path}/{name}" if name else path, inner)


def _described(values: list[Any]) -> dict[str, Any]:
    described = [{"kind": "choice", "values": [v]} if is_constant(v) else domains.describe(v) for v in values]
    if all(each == described[0] for each in described):
        return described[0]
    if all(each["kind"] == "choice" for each in described):
        return {"kind": "choice", "values": list(dict.fromkeys(v for each in described for v in each["values"]))}
    return {"kind": "conditional", "branches": described}


def place(params: Params, point: Params, path: str = "") -> Setting:
    """Returns flattened name in `encode(params)` -> value of a point, such as `{"optimizer/branch0/momentum": 0.9}`.

    A point is a config in which parameters may be missing. Raises ValueError for an unknown parameter, or a value that
    its parameter cannot have.
    """
    unknown = [name for name in point if name not in params]
    if unknown:
        each = "; ".join(f"{f'{path}{name}'!r} is no parameter{nearest(name, params)}" for name in unknown)
        raise ValueError(f"{each}; the parameters are {', '.join(params)}")
    placed: Setting = {}
    for name, given in point.items():
        value, here = params[name], f"{path}{name}"
        if values := branches(value):
            placed |= _branch_of(values, given, here)
        elif is_nested(value):
            if not is_nested(given):
                raise ValueError(f"{here}={given!r}: must be a dict of {', '.join(value)}")
            placed |= place(value, given, f"{here}/")
        elif is_constant(value):
            if given != value:
                raise ValueError(f"{here}={given!r}: the space fixes it to {value!r}; omit it, or declare a domain")
        elif domains.kind(value) == "sample_from":
            raise ValueError(f"{here}={given!r}: tune.sample_from computes it; leave it out")
        else:
            placed[here] = domains.checked_value(value, given, here)
            if values := _objects(value):
                placed[here] = _key(domains.index_of(values, placed[here]))
    return placed


def _branch_of(values: list[Any], given: Any, here: str) -> Setting:
    """Returns the first branch that fits a point's value: its name and the point's values; ValueError if none fits."""
    why = ValueError(f"{here}={given!r}: is none of its choices")
    for number, each in enumerate(values):
        chosen = {f"{here}/{CHOSEN}": _key(number)}
        if not is_nested(each):
            if each == given:
                return chosen
        elif is_nested(given):
            try:
                return chosen | place(each, given, f"{here}/{_key(number)}/")
            except ValueError as error:
                why = ValueError(str(error).replace(f"{here}/{_key(number)}/", f"{here}/"))
    raise why
