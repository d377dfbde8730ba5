"""The trials of `instant` under Ray Tune alone, at its fastest: actors reused, no loggers, no output."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

# Read when Ray Tune is imported.
os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"

import ray
from ray import tune

from benchmarks.peers.instant import report_only, space


class Stopwatch(tune.Callback):
    """The span that the service's journal gives too: from the first trial's start to the last one's end."""

    started = ended = 0.0

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.started = self.started or time.time()

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.ended = time.time()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--num-samples", type=int, required=True)
    parser.add_argument("--num-cpus", type=int, required=True)
    args = parser.parse_args()

    ray.init(address="local", num_cpus=args.num_cpus, include_dashboard=False, log_to_driver=False)
    stopwatch = Stopwatch()
    sizes = {"num_samples": args.num_samples, "max_concurrent_trials": args.num_cpus}
    grid = tune.Tuner(
        report_only,
        param_space=dict(space.params),
        tune_config=tune.TuneConfig(metric="loss", mode="min", reuse_actors=True, **sizes),
        run_config=tune.RunConfig(name="instant", storage_path=str(args.results), verbose=0, callbacks=[stopwatch]),
    ).fit()
    assert stopwatch.started and len(grid) == args.num_samples and not grid.errors
    (args.results / "spans.json").write_text(json.dumps({"trials_s": stopwatch.ended - stopwatch.started}))


if __name__ == "__main__":
    main()
