"""What a search starts from: known settings that run first, and trials of past searches that a first model learns from.

`tuner.tuning.checks.known` reads both from the sources of --start-from. The first event of the journal keeps them, so
that a resume needs none of these sources.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tuner.core.rules.order import agreement
from tuner.errors import RequestError
from tuner.spec import domains
from tuner.spec.metrics import is_number
from tuner.spec.option_values import MOST_EPOCHS
from tuner.spec.space import Space
from tuner.tuning.searchers.trees import TREES, Forest, Risk, drawn, features, no_risk, normal_scores, promising

Setting = dict[str, Any]
Cells = list[Any]  # a setting as JSON: a number per parameter, of a choice the index; None where the setting has none


class Standing(NamedTuple):
    """How a trial ranks. Trials with a finite metric come first (group 0), failed and diverged ones last (group 2).

    Group 1 has the trials that lack the metric because a rule stopped them before it came, or because they still train:
    the longest first, then by what the rule compares. Optuna's TPE orders pruned trials in the same way.
    """

    group: int
    shortness: int  # minus the number of epochs in group 1, else 0
    loss: float  # what is compared, with a sign such that smaller is better; infinite in group 2

    @property
    def failed(self) -> bool:
        return self.group == 2


class Past:
    """The known settings `first`, and for each past search the trials `told`, best first: settings and their epochs.

    A setting is flattened and encoded as by `parameters.encode`. It may lack parameters, which are drawn at random.
    """

    def __init__(self, recorded: Mapping[str, Any], space: Space) -> None:
        """Reads what `tuner.tuning.checks.known` has recorded; RequestError if it does not fit the space."""
        columns = columns_of(space)
        try:
            if recorded and list(recorded["params"]) != list(columns):
                raise ValueError("it names other parameters than the space")
            sources = recorded.get("sources", ())
            self.first = [_setting(columns, cells) for source in sources for cells in source["first"]]
            told = [[(_setting(columns, cells), _epochs(num)) for *cells, num in source["told"]] for source in sources]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            what = f"the journal's record of --start-from is damaged ({error})"
            raise RequestError(f"{what}: restore the journal from a copy, or start anew with --name") from None
        self.told = [trials for trials in told if trials]


class PastModel:
    """A forest for each past search, which proposes settings until a search has results enough for its own model.

    The search's own results decide whether a forest is believed: the forest that orders a bootstrap of them best, and
    none if no forest orders them better than chance. This is the ranking loss of Feurer et al., "Practical transfer
    learning for Bayesian optimization" (2018), with one sample for each proposal. Only ranks are compared, so a past
    search may have another scale or metric.
    """

    def __init__(self, past: Past, leaves: dict[str, Any], seed: int) -> None:
        self._leaves, self._forests = leaves, []
        for number, trials in enumerate(past.told):
            settings, epochs = zip(*trials, strict=True)
            columns = dict(drawn(leaves, np.random.default_rng([seed, number, 8]), max(2, len(settings))))
            for name, values in columns.items():
                columns[name] = [flat.get(name, value) for flat, value in zip(settings, values, strict=False)]
            scores = normal_scores(len(settings))
            self._forests.append(Forest(features(leaves, columns), scores, seed % 2**31 + number, epochs))

    def __bool__(self) -> bool:
        return bool(self._forests)

    def proposed(self, stream: np.random.Generator, known: Any, values: Any, risk: Risk) -> Setting | None:
        """Returns a setting that a past search predicts to be good, or None.

        `known` has the features of the own trials, `values` their results, of which smaller ones are better, and `risk`
        says which settings fail.
        """
        if not len(values):
            return None
        sample, number = stream.integers(0, len(values), len(values)), int(stream.integers(TREES))
        predicted = [forest.tree(number).predict(known[sample]).ravel() for forest in self._forests]
        losses = [misordered(each, values[sample]) for each in predicted]
        best = int(np.argmin(losses))
        return self.drawn(stream, best, risk) if stream.random() < 1 - 2 * losses[best] else None

    def drawn(self, stream: np.random.Generator, number: int, risk: Risk | None = None) -> Setting:
        """Returns a setting that the past search with this number predicts to be good."""
        return promising(self._leaves, self._forests[number % len(self._forests)], risk or no_risk(), stream)


def misordered(predicted: npt.NDArray[np.float64], values: npt.NDArray[np.float64]) -> float:
    """Returns the share of pairs with different values that a prediction orders wrongly; a tie counts half."""
    return 1 - agreement(predicted, values) if (values > values.min()).any() else 0.5


def columns_of(space: Space) -> dict[str, Any]:
    """Returns the flattened, encoded parameters that a known setting may have: not those of `tune.sample_from`."""
    leaves = domains.leaves(space.encoded)
    return {name: domain for name, domain in leaves if domains.kind(domain) != "sample_from"}


def cells_of(columns: Mapping[str, Any], setting: Setting) -> Cells:
    """Returns a setting, flattened and encoded, as JSON; the inverse of `_setting`."""
    cells: Cells = []
    for name, domain in columns.items():
        value = setting.get(name)
        is_listed = name in setting and domains.kind(domain) in domains.LISTED
        cells.append(domains.index_of(domains.values_of(domain), value) if is_listed else value)
    return cells


def _setting(columns: Mapping[str, Any], cells: Cells) -> Setting:
    setting = {}
    for (name, domain), cell in zip(columns.items(), cells, strict=True):
        if cell is None:
            continue
        if not is_number(cell) or not math.isfinite(cell):
            raise ValueError(f"{name} is {str(cell)[:50]}, no number")
        if domains.kind(domain) not in domains.LISTED:
            setting[name] = domains.checked_value(domain, cell, name)
        elif type(cell) is int and 0 <= cell < len(values := domains.values_of(domain)):
            setting[name] = values[cell]
        else:
            raise ValueError(f"{name} has no choice {str(cell)[:50]}")
    return setting


def _epochs(number: Any) -> int:
    if type(number) is not int or not 1 <= number <= MOST_EPOCHS:
        raise ValueError(f"{str(number)[:50]} is no number of epochs")
    return number
