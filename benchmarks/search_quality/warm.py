"""Says what --start-from and a prior save: the cost of a search with them to the regret that one without them reaches.

uv run --group benchmarks python -m benchmarks.search_quality.warm --tables FOLDER --repeats 10

The tables have the same parameters. The past is a search of 60 settings on the next table. A wrong past is
one on the same table with its order reversed. A prior is the best setting of the past, a wrong one the table's worst.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.search_quality import simulate as simulation
from benchmarks.search_quality.runs import Regret
from benchmarks.search_quality.simulate import Curves, Floats, Problem, Search, seed_of, simulate
from benchmarks.search_quality.tables import tables_of
from tuner.spec.auto import SpaceTraits, choose
from tuner.spec.domains import words
from tuner.spec.experiment import Options
from tuner.tuning.checks.known import NUM_RUN_FIRST
from tuner.tuning.searchers.named import build_searcher
from tuner.tuning.searchers.past import Past, cells_of, columns_of

WORKERS, PAST_SETTINGS, UNLIMITED = 4, 60, 100_000
NUM_BUDGETS = 361  # each is 1 % above the one before
STARTS = ("past", "wrong past", "prior", "wrong prior")
SHARES = (0.1, 0.25, 0.5, 0.75, 1)  # of the budget: where the cold search's regret is looked up
Told = list[tuple[dict[str, Any], int]]  # settings of a past search, the best first, with their epochs


def search_of(curves: Curves, seed: int, searcher: str, num_samples: int, told: Told, guess: dict[str, Any]) -> Search:
    e, _ = choose(
        Options(
            searcher=searcher,
            scheduler="bohb" if searcher == "bohb" else "auto",
            max_epochs=curves.max_epochs,
            metric="value",
            mode=curves.mode,
            seed=seed,
            num_samples=num_samples,
            prior=words(guess),
            start_from=("past",) if told else (),
        ),  # fmt: skip
        SpaceTraits(saves_checkpoints=True, searchers=("random", "forest")),
    )

    def built(experiment: Any, space: Any) -> Any:
        columns = columns_of(space)
        rows = [[*cells_of(columns, setting), epochs] for setting, epochs in told]
        source = {"first": [cells for *cells, _ in rows[:NUM_RUN_FIRST]], "told": rows}
        past = Past({"params": list(columns), "sources": [source]} if told else {}, space)
        return build_searcher(experiment, space, (), past)

    with mock.patch.object(simulation, "build_searcher", built):
        return Search(e, curves.domains())


@cache
def loaded(path: Path) -> tuple[Curves, Regret]:
    curves = Curves.load(path)
    return curves, Regret(curves)


@cache
def past_on(path: Path, seed: int) -> Told:
    """Returns the trials of a search on a table, the best first; those that diverged are last."""
    curves, _ = loaded(path)
    search, values = search_of(curves, seed, "forest", PAST_SETTINGS, [], {}), dict[int, list[float]]()
    for seen in simulate(search, Problem(curves, WORKERS, seed), float("inf")):
        values.setdefault(seen.trial, []).append(seen.value * (1 if curves.mode == "min" else -1))
    ranked = sorted(values, key=lambda trial: min(values[trial]) if np.isfinite(values[trial][-1]) else np.inf)
    return [(search._settings[trial], len(values[trial])) for trial in ranked]


def worst_of(curves: Curves) -> dict[str, Any]:
    losses = np.where(np.isfinite(curves.values), curves.values * (1 if curves.mode == "min" else -1), np.inf)
    worst = [int(losses.min(axis=1).argmax())]
    return {name: curves.column(name, worst)[0] for name in curves.space}


def regrets(paths: list[Path], searcher: str, at: Floats, job: tuple[int, int, str]) -> Floats:
    """Simulates one search; returns its regret after `at` full trainings."""
    number, repeat, start = job
    path, seed = paths[number], seed_of(paths[number].stem, WORKERS, repeat)
    curves, regret = loaded(path)
    other = past_on(paths[(number + 1) % len(paths)], seed + 1) if start in ("past", "prior") else []
    told = {"past": other, "wrong past": past_on(path, seed + 1)[::-1]}.get(start, []) if "past" in start else []
    guess = {"prior": other[0][0] if other else {}, "wrong prior": worst_of(curves)}.get(start, {})
    times = at * curves.full_training_s / WORKERS
    search = search_of(curves, seed, searcher, UNLIMITED, told, guess)
    return regret.at(times, simulate(search, Problem(curves, WORKERS, seed), float(times[-1])))


def cost(cold: Floats, warm: Floats, at: Floats, share: float) -> float:
    """Returns the budget at which `warm` reaches the regret of `cold` at a share of the last budget, over that one."""
    then = int(np.abs(at - share * at[-1]).argmin())
    reached = np.flatnonzero(warm <= cold[then])
    return float(at[reached[0]] / at[then]) if len(reached) else float("inf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tables", type=Path, nargs="+", required=True, help="tables (.npz), or folders of tables")
    parser.add_argument("--repeats", type=int, default=10, help="searches per table")
    parser.add_argument("--first-seed", type=int, default=0, help="number of the first repeat")
    parser.add_argument("--searcher", default="forest")
    parser.add_argument("--trainings", type=float, default=20, help="the budget, in full trainings")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    paths, at = list(tables_of(options.tables).values()), np.geomspace(0.5, options.trainings, NUM_BUDGETS)
    repeats = range(options.first_seed, options.first_seed + options.repeats)
    print(f"{len(paths)} tables, {options.repeats} searches of each, {options.searcher}")
    print("start        cost to the cold search's regret at " + ", ".join(f"{each:.0%}" for each in SHARES))
    with ProcessPoolExecutor(options.processes) as pool:
        each = partial(regrets, paths, options.searcher, at)
        cold = np.array(list(pool.map(each, [(n, r, "cold") for n in range(len(paths)) for r in repeats])))
        for start in STARTS:
            warm = np.array(list(pool.map(each, [(n, r, start) for n in range(len(paths)) for r in repeats])))
            costs = "  ".join(f"{cost(cold.mean(0), warm.mean(0), at, share):.2f}" for share in SHARES)
            more = (warm - cold)[:, -1]
            error = more.std() / len(more) ** 0.5
            print(f"{start:12} {costs}   regret at the end {warm[:, -1].mean():.3f}, cold {cold[:, -1].mean():.3f}")
            print(f"{'':12} difference {more.mean():+.3f}, standard error {error:.3f}", flush=True)


if __name__ == "__main__":
    main()
