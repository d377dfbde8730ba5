"""From a ddp trial's start to its first step, with cold and with warm workers, beside a TorchTrainer inside a trial.

    python -m benchmarks.ddp_start [--repeats 3] [--sides tuner torchtrainer]

Both sides run the same two trials one after another, in a Ray that is up and whose idle workers have imported torch, as
a search's have: two workers of one CPU each, a linear model, gloo. The first trial is cold; the second finds what its
side keeps. Seconds are from the moment the trial's function is called to the first training step in rank 0, both told
by the machine's clock. TorchTrainer needs a CPU more than there are, so Ray is told of one more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import measure

WORKERS = 2
SIDES = ("tuner", "torchtrainer")


def first_step(folder: str) -> None:
    """Notes the time of the first step of a trial, once."""
    path = Path(folder) / "step"
    if not path.exists():
        path.write_text(repr(time.time()))


def tuner_trials(folder: str) -> Any:
    """What `tuner.trial.train_in_workers` does, noting when it is called and when its first batch is trained."""
    import ray
    import torch
    from ray import tune

    from tuner.engine.workers import keep, workers_for
    from tuner.space import Task
    from tuner.training.data import Arrays, Splits
    from tuner.training.group import Setting

    def noted(outputs: Any, targets: Any) -> Any:
        if outputs.requires_grad and torch.distributed.get_rank() == 0:
            first_step(str(Path(folder) / (Path(folder) / "now").read_text()))
        return torch.nn.functional.cross_entropy(outputs, targets)

    rng = np.random.default_rng(0)
    data = Arrays(rng.normal(size=(64, 8)).astype(np.float32), rng.integers(0, 2, 64))
    task = Task(
        data=lambda data_dir: Splits(data, data),
        model=lambda config: torch.nn.Linear(8, 2),
        optimizer=lambda parameters, config: torch.optim.SGD(parameters, lr=0.1),
        loss=noted,
    )
    shared = (ray.put((task, Splits(data, data))),)

    def run(config: dict[str, Any]) -> None:
        begun(folder, config["x"])
        group = workers_for(shared[0], WORKERS, 1.0, 0.0)
        group.begin(Setting({}, seed=0, max_epochs=1))
        tune.report(group.run_epoch())
        keep(group)

    return tune.with_resources(run, tune.PlacementGroupFactory([{}, *[{"CPU": 1}] * WORKERS]))


def torchtrainer_trials(folder: str) -> Any:
    """Ray's own way: a TorchTrainer in a trial's function."""
    from ray import tune

    def loop(config: dict[str, Any]) -> None:
        import ray.train
        import torch
        from ray.train.torch import prepare_model

        model = prepare_model(torch.nn.Linear(8, 2))
        torch.nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.zeros(16, dtype=torch.int64)).backward()
        if ray.train.get_context().get_world_rank() == 0:
            first_step(str(Path(folder) / config["x"]))
        ray.train.report({"loss": 1.0})

    def run(config: dict[str, Any]) -> None:
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        begun(folder, config["x"])
        storage = RunConfig(storage_path=str(Path(folder) / "train"), name=config["x"])
        trainer = TorchTrainer(
            loop, train_loop_config=config, scaling_config=ScalingConfig(num_workers=WORKERS), run_config=storage
        )
        trainer.fit()
        tune.report({"loss": 1.0})

    return tune.with_resources(run, {"cpu": 0.5})


def begun(folder: str, name: str) -> None:
    """Notes that a trial's function was called."""
    place = Path(folder) / name
    place.mkdir()
    (Path(folder) / "now").write_text(name)
    (place / "start").write_text(repr(time.time()))


def one_side(side: str, folder: str) -> None:
    """Two trials, one after another, in a process of their own; writes seconds.json."""
    import ray
    from ray import tune

    import tuner.driver  # noqa: F401  (first: it sets what ray reads)

    preloaded = {"preload_python_modules": ["ray.tune", "torch", "torch._dynamo"]}
    ray.init("local", num_cpus=WORKERS + 1, include_dashboard=False, log_to_driver=False, _system_config=preloaded)
    time.sleep(10)  # the idle workers' imports
    trainable = tuner_trials(folder) if side == "tuner" else torchtrainer_trials(folder)
    tune.Tuner(
        trainable,
        param_space={"x": tune.grid_search(["cold", "warm"])},
        tune_config=tune.TuneConfig(max_concurrent_trials=1, reuse_actors=True),
        run_config=tune.RunConfig(storage_path=str(Path(folder) / "tune"), verbose=0),
    ).fit()
    ray.shutdown()
    places = {name: Path(folder) / name for name in ("cold", "warm")}
    seconds = {n: float((p / "step").read_text()) - float((p / "start").read_text()) for n, p in places.items()}
    (Path(folder) / "seconds.json").write_text(json.dumps(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one_side(*options.one)
        return
    found: dict[str, list[dict[str, float]]] = {side: [] for side in options.sides}
    with tempfile.TemporaryDirectory() as place:
        for repeat in range(options.repeats):
            for side, seconds in found.items():
                folder = Path(place) / f"{side}-{repeat}"
                folder.mkdir()
                measure.run(["-m", "benchmarks.ddp_start", "--one", side, str(folder)], folder / "log", {})
                seconds.append(json.loads((folder / "seconds.json").read_text()))
    rows = []
    for side, runs in found.items():
        cold, warm = ([run[name] for run in runs] for name in ("cold", "warm"))
        rows.append([side, *(f"{statistics.median(v):.2f} ({min(v):.2f}-{max(v):.2f})" for v in (cold, warm))])
    print(f"seconds from a trial's start to its first step, {WORKERS} workers, median of {options.repeats} (range):\n")
    measure.show(["side", "cold", "warm"], rows)


if __name__ == "__main__":
    sys.exit(main())
