"""The search in Optuna: two processes on one journal file, the way its manual spreads a study over cores."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from benchmarks.peers import tutorial, workload

WIDTHS = [2**i for i in range(2, 9)]


def open_study(results: Path, asha: bool) -> optuna.Study:
    # Without ASHA a pruner that never prunes: Optuna's default is the median rule.
    halving = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2)
    pruner = halving if asha else optuna.pruners.NopPruner()
    storage = JournalStorage(JournalFileBackend(str(results / "journal.log")))
    return optuna.create_study(storage=storage, study_name="search", pruner=pruner, load_if_exists=True)


def train(trial: optuna.Trial, results: Path) -> float:
    setting = {
        "l1": trial.suggest_categorical("l1", WIDTHS),
        "l2": trial.suggest_categorical("l2", WIDTHS),
        "lr": trial.suggest_float("lr", 1e-4, 1e-1, log=True),
        "batch_size": trial.suggest_categorical("batch_size", [2, 4, 8, 16]),
    }
    losses = []
    for metrics, state in tutorial.train_cifar(setting):
        tutorial.save(state, results / f"trial_{trial.number}")
        losses.append(metrics["loss"])
        trial.report(losses[-1], step=state["epoch"])
        if trial.should_prune():
            raise optuna.TrialPruned
    return min(losses)


def work(results: Path) -> None:
    """Train settings of the study until none waits."""
    study = open_study(results, workload.load().asha)
    # One at a time: `n_trials` would be each process's own share, and a process that is done could not help.
    while study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
        study.optimize(lambda trial: train(trial, results), n_trials=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--join", action="store_true", help="work on a study that another process has made")
    args = parser.parse_args()
    if args.join:
        return work(args.results)

    job = workload.load()
    args.results.mkdir(parents=True, exist_ok=True)
    study = open_study(args.results, job.asha)
    for setting in job.settings:
        study.enqueue_trial(setting)
    # Programs of their own, as the manual has it: in a child that multiprocessing spawned, the data loaders
    # would spawn their processes too, each of which imports torch again.
    join = [sys.executable, "-m", "benchmarks.peers.optuna_two", "--join", "--results", str(args.results)]
    others = [subprocess.Popen(join) for _ in range(job.num_concurrent - 1)]
    work(args.results)
    if any(process.wait() for process in others):
        raise SystemExit("a worker failed")
    print(study.best_params)


if __name__ == "__main__":
    main()
