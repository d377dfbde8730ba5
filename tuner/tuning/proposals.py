"""Turns the searcher's settings, then those to confirm, into numbered, journaled Ray trials; limits how many run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ray.tune import CheckpointConfig
from ray.tune.experiment import Experiment as RayExperiment
from ray.tune.experiment import Trial
from ray.tune.search import SearchAlgorithm

from tuner.core.events import TrialSuggested
from tuner.engine.controller.trials import SearchTrial, new_trial
from tuner.errors import RequestError
from tuner.errors.gate import fingerprint, plain
from tuner.record.journal import Journal
from tuner.record.report_keys import IMPROVED
from tuner.spec.experiment import Experiment
from tuner.training.task import trial_seed
from tuner.tuning.searchers.sampling import SeededSearcher


def keeping(num_best: int) -> CheckpointConfig:
    """Return what makes Ray keep this many of the best checkpoints of a trial and the newest one; 0 = all.

    Each checkpoint has `improved`: its epoch if its metric is the trial's best so far, else 0. So the checkpoint with
    the highest `improved` has the best metric; in a tie, the first epoch has it.
    """
    by: dict[str, Any] = {"checkpoint_score_attribute": IMPROVED, "checkpoint_score_order": "max"}
    return CheckpointConfig(num_to_keep=num_best, **by) if num_best else CheckpointConfig()


# numpy's exp and log round differently on processors with other vector instructions. There, the relative difference of
# a random value is 2e-16, and that of a value from Optuna's TPE 2e-15.
CLOSE = 1e-9  # maximum relative difference between a proposed and a recorded value that counts as rounding


class Proposals(SearchAlgorithm):
    """Gives Ray one trial for each setting of the searcher; when these have ended, the trials of `--confirm`."""

    def __init__(
        self,
        searcher: SeededSearcher,
        experiment: Experiment,
        journal: Journal,
        *,
        concurrent: Callable[[], int],  # how many trials may run at once; paused trials do not count
        num_busy: Callable[[], int],  # how many of Ray's trials are not paused
        num_promoted: Callable[[], int],  # how many promoted trials wait for a worker; they run before new trials
        keep: CheckpointConfig,
        replayed: Callable[[Proposals], list[Trial]],  # returns a resumed search's trials, from its journal
        to_repeat: Callable[[], list[str]],  # returns the trials to train again, once the searcher's trials have ended
        may_start: Callable[[bool], bool] = lambda none_left: True,  # whether a free worker gets a new setting
        is_confirming: Callable[[], bool] = lambda: False,  # whether the budget pays for no more of the search's trials
        is_over: Callable[[], bool] = lambda: False,  # whether something has ended the search
    ) -> None:
        self.searcher, self._experiment, self._journal = searcher, experiment, journal
        self._concurrent, self._num_promoted, self._may_start = concurrent, num_promoted, may_start
        self._num_busy = num_busy
        self._is_over, self._keep, self._replayed, self._to_repeat = is_over, keep, replayed, to_repeat
        self._is_confirming = is_confirming
        self._alive: dict[str, Trial] = {}
        self._settings: dict[str, dict[str, Any]] = {}  # of all trials
        self._repeats = set[str]()  # trials of `--confirm`
        self._left: list[str] | None = None if experiment.confirm else []  # to repeat; None = not chosen yet
        self._recorded: list[Trial] = []  # trials of a resumed search that Ray has not received yet

    def add_configurations(self, experiments: Any) -> None:
        """Stores Ray's experiment; if the search is resumed, replays its journal. Ray calls this once, in `fit`."""
        (self._ray_experiment,) = [experiments] if isinstance(experiments, RayExperiment) else experiments
        self._recorded = self._replayed(self)

    @property
    def total_samples(self) -> int:
        """How many trials the search will have, at most while the settings to confirm are not chosen."""
        return self.searcher.num_settings + len(self._repeats) + self._num_repeats_left

    @property
    def _num_repeats_left(self) -> int:
        if self._left is not None:
            return len(self._left)
        planned = min(self._experiment.confirm, self.searcher.num_settings) * self._experiment.confirm_seeds
        return max(0, planned - len(self._repeats))

    @property
    def num_unfinished(self) -> int:
        """Maximum number of unfinished trials: those that Ray has, new ones, and those of a resumed search."""
        recorded = sum(not trial.is_finished() for trial in self._recorded) + self._num_repeats_left
        left = self.searcher.num_settings - self.searcher.num_proposed
        return (0 if self.searcher.exhausted or self._is_confirming() else left) + recorded + len(self._alive)

    def next_trial(self) -> Trial | None:
        free = self._concurrent() - self._num_busy()
        for place, trial in enumerate(self._recorded):
            if trial.is_finished():
                return self._recorded.pop(place)
            if trial.status == Trial.PAUSED or free > 0:
                return self._live(self._recorded.pop(place))
        none_left = self._left == [] if self._is_confirming() else self.is_exhausted()
        if free <= self._num_promoted() or not self._may_start(none_left) or self._is_over():
            return None
        trial_id = f"{self.searcher.num_proposed + len(self._repeats):05d}"
        if self.is_exhausted() or self._is_confirming():
            return self._next_repeat(trial_id)
        setting = self.searcher.suggest(trial_id)
        if setting is None:
            return None
        self._journal.write(TrialSuggested(setting, trial=trial_id))
        return self._live(self._trial(trial_id, setting))

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if trial_id not in self._repeats:
            self.searcher.report(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self._alive.pop(trial_id, None)
        if trial_id not in self._repeats:
            self.searcher.complete(trial_id, result, error)

    def is_finished(self) -> bool:
        """Whether no new or paused trial will need a worker. Ray then ends its idle workers."""
        paused = any(trial.status == Trial.PAUSED for trial in self._alive.values())
        return self.is_exhausted() and (self._left == [] or self._is_over()) and not paused

    def is_exhausted(self) -> bool:
        """Whether Ray will receive no further trial of this search, new or recorded, except those of `--confirm`."""
        all_proposed = self.searcher.num_proposed >= self.searcher.num_settings or self._is_over()
        return not self._recorded and (self.searcher.exhausted or all_proposed)

    def set_finished(self) -> None:
        self.searcher.exhausted, self._left = True, []
        self._recorded.clear()

    def has_checkpoint(self, dirpath: str) -> bool:
        return False  # a resume replays the journal instead

    def save_to_dir(self, dirpath: str, **kwargs: Any) -> None:
        if not self._experiment.folder.exists():
            raise FileNotFoundError(f"{self._experiment.folder} is gone; Ray would make another folder in its place")

    def _live(self, trial: Trial) -> Trial:
        self._alive[trial.trial_id] = trial
        return trial

    def again(self, trial_id: str, recorded: dict[str, Any]) -> Trial:
        """Recreates a trial from the searcher's next setting; RequestError if this setting is not the recorded one."""
        setting = as_recorded(self.searcher.suggest(trial_id), recorded)
        if fingerprint(plain(setting)) != fingerprint(recorded):
            raise RequestError(
                f"--resume {self._experiment.name}: trial {trial_id} was {recorded}, but now seed "
                f"{self._experiment.seed} gives {setting}: the searcher has another version; install the recorded one "
                f"(`versions` in experiment.json), or start anew with --name"
            )
        return self._trial(trial_id, setting)

    def repeat(self, trial_id: str, setting: dict[str, Any], original: str) -> Trial:
        """Makes a trial of `--confirm`, which trains the setting of the trial `original` again."""
        self._repeats.add(trial_id)
        trial = self._trial(trial_id, self._settings.get(original, setting))
        trial.confirms = original
        return trial

    def _next_repeat(self, trial_id: str) -> Trial | None:
        if self._left is None:
            others = [trial for trial_id, trial in self._alive.items() if trial_id not in self._repeats]
            if any(trial.status != Trial.PAUSED or not self._is_confirming() for trial in others):
                return None  # their reports may change which settings are the best
            self._left = self._to_repeat()
        if not self._left:
            return None
        original = self._left.pop(0)
        setting, seed = self._settings[original], trial_seed(self._experiment.seed, trial_id)
        self._journal.write(TrialSuggested(setting, original, seed, trial_id))
        return self._live(self.repeat(trial_id, setting, original))

    def _trial(self, trial_id: str, setting: dict[str, Any]) -> SearchTrial:
        self._settings[trial_id] = setting
        logs: tuple[str | None, str | None] = None, None
        if not self._experiment.address:  # on a cluster, a node may lack the folder, and Ray stores the trials' logs
            # Ray would put relative paths into its temporary folder.
            folder = (self._experiment.folder / "ray" / trial_id).absolute()
            folder.mkdir(parents=True, exist_ok=True)
            if self._experiment.strategy == "ddp":  # other trials have a process of their own, whose output is kept
                logs = str(folder / "stdout"), str(folder / "stderr")
        return new_trial(self._ray_experiment, trial_id, setting, self._keep, logs)


def as_recorded(proposed: Any, recorded: Any) -> Any:
    """Returns `proposed`; floats that differ only by rounding become the recorded ones, except floats in lists."""
    if isinstance(proposed, dict) and isinstance(recorded, dict):
        return {name: as_recorded(value, recorded.get(str(name))) for name, value in proposed.items()}
    if isinstance(proposed, float) and isinstance(recorded, float) and math.isclose(proposed, recorded, rel_tol=CLOSE):
        return recorded
    return proposed
