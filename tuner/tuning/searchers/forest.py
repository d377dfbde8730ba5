"""The searcher `forest`: random settings, and settings for which a random forest predicts a good result.

The forest learns from the last reports of at most MOST_TRIALS trials, also of trials that still train, wait or were
pruned. A failed or diverged trial counts as infinitely bad. Under ASHA, a trial trains longer because it was better
than the trials that it was compared with. The last reports thus order the trials well although their epochs differ
(Salinas et al., "Optimizing hyperparameters with conformal quantile regression", ICML 2023).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from statistics import NormalDist
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt

from tuner.spec import domains, parameters
from tuner.spec.experiment import Experiment
from tuner.spec.space import Space
from tuner.tuning.searchers.sampling import SeededSearcher, Setting

Matrix = npt.NDArray[np.float32]
Columns = Mapping[str, Sequence[Any]]  # flattened, encoded parameter -> its values in several settings

# Chosen in simulations with asha-promotion, mostly on surrogate curves; see benchmarks/README.md.
NUM_RANDOM = 10  # trials that must have reported or failed before the first forest is trained
RANDOM_SHARE = 1 / 3  # share of random settings later, because a forest alone repeats what is good after few epochs
NUM_CANDIDATES = 500
TREES, LEAF, FEATURES = 32, 2, 0.8
MOST_TRIALS = 1000  # maximum number of trials that a forest learns from: half are the best, the others the newest
GROWTH = 1.05  # a new forest is trained after 5 % more reports
LARGEST = 1e30  # maximum of a feature, because scikit-learn refuses a value that overflows a 32-bit float
ABSENT = -1.0  # the feature of a parameter in a branch that a setting did not choose


class ForestSearcher(SeededSearcher):
    """Proposes given points, then random settings until 10 trials have reported or failed; then one in three is random.

    For a proposal that is not random, it draws 500 random settings and one tree of the forest. It proposes the setting
    for which this tree predicts the best result. This is Thompson sampling (Eckles and Kaptein, "Thompson sampling with
    the online bootstrap", 2014). Each tree learns from a bootstrap of trials, so trees disagree where few trials were.
    """

    def __init__(self, experiment: Experiment, space: Space, first_num_samples: int) -> None:
        super().__init__(experiment, space, first_num_samples)
        self._domains = dict(domains.leaves(space.encoded))
        self._features: dict[str, Matrix] = {}  # trial -> its setting as numbers
        self._values: dict[str, float] = {}  # trial -> its last value, with a sign such that smaller is better
        self._epochs: dict[str, int] = {}  # trial -> the highest epoch that it reported, at least 1
        self._num_reports = self._num_learnt = 0
        self._forest: Forest | None = None

    def _next(self, trial_id: str) -> Setting:
        stream = np.random.default_rng([self._seed, self.num_proposed])
        is_random = len(self._values) < NUM_RANDOM or stream.random() < RANDOM_SHARE
        if not is_random and (self._forest is None or self._num_reports >= GROWTH * self._num_learnt):
            self._forest = self._learnt(stream)
        num = 2 if is_random else NUM_CANDIDATES  # for size=1, Ray's domains would return a value instead of a sequence
        drawn = {name: domain.sample(size=num, random_state=stream) for name, domain in self._domains.items()}
        best = 0
        if self._forest and not is_random:
            tree = self._forest.tree(int(stream.integers(TREES)))
            best = int(tree.predict(features(self._domains, drawn)).argmin())
        return self._use(trial_id, {name: self._domains[name].cast(values[best]) for name, values in drawn.items()})

    def _use(self, trial_id: str, flat: Setting) -> Setting:
        self._features[trial_id] = features(self._domains, {name: [value] for name, value in flat.items()})[0]
        return super()._use(trial_id, flat)

    def _learnt(self, stream: np.random.Generator) -> Forest:
        """Returns a forest that learns the trials' ranks, since a diverged value would outweigh all other values."""
        self._num_learnt = self._num_reports
        newest = sorted(self._values, reverse=True)
        best = sorted(newest, key=self._values.__getitem__)[: MOST_TRIALS // 2]
        known = list(dict.fromkeys(best + newest))[:MOST_TRIALS]
        known.sort(key=self._values.__getitem__)
        scores = [NormalDist().inv_cdf((rank + 0.5) / len(known)) for rank in range(len(known))]
        seed, weights = int(stream.integers(2**31)), [self._weight(trial) for trial in known]
        return Forest(np.stack([self._features[trial] for trial in known]), scores, seed, weights)

    def _weight(self, trial: str) -> int:
        """Returns how often a trial counts: once per epoch, so that many short trials do not outweigh few long ones."""
        # The result of a diverged or failed trial is as certain as that of a trial that trained to the end.
        return self._epochs[trial] if math.isfinite(self._values[trial]) else max(self._epochs.values())

    def _learn(self, trial_id: str, result: Setting) -> None:
        self._values[trial_id] = self._sign * float(result[self._metric])
        self._epochs[trial_id] = max(self._epochs.get(trial_id, 1), int(result["training_iteration"]))
        if not self._num_reports:
            Thread(target=import_module, args=["sklearn.tree"]).start()  # takes 2 s, so it begins at the first report
        self._num_reports += 1


class Forest:
    """Extremely randomised trees (Geurts et al., "Extremely randomized trees", Machine Learning 2006) on bootstraps.

    A tree is trained at its first use: with 1,000 trials, this takes 2 ms, and 60 ms for all trees. With all weights 1,
    tree k is tree k of scikit-learn's unweighted ExtraTreesRegressor (bootstrap=True, same seed). `known` has shape
    (trials, features). The trees predict `scores`; `weights` says how often a trial counts. Both have shape (trials,).
    """

    def __init__(self, known: Matrix, scores: Sequence[float], seed: int, weights: Sequence[int]) -> None:
        self._known, self._scores, self._weights = known, np.array(scores), np.array(weights)
        self._seeds = np.random.RandomState(seed).randint(np.iinfo(np.int32).max, size=TREES)
        self._trees: dict[int, Any] = {}

    def tree(self, number: int) -> Any:
        """Returns the tree with this number, 0 to TREES - 1."""
        if number not in self._trees:
            from sklearn.tree import ExtraTreeRegressor

            seed, size = int(self._seeds[number]), len(self._known)
            counts = np.bincount(np.random.RandomState(seed).randint(0, size, size), minlength=size)
            tree = ExtraTreeRegressor(min_samples_leaf=LEAF, max_features=FEATURES, random_state=seed)
            self._trees[number] = tree.fit(self._known, self._scores, sample_weight=counts * self._weights).tree_
        return self._trees[number]


def features(leaves: dict[str, Any], columns: Columns) -> Matrix:
    """Returns settings as numbers, of shape (settings, features); `leaves` has the encoded parameters' domains.

    A range gives one feature from 0 to 1, a log range on a log scale. A choice of numbers gives the number's rank, also
    from 0 to 1; any other choice gives one feature per value. A normal distribution gives the value itself.
    """
    parts = []
    for name, domain in leaves.items():
        part = _numbers(domain, columns[name])
        *outer, _ = name.split("/")
        for depth, branch in enumerate(outer):
            chosen = columns.get("/".join([*outer[:depth], parameters.CHOSEN]))
            if chosen is not None:
                part[np.array([value != branch for value in chosen])] = ABSENT
        parts.append(part)
    return np.concatenate(parts, axis=1, dtype=np.float32)


def _numbers(domain: Any, values: Sequence[Any]) -> npt.NDArray[np.float64]:
    kind = domains.kind(domain)
    if kind == "choice":
        every = domains.values_of(domain)
        if all(type(value) in (int, float) for value in every):
            order = sorted(set(every))
            return np.array([[order.index(value) / max(1, len(order) - 1)] for value in values])
        return np.array([[float(value == each) for each in every] for value in values])
    column = np.array(values, dtype=np.float64)[:, None]
    if kind == "normal":
        return column.clip(-LARGEST, LARGEST)
    low, high = float(domain.lower), float(domain.upper)
    if kind.startswith("log"):
        column, low, high = np.log(column), math.log(low), math.log(high)
    return (column - low) / (high - low)
