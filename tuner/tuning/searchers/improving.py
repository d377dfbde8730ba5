"""Proposes settings for several metrics, or for constraints: those that are expected to improve most on what is known.

Each metric has a `Surrogate`. A proposal draws random weights of the metrics and takes the setting with the largest
expected improvement of the augmented Chebyshev norm over the best trial by these weights, as in ParEGO (Knowles,
"ParEGO: a hybrid algorithm with on-line landscape approximation", 2006), times the probability that it keeps the
constraints (Gardner et al., "Bayesian optimization with inequality constraints", 2014).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr  # the distribution function of the normal distribution

from tuner.core.rules.order import best_first
from tuner.spec.constraints import Point
from tuner.tuning.searchers.trees import (
    LARGEST,
    MAY_FAIL,
    NUM_CANDIDATES,
    TREES,
    Forest,
    Matrix,
    Risk,
    drawn,
    features,
    row_of,
)

Floats = npt.NDArray[np.float64]
AUGMENTED = 0.05  # share of the sum in the augmented Chebyshev norm, as in ParEGO
SPREAD = 0.2  # scales a metric's draws around their mean; with 1, half of the trials went where nothing was known
NEAR, PARENTS, CHANGED = 0.5, 8, 0.3  # share of candidates near the best trials, their number, share of changed values
SCALED, MOST = 0.75, 2.0  # the quantile of the trials that counts as 1, and the most that a worse trial counts as
RIDGES = (0.01, 0.1, 1.0, 10.0)  # among which the error on left-out trials chooses the polynomial's penalty
MOST_PRODUCTS = 12  # with more features, the polynomial has their squares, but no products of two


class Surrogate:
    """Predicts a value of settings: a polynomial of second degree, and a forest for what it leaves unexplained.

    The polynomial learns smooth trends, such as that of time over size, from few trials; the forest learns the rest.
    Sample k of a prediction is a draw of the polynomial's coefficients from their posterior, plus tree k. The draws
    differ from the posterior's mean by `spread` times as much.
    """

    def __init__(
        self, known: Matrix, values: Floats, weights: Sequence[int], stream: np.random.Generator, spread: float
    ) -> None:
        root = np.sqrt(np.array(weights) / np.mean(weights))[:, None]
        self._centre = float(np.average(values, weights=weights))
        basis = _basis(known) * root
        targets = (values - self._centre) * root[:, 0]
        squares, fits = basis.T @ basis, []
        for ridge in RIDGES:
            # A Cholesky factor is unique. Eigenvectors are not, so another processor would draw other settings.
            factor = np.linalg.cholesky(squares + ridge * np.eye(len(squares)))
            inverse = np.linalg.inv(factor)
            coefficients = inverse.T @ (inverse @ (basis.T @ targets))
            leverage = ((basis @ inverse.T) ** 2).sum(axis=1)
            left_out = (targets - basis @ coefficients) / np.maximum(1 - leverage, 1e-3)
            fits.append((float((left_out**2).mean()), inverse, coefficients))
        error, inverse, coefficients = min(fits, key=lambda fit: fit[0])
        noise = stream.standard_normal((TREES, len(squares))) @ inverse
        self._drawn = coefficients + spread * math.sqrt(error) * noise
        rest = (values - self._centre - _basis(known) @ coefficients).round(6)  # else rounding would decide on splits
        self._forest = Forest(known, list(rest), int(stream.integers(2**31)), weights)

    def samples(self, at: Matrix) -> Floats:
        """Returns TREES predictions of each setting, of shape (TREES, settings)."""
        rest = np.stack([self._forest.tree(number).predict(at).ravel() for number in range(TREES)])
        found: Floats = self._centre + self._drawn @ _basis(at).T + rest
        return found


def _basis(at: Matrix) -> Floats:
    x = np.clip(at.astype(np.float64), -3, 3) - 0.5
    first, second = np.triu_indices(x.shape[1]) if x.shape[1] <= MOST_PRODUCTS else [np.arange(x.shape[1])] * 2
    return np.concatenate([np.ones((len(x), 1)), x, x[:, first] * x[:, second]], axis=1)


class Improving:
    """Surrogates of all metrics and constraints, which learn from the trials that are known when it is made."""

    def __init__(
        self, known: Matrix, losses: Floats, excesses: Floats, weights: Sequence[int], stream: np.random.Generator
    ) -> None:
        """`losses` has shape (trials, metrics), and `excesses` (trials, constraints), in which NaN is unknown."""
        self._losses = scaled(losses)
        self._metrics = [Surrogate(known, column, weights, stream, SPREAD) for column in self._losses.T]
        self._limits = []
        for column in excesses.T:
            told = ~np.isnan(column)
            if told.any():
                part = column[told].clip(-LARGEST, LARGEST)
                bent, once = part / (1 + np.abs(part)), [1] * len(part)
                self._limits.append(Surrogate(known[told], bent, once, stream, 1.0))
        self._keeps = np.maximum(excesses, 0).sum(axis=1) <= 0  # NaN, which is unknown, is not
        rows = zip(self._keeps, self._losses, strict=True)
        self.order = best_first([Point(0.0 if keeps else 1.0, tuple(row)) for keeps, row in rows])

    def proposed(
        self,
        leaves: dict[str, Any],
        parents: Sequence[dict[str, Any]],
        tried: set[bytes],
        risk: Risk,
        stream: np.random.Generator,
    ) -> dict[str, Any]:
        """Returns the best of 500 settings, of which half are random and half near the `parents`; none in `tried`.

        To fail counts as one more broken constraint.
        """
        columns = _with_near(dict(drawn(leaves, stream, NUM_CANDIDATES)), parents, stream)
        at = features(leaves, columns)
        keeps = 1 - risk.at(at)
        for limit in self._limits:
            keeps *= (limit.samples(at) <= 0).mean(axis=0)
        merit = np.where(keeps >= 1 - MAY_FAIL, 1 + self._improvement(at, stream) * keeps, keeps)
        merit[[row.tobytes() in tried for row in at]] = -1
        return row_of(leaves, columns, int(merit.argmax()))

    def _improvement(self, at: Matrix, stream: np.random.Generator) -> Floats:
        """Returns the expected improvement of settings by random weights, as a share of the largest."""
        weights = stream.dirichlet(np.ones(len(self._metrics)))
        norms = _norms(np.stack([metric.samples(at) for metric in self._metrics], axis=2), weights)
        known = self._losses[self._keeps] if self._keeps.any() else self._losses
        mean, spread = norms.mean(axis=0), norms.std(axis=0) + 1e-9
        z = (_norms(known, weights).min() - mean) / spread
        merit: Floats = spread * (z * ndtr(z) + np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi))
        return merit / max(float(merit.max()), 1e-300)


def _with_near(
    columns: dict[str, Any], parents: Sequence[dict[str, Any]], stream: np.random.Generator
) -> dict[str, Any]:
    """Replaces a share of random settings by ones that differ from a good trial in some parameters."""
    number = int(NEAR * NUM_CANDIDATES)
    of, new = stream.integers(len(parents), size=number), {}
    for name, values in columns.items():
        changes = stream.random(number) < CHANGED
        each = zip(values, changes, of, strict=False)
        near = [value if change else parents[parent].get(name, value) for value, change, parent in each]
        new[name] = [*near, *values[number:]]
    return new


def scaled(losses: Floats) -> Floats:
    """Returns losses from 0, the best trial, to 1, the trial at the quantile SCALED, and to MOST for all worse ones."""
    told = losses.clip(-LARGEST, LARGEST)
    low, high = told.min(axis=0), np.quantile(told, SCALED, axis=0)
    found: Floats = np.minimum((told - low) / np.where(high > low, high - low, 1.0), MOST)
    return found


def _norms(losses: Floats, weights: Floats) -> Floats:
    weighted = losses * weights
    norms: Floats = weighted.max(axis=-1) + AUGMENTED * weighted.sum(axis=-1)
    return norms
