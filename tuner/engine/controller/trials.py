"""Ray's trials, their checkpoints and population-based training, as searcher, scheduler and replay need them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Container, Mapping
from functools import partial
from operator import attrgetter
from typing import Any

from ray.train._internal.session import _TrainingResult
from ray.tune import Checkpoint, CheckpointConfig
from ray.tune.experiment import Experiment as RayExperiment
from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import PopulationBasedTraining

from tuner.record.report_keys import IMPROVED
from tuner.spec import domains
from tuner.spec.experiment import Experiment
from tuner.spec.metrics import is_number
from tuner.spec.space import Space

READ = (TRAINING_ITERATION, "checkpoint_dir_name")  # keys of a trial's last report that are always read

OF_ALL: dict[str, Any] = {}  # empty objects that all ended trials share


class SearchTrial(Trial):
    """A trial whose retries the controller decides; Ray's own count of failures is ignored."""

    confirms = ""  # the trial whose setting it trains again (`--confirm`)
    improved = 0  # the epoch of its last report, if that has a checkpoint and improved on all others that have one

    def __hash__(self) -> int:
        """Ray takes trials from sets: by their numbers, or their addresses in memory would decide which one is next."""
        return int(self.trial_id)

    def set_retry(self, will_retry: bool) -> None:
        """Makes Ray retry the trial after the current failure, or not: -1 allows any number of failures, 0 none."""
        self.max_failures, self.run_metadata.num_failures = -1 if will_retry else 0, 1

    def tidy(self, read: Container[str]) -> None:
        """Drops what Ray keeps of reports and nobody reads, such as averages of each metric: 34 kB for 20 metrics.

        Of a trial without a worker, keeps only the `read` values of its last report. Of an ended trial, keeps only
        these, its setting, its status and its folder: 1 kB.
        """
        last = self.run_metadata.last_result
        if self.is_finished():
            manager, metadata = self.run_metadata.checkpoint_manager, type(self.run_metadata)()
            metadata.checkpoint_manager = type(manager)(manager.checkpoint_config)
            idle = OF_ALL.setdefault("state", type(self.temporary_state)())
            own: dict[str, Any] = self.__dict__
            own |= {"run_metadata": metadata, "temporary_state": idle}
            own |= {"stopping_criterion": OF_ALL.setdefault("criterion", {}), "log_to_file": (None, None)}
            self._default_result_or_future = None
        if self.status != Trial.RUNNING:
            last = {name: value for name, value in last.items() if name in read or name in READ}
        self.run_metadata.metric_analysis.clear()
        self.run_metadata.metric_n_steps.clear()
        set_last_result(self, compact(last))

    def on_checkpoint(self, checkpoint_result: _TrainingResult) -> None:
        """Registers a checkpoint, which then knows whether it is the trial's best so far, as those of a Task do."""
        metrics = checkpoint_result.metrics
        metrics.setdefault(str(IMPROVED), self.improved if metrics.get(TRAINING_ITERATION) == self.improved else 0)
        super().on_checkpoint(checkpoint_result)

    def handle_error(self, exc: Any = None) -> None:
        """Writes the error into the trial's folder; a full disk does not end the search."""
        with contextlib.suppress(OSError):
            super().handle_error(exc)


def compact(report: dict[str, Any]) -> dict[str, Any]:
    """Returns a report without the trial's setting; all reports share its texts, which saves nine of ten bytes."""
    items = [(name, value) for name, value in report.items() if name != "config"]
    return {_shared(name): _shared(value) for name, value in items}


def _shared(value: Any) -> Any:
    return sys.intern(value) if type(value) is str else value


def new_trial(
    experiment: RayExperiment,
    trial_id: str,
    config: dict[str, Any],
    keep: CheckpointConfig,
    log_files: tuple[str | None, str | None],
) -> SearchTrial:
    """Returns a pending trial; its id is also its name and the name of its folder."""
    spec = experiment.spec
    trial = SearchTrial(
        experiment.run_identifier,
        config=config,
        trial_id=trial_id,
        storage=spec.get("storage"),
        evaluated_params=config,
        placement_group_factory=spec.get("resources_per_trial"),
        checkpoint_config=keep,
        trial_name_creator=attrgetter("trial_id"),
        log_to_file=log_files,
    )
    # Without this line, Ray would give a trial another folder if two searches of a cluster start in the same second.
    trial.relative_logdir = trial.storage.trial_dir_name = trial_id
    return trial


def register_checkpoint(trial: Trial, checkpoint: Checkpoint, metrics: dict[str, Any]) -> None:
    """Registers a checkpoint with Ray as the trial's latest one; the index of the next checkpoint does not change."""
    index = trial.storage.current_checkpoint_index
    trial.on_checkpoint(_TrainingResult(checkpoint, metrics))
    count_checkpoints_from(trial, index)


def count_checkpoints_from(trial: Trial, index: int) -> None:
    """Sets the index of the trial's latest checkpoint; the next one gets the next index."""
    trial.storage.current_checkpoint_index = index


def set_last_result(trial: Trial, result: dict[str, Any]) -> None:
    """Sets a trial's last report in a replay, before Ray's controller gets the trial."""
    trial.run_metadata.last_result = result


class ReplayController:
    """Holds trials that have a status and no worker; schedulers read its `search_alg`."""

    def __init__(self, search_alg: Any) -> None:
        self.search_alg = search_alg
        self.trials: dict[str, Trial] = {}

    def get_trials(self) -> list[Trial]:
        return list(self.trials.values())

    def get_live_trials(self) -> list[Trial]:
        return [trial for trial in self.trials.values() if not trial.is_finished()]

    def _schedule_trial_save(self, trial: Trial, result: dict[str, Any]) -> Any:
        # Population-based training calls this. It copies no trial whose last compared report has no checkpoint.
        return trial.checkpoint if result.get("checkpoint_dir_name") else None

    def pause_trial(self, trial: Trial, should_checkpoint: bool = True) -> None:
        trial.set_status(Trial.PAUSED)


class Population(PopulationBasedTraining):
    """Population-based training that stays in the declared ranges, and sets a trial back to an earlier epoch only once.

    With fewer slots than trials, a poor trial may copy a checkpoint of an earlier epoch. When the trial is back at its
    own epoch, Ray compares it and sets it back again: if values tie or grow worse, no trial ever trains all its epochs.
    Here this happens at most once before the trial gets further.
    """

    def __init__(self, declared: Mapping[str, Any], **options: Any) -> None:
        # From a list, PBT takes a random or adjacent value; it might multiply a tune.choice's value by 0.8 or 1.2.
        mutations: dict[str, Any] = {
            n: domains.values_of(d) if domains.kind(d) in domains.LISTED else d for n, d in declared.items()
        }
        self._computed = {n: mutations.pop(n) for n, d in declared.items() if domains.kind(d) == "sample_from"}
        functions = {name: domain.sample for name, domain in self._computed.items()}  # replaced by `prepare`
        super().__init__(hyperparam_mutations=mutations | functions, custom_explore_fn=self._kept, **options)
        self._declared = declared
        self._set_back: dict[str, int] = {}  # trial -> the last epoch from which it was set back

    def prepare(self, config: dict[str, Any]) -> None:
        """Makes `tune.sample_from` compute from a setting. Ray multiplies its number, and takes one value of a list."""
        for name, domain in self._computed.items():
            drawn = partial(domain.sample, config)
            self._hyperparam_mutations[name] = drawn if is_number(config[name]) else [drawn()]

    def _kept(self, config: dict[str, Any]) -> dict[str, Any]:
        """Returns a changed setting whose values lie in their ranges and on their steps."""
        return config | {name: domains.within(domain, config[name]) for name, domain in self._declared.items()}

    def _exploit(self, tune_controller: Any, trial: Trial, trial_to_clone: Trial) -> None:
        epoch = self._trial_state[trial].last_train_time
        if self._trial_state[trial_to_clone].last_train_time < epoch:
            if epoch <= self._set_back.get(trial.trial_id, 0):
                return
            self._set_back[trial.trial_id] = epoch
        self.prepare(trial_to_clone.config)
        super()._exploit(tune_controller, trial, trial_to_clone)


def population_of(experiment: Experiment, space: Space) -> Population:
    """Returns Ray's scheduler for pbt, which changes the parameters that the space declares as mutable."""
    population = Population(
        space.mutations,
        perturbation_interval=experiment.perturbation_interval or experiment.grace_period,
        log_config=False,  # the journal has the changes; a replay would write them to Ray's own file again
        time_attr=TRAINING_ITERATION,
    )
    population.set_search_properties(*experiment.compared)
    return population
