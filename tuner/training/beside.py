"""Finds what a training changes that is in no `state_dict` of its model, optimizer or schedule.

That is: modules that the optimizer trains beside the model, generators of random numbers, and plain attributes of the
model's modules. They are looked for in the functions of a Task, in all that the code of the user's functions names, and
in the attributes and items of what is found there.
"""

from __future__ import annotations

import contextlib
import random
import types
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import nn

from tuner.errors.users_code import is_foreign
from tuner.training.task import Task

WANTED = (
    "keep them in an nn.Module that a function of the task uses (loss, training_loss or optimizer), or put them into "
    "the model"
)
MAX_SCANNED_ITEMS = 1_000  # of a list or dictionary that is looked through; a data set's own list is longer
MOST_OBJECTS = 50_000  # 20 ms
MOST_ATTRIBUTES = 2**20  # bytes of the plain attributes of a model that a checkpoint has
GENERATORS = np.random.Generator, np.random.RandomState, random.Random, torch.Generator
OF_MODULES = frozenset(vars(nn.Module()))  # attributes that torch itself keeps, such as `training`
LEAVES = str, bytes, int, float, type(None), np.ndarray, torch.Tensor  # reach nothing
PLAIN = bool, int, float, str, type(None)


def modules_beside(task: Task, model: nn.Module, optimizer: torch.optim.Optimizer) -> nn.ModuleList:
    """Return the modules that own what the optimizer trains beside the model's parameters.

    Raises:
        ValueError: a parameter of the optimizer belongs neither to the model nor to such a module.
    """
    left = {id(each): each for group in optimizer.param_groups for each in group["params"]}
    own = [parameter for parameter in model.parameters() if left.pop(id(parameter), None) is not None]
    found = nn.ModuleList()
    if not own:  # it trains another model, which the check before the first trial says
        return found
    functions = (task.loss, task.training_loss, task.optimizer, task.augment, task.model)
    for module in reached(functions, nn.Module) if left else ():
        if any(id(parameter) in left for parameter in module.parameters()):
            found.append(module)
            for parameter in module.parameters():
                left.pop(id(parameter), None)
    if left:
        shapes = ", ".join(str(tuple(each.shape)) for each in list(left.values())[:3])
        raise ValueError(f"the optimizer trains parameters that no checkpoint would have (shapes {shapes}); {WANTED}")
    return found


def generators_in(*values: Any) -> list[Any]:
    """Return the random generators that functions and objects use, in a fixed order, without the global ones."""
    own = {id(each) for each in (random._inst, np.random.mtrand._rand, torch.default_generator)}
    found = (each for each in reached(values, GENERATORS) if id(each) not in own)
    return [each for each in found if not isinstance(each, random.SystemRandom)]  # it has no state


def states_of(generators: Iterable[Any]) -> list[Any]:
    """Return the states of generators as plain values and tensors."""
    return [_state_of(each) for each in generators]


def set_states(generators: Iterable[Any], states: Sequence[Any]) -> None:
    """Set the states that `states_of` has returned for the same generators."""
    for generator, state in zip(generators, states, strict=False):
        if isinstance(generator, (torch.Generator, np.random.RandomState)):
            generator.set_state(state)
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = state
        else:
            generator.setstate((state[0], tuple(state[1]), state[2]))


def seed_all(generators: Sequence[Any], *words: int) -> None:
    """Seed each generator from numbers of at least 0."""
    if not generators:
        return
    for generator, seed in zip(generators, np.random.SeedSequence(words).spawn(len(generators)), strict=True):
        number = int(seed.generate_state(1)[0])
        if isinstance(generator, torch.Generator):
            generator.manual_seed(number)
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = type(generator.bit_generator)(seed).state
        else:
            generator.seed(number)


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return _plain(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return _plain(generator.get_state(legacy=False))
    return list(generator.getstate())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def attributes_of(model: nn.Module) -> dict[str, Any]:
    """Return copies of the plain attributes of a model's modules: numbers, texts, tensors, and lists of these.

    Tensors that are parameters or buffers are not among them. Larger ones than MOST_ATTRIBUTES bytes in all are caches,
    such as of activations, and are left out.
    """
    left, found = MOST_ATTRIBUTES, {}
    for path, value in _attributes(model):
        if _is_plain(value) and (num_bytes := _num_bytes(value)) <= left:
            left -= num_bytes
            found[path] = _copied(value)
    return found


def unkept(model: nn.Module) -> list[str]:
    """Return the names of up to three attributes of a model's modules that are neither plain nor functions."""
    simple = types.FunctionType, types.MethodType, types.BuiltinFunctionType, type
    names = (path for path, value in _attributes(model) if not _is_plain(value) and not isinstance(value, simple))
    return list(islice(names, 3))


def _attributes(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in OF_MODULES:
                yield f"{prefix}.{name}", value


def set_attributes(model: nn.Module, attributes: dict[str, Any]) -> None:
    """Set attributes that `attributes_of` has returned; tensors go to the device of those that they replace.

    Those that replace none go to the device of the module's parameters, or else of the model's.
    """
    modules = dict(model.named_modules())
    for path, value in attributes.items():
        prefix, _, name = path.rpartition(".")
        if (module := modules.get(prefix)) is not None:  # a module with `__len__` may be false
            before = getattr(module, name, None)
            near = chain([before] if isinstance(before, torch.Tensor) else [], module.parameters(), model.parameters())
            setattr(module, name, _copied(value, next((each.device for each in near), None)))


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of `after` that `before` has not, or with another value."""
    return {name: value for name, value in after.items() if name not in before or not _equal(before[name], value)}


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and bool(torch.equal(one, other.to(one.device)))
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(each, other[name]) for name, each in one.items())
    return type(one) is type(other) and one == other


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return type(value) in (list, tuple) and len(value) <= MAX_SCANNED_ITEMS and all(map(_is_plain, value))
    if type(value) is dict:
        parts = [*value, *value.values()]
        return len(value) <= MAX_SCANNED_ITEMS and all(map(_is_plain, parts))
    return type(value) in PLAIN or type(value) is torch.Tensor


def _num_bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    inner = value.values() if isinstance(value, dict) else value
    return sum(map(_num_bytes, inner)) if isinstance(value, (list, tuple, dict)) else 8


def _copied(value: Any, device: torch.device | None = None) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to(device or value.device, copy=True)
    if isinstance(value, dict):
        return {name: _copied(each, device) for name, each in value.items()}
    return type(value)(_copied(each, device) for each in value) if isinstance(value, (list, tuple)) else value


def reached(values: Iterable[Any], kind: type | tuple[type, ...]) -> Iterator[Any]:
    """Yield the objects of a kind among values and in all that they reach, each once, in a fixed order."""
    seen: dict[int, Any] = {}  # keeps the objects, so that no other gets the id of one
    todo = list(values)[::-1]
    while todo and len(seen) < MOST_OBJECTS:
        value = todo.pop()
        # By `type`: `isinstance` runs code of an object that pretends to be another one.
        if id(value) in seen or issubclass(type(value), LEAVES):
            continue
        seen[id(value)] = value
        if issubclass(type(value), kind):
            yield value
        todo += list(_inner(value))[::-1]


def _inner(value: Any) -> Iterator[Any]:
    if isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, types.FunctionType):
        if not is_foreign(value.__code__.co_filename):
            yield from _named(value)
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # the variable has no value yet
                continue
        yield from (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *vars(value).values())
    elif isinstance(value, dict):
        if len(value) <= MAX_SCANNED_ITEMS:
            yield from value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        if len(value) <= MAX_SCANNED_ITEMS:
            yield from value
    elif not isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
        with contextlib.suppress(AttributeError):
            yield from list(object.__getattribute__(value, "__dict__").values())
        for each in type(value).__mro__:  # what the methods of the user's classes use
            yield from _methods(each)


def _methods(owner: type) -> Iterator[types.FunctionType]:
    """Yield the functions of a class, also those of its static and class methods and properties."""
    for value in vars(owner).values():
        if type(value) in (staticmethod, classmethod):
            value = value.__func__
        elif type(value) is property:
            value = value.fget
        if type(value) is types.FunctionType:
            yield value


def _named(function: types.FunctionType) -> Iterator[Any]:
    """Yield the globals that a function's code names, and the variables of modules and classes among them."""
    names = list(dict.fromkeys(_names(function.__code__)))
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, (types.ModuleType, type)):  # such as `helper` in `helper.rng`
            own = vars(value)
            yield from (own[each] for each in names if each in own)
            if isinstance(value, type):
                yield from _methods(value)
        else:
            yield value


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
