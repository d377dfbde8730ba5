"""Random forests that predict how well settings do, and settings as the numbers that a forest learns from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from tuner.spec import domains, parameters

Matrix = npt.NDArray[np.float32]
Columns = Mapping[str, Sequence[Any]]  # flattened, encoded parameter -> its values in several settings

TREES, LEAF, FEATURES = 32, 2, 0.8
NUM_CANDIDATES = 500  # random settings among which a tree chooses
RISK_TREES = 16  # to train these on 1,000 trials takes 30 ms
MAY_FAIL = 0.2  # a setting that a model proposes may fail with this probability at most, if there is such a setting
LARGEST = 1e30  # maximum of a feature, because scikit-learn refuses a value that overflows a 32-bit float
ABSENT = -1.0  # the feature of a parameter in a branch that a setting did not choose


class Forest:
    """Extremely randomised trees (Geurts et al., "Extremely randomized trees", Machine Learning 2006) on bootstraps.

    A tree is trained at its first use: with 1,000 trials, this takes 2 ms, and 60 ms for all trees. With all weights 1,
    tree k is tree k of scikit-learn's unweighted ExtraTreesRegressor (bootstrap=True, same seed). `known` has shape
    (trials, features). The trees predict `scores`; `weights` says how often a trial counts. Both have shape (trials,).
    Without weights, each tree learns all trials exactly, as those of an ExtraTreesRegressor without bootstrap do.
    """

    def __init__(self, known: Matrix, scores: Sequence[float], seed: int, weights: Sequence[int] | None) -> None:
        self._known, self._scores = known, np.array(scores, dtype=np.float64)
        self._weights = None if weights is None else np.array(weights)
        self._seeds = np.random.RandomState(seed).randint(np.iinfo(np.int32).max, size=TREES)
        self._trees: dict[int, Any] = {}

    def tree(self, number: int) -> Any:
        """Returns the tree with this number, 0 to TREES - 1."""
        if number not in self._trees:
            from sklearn.tree import ExtraTreeRegressor

            seed, size, counted, leaf = int(self._seeds[number]), len(self._known), None, 1
            if self._weights is not None:
                counts = np.bincount(np.random.RandomState(seed).randint(0, size, size), minlength=size)
                counted, leaf = counts * self._weights, LEAF
            tree = ExtraTreeRegressor(min_samples_leaf=leaf, max_features=FEATURES, random_state=seed)
            self._trees[number] = tree.fit(self._known, self._scores, sample_weight=counted).tree_
        return self._trees[number]


class Risk:
    """Predicts the probability that a setting fails. Failures say nothing about how good the settings nearby are.

    A trial that lost its worker, ran out of memory, raised an error or diverged counts as failed. `known` has shape
    (trials, features) and `failed` (trials,). The trees learn all trials exactly. A setting in `certain`, given as the
    bytes of its features, has the probability 1; the caller may add others to this set.
    """

    def __init__(self, known: Matrix, failed: Sequence[bool], seed: int, certain: Set[bytes]) -> None:
        self._forest = Forest(known, failed, seed, None) if any(failed) else None
        self._certain = certain

    def at(self, settings: Matrix) -> npt.NDArray[np.float64]:
        """Returns the probabilities of settings, given as features; shape (settings,)."""
        trees = [self._forest.tree(number) for number in range(RISK_TREES)] if self._forest else []
        found = np.mean([tree.predict(settings).ravel() for tree in trees] or [np.zeros(len(settings))], axis=0)
        certain = [row.tobytes() in self._certain for row in settings] if self._certain else False
        return np.where(certain, 1.0, found)

    def allows(self, settings: Matrix, most: float) -> npt.NDArray[np.bool_]:
        """Whether settings fail with a probability of at most `most`; if none does, which ones have the least."""
        risks = self.at(settings)
        return np.asarray(risks <= max(most, risks.min()))


def no_risk(certain: Set[bytes] = frozenset()) -> Risk:
    """Returns the risk before a model knows any trial."""
    return Risk(np.empty((0, 0), dtype=np.float32), [], 0, certain)


def normal_scores(number: int) -> list[float]:
    """Returns the scores that replace `number` sorted values: a forest learns ranks, since one value may be huge."""
    return [NormalDist().inv_cdf((rank + 0.5) / number) for rank in range(number)]


def drawn(leaves: dict[str, Any], stream: np.random.Generator, number: int) -> Columns:
    """Draws random settings; `number` is 2 or more, since for 1 Ray's domains return a value instead of a sequence."""
    return {name: domain.sample(size=number, random_state=stream) for name, domain in leaves.items()}


def promising(leaves: dict[str, Any], forest: Forest, risk: Risk, stream: np.random.Generator) -> dict[str, Any]:
    """Returns the one of 500 random settings for which one random tree predicts the best result, if it may be tried."""
    columns = drawn(leaves, stream, NUM_CANDIDATES)
    at, tree = features(leaves, columns), forest.tree(int(stream.integers(TREES)))
    scores = np.where(risk.allows(at, MAY_FAIL), tree.predict(at).ravel(), math.inf)
    return row_of(leaves, columns, int(scores.argmin()))


def row_of(leaves: dict[str, Any], columns: Columns, number: int) -> dict[str, Any]:
    """Returns the setting with this number."""
    return {name: domains.within(leaves[name], values[number]) for name, values in columns.items()}


def features(leaves: dict[str, Any], columns: Columns) -> Matrix:
    """Returns settings as numbers, of shape (settings, features); `leaves` has the encoded parameters' domains.

    A range gives one feature from 0 to 1, a log range on a log scale. A choice of numbers gives the number's rank, also
    from 0 to 1; any other choice gives one feature per value. A normal distribution gives the value itself.
    """
    parts = []
    for name, domain in leaves.items():
        part = _numbers(domain, columns[name])
        for chooser, branch in parameters.chosen_by(name):
            if chooser in columns:
                part[np.array([value != branch for value in columns[chooser]])] = ABSENT
        parts.append(part)
    return np.concatenate(parts, axis=1, dtype=np.float32)


def _numbers(domain: Any, values: Sequence[Any]) -> npt.NDArray[np.float64]:
    kind = domains.kind(domain)
    if kind == "choice":
        every = domains.values_of(domain)
        if all(type(value) in (int, float) for value in every):
            order = sorted(set(every))
            ranks = {value: rank / max(1, len(order) - 1) for rank, value in enumerate(order)}
            return np.array([[ranks[value]] for value in values])
        return np.array([[float(domains.equal(value, each)) for each in every] for value in values])
    column = np.array(values, dtype=np.float64)[:, None]
    if kind == "normal":
        return column.clip(-LARGEST, LARGEST)
    low, high = float(domain.lower), float(domain.upper)
    if kind.startswith("log"):
        column, low, high = np.log(column), math.log(low), math.log(high)
    return (column - low) / (high - low)
