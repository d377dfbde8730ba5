"""The search in Syne Tune: its local backend, one process a trial, started and watched by a polling tuner."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.peers import workload

TRIAL_SCRIPT = Path(__file__).with_name("syne_tune_trial.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    results = parser.parse_args().results.resolve()

    # Looking for GPUs, Syne Tune leaves a file in the folder that it runs in.
    os.chdir(results)
    # Read when syne_tune is imported; without it everything goes to the home directory.
    os.environ["SYNETUNE_FOLDER"] = str(results)
    from syne_tune import StoppingCriterion, Tuner
    from syne_tune.backend import LocalBackend
    from syne_tune.config_space import choice, loguniform
    from syne_tune.optimizer.baselines import ASHA, RandomSearch

    work = workload.load()
    widths = [2**i for i in range(2, 9)]
    space = {
        "l1": choice(widths),
        "l2": choice(widths),
        "lr": loguniform(1e-4, 1e-1),
        "batch_size": choice([2, 4, 8, 16]),
    }
    scheduler = (
        ASHA(
            space,
            metric="loss",
            time_attr="epoch",
            max_t=work.max_epochs,
            grace_period=1,
            reduction_factor=2,
            points_to_evaluate=work.settings,
        )
        if work.asha
        else RandomSearch(space, metrics=["loss"], points_to_evaluate=work.settings)
    )
    Tuner(
        trial_backend=LocalBackend(entry_point=str(TRIAL_SCRIPT)),
        scheduler=scheduler,
        # The criterion means "more than".
        stop_criterion=StoppingCriterion(max_num_trials_started=len(work.settings) - 1),
        n_workers=work.num_concurrent,
        # The default, 5 s between looks at a trial, would leave a core idle after each of these short trials.
        sleep_time=0.1,
        wait_trial_completion_when_stopping=True,
        tuner_name="search",
        suffix_tuner_name=False,
    ).run()


if __name__ == "__main__":
    main()
