"""A small network on small images: one training for all sides of `benchmarks.real_search`, and the peers' searches.

The images are CIFAR-10's, averaged to 16 x 16. After every epoch, every side writes a checkpoint, and before it
a line of `reports.jsonl`: the time in unix seconds, and the validation loss.

python -m benchmarks.peers.small_images ray --results FOLDER --seconds 40 --seed 0
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from ray import tune
from torch import Tensor, nn

from benchmarks.peers import workload

REPORTS = "BENCHMARK_REPORTS"  # names the file of reports, for every process of every side
MAX_EPOCHS, NUM_CONCURRENT = 16, 2
PARAMS = {
    "channels": tune.lograndint(4, 33),
    "hidden": tune.lograndint(8, 129),
    "lr": tune.loguniform(1e-3, 1.0),
    "momentum": tune.uniform(0.0, 0.99),
    "weight_decay": tune.loguniform(1e-6, 1e-1),
    "dropout": tune.uniform(0.0, 0.6),
    "batch_size": tune.choice([16, 32, 64, 128]),
}


def images(part: str) -> tuple[Tensor, Tensor]:
    inputs, targets = workload.load_images(part)
    return F.avg_pool2d(torch.from_numpy(inputs).float().div(127.5).sub(1), 2), torch.from_numpy(targets).long()


def network(config: dict[str, Any]) -> nn.Module:
    channels, hidden = config["channels"], config["hidden"]
    first = [nn.Conv2d(3, channels, 3), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(channels, 2 * channels, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    scores = [nn.Linear(2 * channels * 4, hidden), nn.ReLU(), nn.Dropout(config["dropout"]), nn.Linear(hidden, 10)]
    return nn.Sequential(*first, *second, *scores)


def epochs(config: dict[str, Any], state: dict[str, Any] | None = None) -> Iterator[tuple[int, float, dict[str, Any]]]:
    """Yields each epoch, its validation loss, and the state to continue from after it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    (inputs, targets), (others, labels) = images("train"), images("validation")
    net = network(config)
    settings = {name: config[name] for name in ("lr", "momentum", "weight_decay")}
    optimizer = torch.optim.SGD(net.parameters(), **settings)
    if state:
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
    for epoch in range(state["epoch"] + 1 if state else 1, MAX_EPOCHS + 1):
        net.train()
        for batch in torch.randperm(len(inputs)).split(config["batch_size"]):
            optimizer.zero_grad()
            F.cross_entropy(net(inputs[batch]), targets[batch]).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            loss = float(F.cross_entropy(net(others), labels))
        with open(os.environ[REPORTS], "a") as file:
            file.write(json.dumps([time.time(), loss]) + "\n")
        kept = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
        yield epoch, loss, {"epoch": epoch, **kept}


def train(config: dict[str, Any]) -> None:
    """Trains as a function of Ray Tune; it continues from its checkpoint."""
    state, checkpoint = None, tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"))
    for _, loss, kept in epochs(config, state):
        with tempfile.TemporaryDirectory() as folder:
            torch.save(kept, Path(folder, "state.pt"))
            tune.report({"loss": loss}, checkpoint=tune.Checkpoint.from_directory(folder))


def search_with_ray(results: Path, seconds: float, seed: int) -> None:
    """Ray's ASHA with its default options and random settings."""
    import ray
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.basic_variant import BasicVariantGenerator

    ray.init(address="local", num_cpus=NUM_CONCURRENT, include_dashboard=False)
    tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space=dict(PARAMS),
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=-1,
            time_budget_s=seconds,
            scheduler=ASHAScheduler(max_t=MAX_EPOCHS),
            search_alg=BasicVariantGenerator(random_state=seed),
        ),
        run_config=tune.RunConfig(name="search", storage_path=str(results)),
    ).fit()


def search_with_optuna(results: Path, seconds: float, seed: int, join: bool = False) -> None:
    """Optuna's TPE and its pruner of successive halving with their default options, in two processes on one study."""
    import optuna

    begun = time.monotonic()
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(results / "journal.log")))
    study = optuna.create_study(
        storage=storage,
        study_name="search",
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=2 * seed + join),
        pruner=optuna.pruners.SuccessiveHalvingPruner(),
    )
    words = [sys.executable, "-m", "benchmarks.peers.small_images", "optuna", "--join", "--results", str(results)]
    words += ["--seconds", str(seconds), "--seed", str(seed)]
    other = None if join else subprocess.Popen(words)

    def objective(trial: optuna.Trial) -> float:
        config = {name: suggested(trial, name, domain) for name, domain in PARAMS.items()}
        best = float("inf")
        for epoch, loss, kept in epochs(config):
            torch.save(kept, results / f"trial_{trial.number}.pt")
            trial.report(loss, epoch)
            best = min(best, loss)
            if trial.should_prune():
                raise optuna.TrialPruned
        return best

    study.optimize(objective, timeout=seconds - (time.monotonic() - begun))
    if other and other.wait():
        raise SystemExit("the second process failed")


def suggested(trial: Any, name: str, domain: Any) -> Any:
    if hasattr(domain, "categories"):
        return trial.suggest_categorical(name, domain.categories)
    is_log = "log" in type(domain.sampler).__name__.lower()
    if isinstance(domain, tune.search.sample.Integer):
        return trial.suggest_int(name, domain.lower, domain.upper - 1, log=is_log)
    return trial.suggest_float(name, domain.lower, domain.upper, log=is_log)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=("ray", "optuna"))
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="ends the search")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--join", action="store_true", help="work on a study that another process has made")
    args = parser.parse_args()
    if args.side == "ray":
        search_with_ray(args.results, args.seconds, args.seed)
    else:
        search_with_optuna(args.results, args.seconds, args.seed, args.join)


if __name__ == "__main__":
    main()
