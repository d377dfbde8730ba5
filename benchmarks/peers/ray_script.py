"""The search as a plain Ray Tune script, what users have now."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

from benchmarks.peers import tutorial, workload


def train(config: dict[str, Any]) -> None:
    for metrics, state in tutorial.train_cifar(config["setting"]):
        with tempfile.TemporaryDirectory() as folder:
            tutorial.save(state, Path(folder))
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    args = parser.parse_args()

    work = workload.load()
    asha = ASHAScheduler(max_t=work.max_epochs, grace_period=1, reduction_factor=2) if work.asha else None
    ray.init(address="local", num_cpus=work.num_concurrent, include_dashboard=False)
    grid = tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space={"setting": tune.grid_search(work.settings)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=asha),
        run_config=tune.RunConfig(name="search", storage_path=str(args.results)),
    ).fit()
    print(grid.get_best_result(scope="all").config)


if __name__ == "__main__":
    main()
