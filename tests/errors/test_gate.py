"""Whatever users' code hands over comes through the gate as plain values and clean text."""

import decimal
import functools
import json
import math
import os
import re
import subprocess
import sys
import threading
from fractions import Fraction
from types import MappingProxyType

import numpy as np
import pandas
import pytest
import torch
from fuzzing import TIERS
from hypothesis import strategies as some

from tuner.errors import gate
from tuner.errors.gate import clean, fingerprint, metrics_of, plain, text_of

ERRORS = [RuntimeError("closed"), SystemExit(3), RecursionError(), UnicodeError("caf\udce9"), StopIteration()]
METHODS = ["__repr__", "__str__", "__getattr__", "__len__", "__iter__", "__float__", "__eq__", "__hash__", "__class__"]


def hostile(base, method, error):
    """An object of a subclass of `base`, one of whose methods raises."""

    def fails(self, *args):
        raise error

    made = type("Hostile", (base,), {method: property(fails) if method == "__class__" else fails})
    made.__hash__ = base.__hash__ if method != "__hash__" else made.__hash__
    return made("5") if base in (str, int, float) else made()


class Lying(dict):
    """A dictionary whose own methods do not tell what it holds."""

    def items(self):
        raise RuntimeError("no items")

    def __len__(self):
        return 10**30


def recursive(kind):
    value = kind()
    value.append(value) if kind is list else value.update(itself=value)
    return value


def bomb(depth, value=1):
    for _ in range(depth):
        value = [value, value]
    return value


def named(depth):
    value = 1
    for _ in range(depth):
        value = {"a": value, "b": value}
    return value


class Bare:
    pass


class Table:
    shape = (10**9, 10**9)


ODD = [
    math.nan, math.inf, -math.inf, 10**400, -(10**400), 10**5000, 2**63, 2**64, -0.0, 1e308, True, None, b"\xff\x00",
    "\udcff", "caf\udce9", "\0", "\x1b[31m", "x" * 200_000, "\U0001f642" * 200, np.float32(1), np.longdouble(2), 1 + 2j,
    np.int64(3), np.bool_(True), np.str_("a"), np.datetime64("2020-01-01"), np.array([1.5]), np.array([[1, 2], [3, 4]]),
    np.array([]), np.array([object()], dtype=object), np.zeros((300, 300)), np.array("x"), np.zeros(2, dtype="i4,f8"),
    torch.tensor(1.5, requires_grad=True), torch.tensor([1, 2]), torch.zeros(3, device="meta"), torch.zeros(5000),
    torch.tensor([1 + 2j]), torch.zeros(2, dtype=torch.bfloat16), torch.nn.Linear(2, 2), torch.float32, Table(),
    pandas.DataFrame({"a": [0.5]}), pandas.DataFrame({"a": [1, 2]}), pandas.Series([1.0]), pandas.Series(dtype=float),
    pandas.Timestamp("2020-01-01"), pandas.NA, Fraction(1, 3), decimal.Decimal("0.1"), decimal.Decimal("sNaN"), len,
    {1, "a", None}, frozenset({(1, 2)}), range(10**9), math.tanh, torch.relu, torch.nn.ReLU, int, np.tanh, Bare, Bare(),
    lambda x: x, functools.partial(int, base=2), Bare().__init__, threading.Lock(), iter(()), Lying(a=1), sys, ...,
    MappingProxyType({"a": 1}), recursive(list), recursive(dict), bomb(50), named(50), bomb(200), named(200),
    ValueError("caf\udce9"), NotImplemented, Lying({1: Bare()}), type("Meta", (type,), {})("Made", (), {}),
]  # fmt: skip
KEYS = [
    0, 1.5, None, True, (1, "a"), b"x", "", "\udcff", "a/b", "x" * 5000, 10**5000, math.nan, len, Bare(), "loss",
    "done", frozenset({1}), hostile(str, "__str__", ERRORS[0]), hostile(object, "__repr__", ERRORS[0]),
]  # fmt: skip


def one_of(values):
    return some.integers(0, len(values) - 1).map(lambda place: values[place])  # `sampled_from` would print them


BASES = [object, str, int, float, dict, list, tuple, set, Exception]
OBJECTS = some.builds(hostile, one_of(BASES), one_of(METHODS), one_of(ERRORS))
LEAVES = one_of(ODD) | some.floats() | some.integers() | some.text(max_size=8) | some.booleans() | OBJECTS
INSIDE = some.text(max_size=3) | some.integers() | some.none() | some.tuples(some.integers())
VALUES = some.recursive(
    LEAVES, lambda each: some.lists(each, max_size=3) | some.dictionaries(INSIDE, each, max_size=3), max_leaves=6
)
NAMES = some.text(max_size=5) | one_of(KEYS)


def is_plain(value):
    if type(value) in (list, dict):
        return all(map(is_plain, value.values() if type(value) is dict else value)) and all(map(is_plain, value))
    whole = type(value) is int and abs(value) <= gate.MAX_INTEGER
    return whole or value is None or type(value) in (bool, float) or (type(value) is str and bool([value.encode()]))


@pytest.mark.parametrize("tier", TIERS)
def test_every_value_becomes_plain_and_the_same_again(tier):
    def holds(value):
        made = plain(value)
        assert is_plain(made)
        assert fingerprint(made) == fingerprint(json.loads(fingerprint(made))) == fingerprint(plain(made))

    tier.check(300, VALUES, holds)
    for value in ODD:
        holds(value)


@pytest.mark.parametrize("tier", TIERS)
def test_every_report_keeps_what_can_be_kept_and_names_the_rest(tier):
    def holds(report):
        kept, lost = metrics_of({"loss": 0.5, **report}, {"done": "why"}, {"loss"})
        assert is_plain(kept) and len(fingerprint(kept)) < 12 * gate.MOST_REPORT and len(kept) <= len(report) + 1
        assert kept.get("loss") == 0.5 or "loss" in report or "loss" in lost
        assert "done" not in kept and all(clean(text) == text and len(text) < 500 for text in (*lost, *lost.values()))

    tier.check(300, some.dictionaries(NAMES, VALUES, max_size=5), holds)
    for value in ODD:
        holds({"odd": value})


@pytest.mark.parametrize("tier", TIERS)
def test_every_object_has_a_clean_text(tier):
    def holds(value):
        text = text_of(value)
        assert type(text) is str and len(text.encode()) < 5 * gate.MOST_ERROR

    tier.check(200, OBJECTS | some.builds(ValueError, OBJECTS), holds)
    for value in ODD:
        if not isinstance(value, (list, dict)):  # Python itself would not end with some of them
            holds(value)


def test_what_a_report_loses_is_told_with_the_reason():
    report = {0: 1, "0": 2, "handle": hostile(object, "__repr__", ERRORS[0]), "text": "x" * 200_000, "done": True}
    report |= {"in": {"itself": recursive(list), 5: np.float32(0.5)}, "x" * 2000: 1, "caf\udce9": "caf\udce9"}
    kept, lost = metrics_of(report, {"done": "Ray sets it"})
    assert kept == {"0": 1, "in": {"5": 0.5}, "caf\\udce9": "caf\\udce9"}
    assert lost == {
        "0": "another metric has this name",
        "handle": "its Hostile cannot be read (RuntimeError: closed)",
        "text": "it has more than 100,000 characters",
        "done": "Ray sets it",
        "in/itself": "its list cannot be read (it is nested more than 100 levels deep, or contains itself)",
        "x" * 200: "its name has more than 1,000 characters",
    }


def test_a_report_is_bounded_but_never_loses_a_needed_metric():
    report = {f"text {n}": "x" * 99_000 for n in range(20)} | {"loss": 0.5, "accuracy": 0.25}
    kept, lost = metrics_of(report, {}, {"loss"})
    assert list(kept) == [*(f"text {n}" for n in range(10)), "loss"]
    assert lost["text 10"] == lost["accuracy"] == "its report has more than 1,000,000 characters"


def outer(factor):
    def inner(x):
        return x * factor

    return inner


class Activation:
    def __init__(self, slope):
        self.slope = slope

    def __call__(self, x):
        return x * self.slope


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.tanh, "math.tanh"), (torch.nn.ReLU, "torch.nn.modules.activation.ReLU"), (int, "int"),
        (lambda x, y=2: max(x, y), "lambda x, y: max(x, y) with 2"), (outer, f"{__name__}.outer"),
        (outer(3), f"{__name__}.outer.<locals>.inner with 3"), (Activation(0.5), "Activation(slope=0.5)"),
        (Bare(), "Bare()"), (functools.partial(outer, factor=2), f"partial({__name__}.outer, factor=2)"),
        (np.array([0.1, 0.9]), [0.1, 0.9]), (np.ones((1, 2)), [[1.0, 1.0]]), ((1, 2), [1, 2]),
    ],
)  # fmt: skip
def test_functions_classes_sets_and_arrays_have_a_text_of_their_own(value, text):
    assert plain(value) == text


def test_a_large_array_is_told_apart_by_its_values():
    first, second = np.zeros((50, 50)), np.zeros((50, 50))
    second[0, 0] = 1
    assert plain(first) == plain(first.copy()) != plain(second)
    assert plain(list(range(50_000))) == plain(list(range(50_000))) != plain([*range(49_999), 0])
    assert re.fullmatch(r"ndarray of shape \(50, 50\), sha256 [0-9a-f]{8}", plain(first))


MODULE = """
import functools
from tuner.errors.gate import fingerprint, plain
def function(x): pass
class Made:
    def __init__(self): self.a, self.other = 1, object()
    def method(self): pass
NAMES = {"a", "b", "c", 1, (2, 3)}
print(fingerprint(plain([NAMES, function, lambda x: x + 1, Made(), Made().method, functools.partial(function, NAMES)])))
"""


def test_the_text_is_the_same_in_another_process():
    told = set()
    for seed in "12":
        ran = subprocess.run(
            [sys.executable, "-c", MODULE], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True
        )
        told.add(ran.stdout.decode())
    names, *others = json.loads(told.pop())
    assert not told and names == ["a", "b", "c", 1, [2, 3]] and re.fullmatch("<lambda> [0-9a-f]{8}", others.pop(1))
    assert others == ["function", "Made(a=1)", "Made.method", f"partial(function, {names})"]
