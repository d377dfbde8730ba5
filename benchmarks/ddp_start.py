"""From a ddp trial's start to its first step, with cold and with warm workers, beside a TorchTrainer inside a trial.

Both sides run two trials one after another: two workers of one CPU each, a linear model, gloo. The first trial is cold;
the second finds what its side keeps. Seconds are from the start of the trial to the first forward pass in rank 0, both
told by the machine's clock: on this side from a whole search, by its journal; on the other from the call of the trial's
function, in a Ray that is up and whose idle workers have imported torch. TorchTrainer needs a CPU more than there are,
so Ray is told of one more.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.peers import measure
from tuner.core.events import TrialStarted
from tuner.record.reading import read

WORKERS = 2
TRIALS = ("cold", "warm")


def tuner_seconds(folder: Path) -> dict[str, float]:
    """A search as a user starts it. Its journal says when trials started, `peers/first_step.py` when they trained."""
    words = ["--space", "benchmarks/peers/first_step.py", "--results", folder, "--name", "search"]
    words += ["--strategy", "ddp", "--workers-per-trial", WORKERS, "--cpus-per-trial", WORKERS, "--searcher", "grid"]
    words += ["--max-concurrent-trials", "1", "--wandb", "disabled"]
    command = [*measure.README_PYTHON, "-m", "tuner.run", *map(str, words)]
    measure.run(command, folder / "log", {"FIRST_STEPS": str(folder)})
    started = [event for event in read(folder / "search" / "journal.jsonl") if isinstance(event, TrialStarted)]
    return {name: float((folder / name).read_text()) - at for at, name in ((e.time, e.config["x"]) for e in started)}


def torchtrainer_seconds(folder: Path) -> dict[str, float]:
    """Ray's own way, in a process of its own."""
    measure.run([*measure.PYTHON, "-m", "benchmarks.ddp_start", "--torchtrainer", folder], folder / "log")
    return {name: float((folder / name).read_text()) - float((folder / f"{name}.start").read_text()) for name in TRIALS}


def torchtrainer_trials(folder: Path) -> None:
    """Two trials, each of which runs a TorchTrainer and notes when it is called and when its first step is."""
    import ray
    from ray import tune

    def loop(config: dict[str, Any]) -> None:
        import ray.train
        import torch
        from ray.train.torch import prepare_model

        model = prepare_model(torch.nn.Linear(8, 2))
        if ray.train.get_context().get_world_rank() == 0:
            (folder / config["x"]).write_text(repr(time.time()))
        torch.nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.zeros(16, dtype=torch.int64)).backward()
        ray.train.report({"loss": 1.0})

    def run(config: dict[str, Any]) -> None:
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        (folder / f"{config['x']}.start").write_text(repr(time.time()))
        storage = RunConfig(storage_path=str(folder / "train"), name=config["x"])
        scaling = ScalingConfig(num_workers=WORKERS)
        TorchTrainer(loop, train_loop_config=config, scaling_config=scaling, run_config=storage).fit()
        tune.report({"loss": 1.0})

    preloaded = {"preload_python_modules": ["ray.tune", "torch", "torch._dynamo"]}
    ray.init("local", num_cpus=WORKERS + 1, include_dashboard=False, log_to_driver=False, _system_config=preloaded)
    time.sleep(10)  # the idle workers' imports
    tune.Tuner(
        tune.with_resources(run, {"cpu": 0.5}),
        param_space={"x": tune.grid_search(list(TRIALS))},
        tune_config=tune.TuneConfig(max_concurrent_trials=1, reuse_actors=True),
        run_config=tune.RunConfig(storage_path=str(folder / "tune"), verbose=0),
    ).fit()
    ray.shutdown()


SIDES = {"tuner": tuner_seconds, "TorchTrainer inside a trial": torchtrainer_seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--torchtrainer", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torchtrainer:
        torchtrainer_trials(options.torchtrainer)
        return

    def measured(side: str, name: str) -> dict[str, float]:
        folder = Path(place) / name.replace(" ", "-")
        folder.mkdir()
        return SIDES[side](folder)

    with tempfile.TemporaryDirectory() as place:
        turns = measure.in_turn(list(SIDES), options.repeats, measured)
    print(f"seconds from a trial's start to its first step, {WORKERS} workers:\n")
    rows = [[side, *(measure.spread([run[name] for run in runs]) for name in TRIALS)] for side, runs in turns.items()]
    measure.show(["side", *TRIALS], rows)


if __name__ == "__main__":
    main()
