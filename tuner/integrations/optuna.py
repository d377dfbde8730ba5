"""Runs an Optuna objective, or a whole script that creates a study, as a trial of a search.

`Space(params=..., train=with_trial(objective))` calls an objective. In a script that calls `tuner.script`, write
`from tuner.integrations import optuna` instead of `import optuna`. In a trial, `create_study` and `load_study` return a
study with only that trial; the study ends the script after the objective. Elsewhere they call Optuna's functions.
"""

from __future__ import annotations

import copyreg
import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from ray import tune
from ray.tune.result import DEFAULT_METRIC

from tuner.spec import domains, script_text
from tuner.spec.script import Ended, check_declared, running
from tuner.spec.space_objects import names_in, used

Config = dict[str, Any]


# pickle cannot copy the object `optuna.integration`; an objective that uses it is pickled with the name instead.
copyreg.pickle(type(optuna.integration), lambda module: (importlib.import_module, (module.__name__,)))


def __getattr__(name: str) -> Any:
    return getattr(optuna, name)


def with_trial(objective: Callable[[Any], Any]) -> Callable[[Config], Any]:
    """Returns a `train` function that calls `objective(trial)`; `trial.suggest_...` returns the config's values.

    As in Optuna, the number that the objective returns is the value of the trial, whatever the metric's name. If the
    objective calls `trial.report`, the scheduler compares these numbers, as the metric `prune_by` of the space, by
    default `intermediate_value`. With several metrics, the objective returns one number for each, in their order.
    """
    train: Any = functools.partial(_train, objective)
    names = {name for each in used([objective]) for name in names_in(each.__code__)}
    reports = any(name == "report" or name.endswith("PruningCallback") for name in names)
    train.prune_by = script_text.INTERMEDIATE if reports else ""
    return train  # type: ignore[no-any-return]


def _train(objective: Callable[[Any], Any], config: Config) -> Any:
    try:
        _study(config).optimize(objective)
    except Ended as ended:
        return ended.value


def create_study(**options: Any) -> Any:
    """Creates a study; in a trial, the study has only this trial, and all options but `study_name` are ignored."""
    if trial := running():
        direction = str(options.get("direction") or next(iter(options.get("directions") or ()), None) or "minimize")
        if (mode := direction.lower().rpartition(".")[2][:3]) != trial.mode and mode in ("min", "max"):
            raise ValueError(
                f"the study's direction is {direction}, but the search has mode {trial.mode}; give the same to both, "
                f"as script({{...}}, mode={mode!r})"
            )
        return _study(trial.config, options.get("study_name"))
    check_declared("optuna.create_study")
    return optuna.create_study(**options)


def load_study(**options: Any) -> Any:
    """Loads a study. In a tuner trial, creates one with only that trial."""
    return create_study(**options) if running() else optuna.load_study(**options)


def _study(config: Config, name: str | None = None) -> StudyOfTrial:
    """Returns a study in memory; its only trial gets its parameters from `config`."""
    trial = running()
    if trial:
        trial.read = True
    directions, storage = optuna.study.StudyDirection, optuna.storages.InMemoryStorage()
    direction = directions.MAXIMIZE if trial and trial.mode == "max" else directions.MINIMIZE
    study_id = storage.create_new_study([direction], name)
    study = StudyOfTrial(storage.get_study_name_from_id(study_id), storage)
    # The objective asks for a nested parameter by its own name, without the names of its parents.
    study.config = {path.rpartition("/")[2]: value for path, value in domains.leaves(config)}
    return study


class StudyOfTrial(optuna.Study):
    """The study that a script sees in a trial: it has only this trial, whose parameters the search has chosen.

    `optimize` runs the objective once. `optimize` and `tell` end the script, because the code after them needs the
    results of many trials, which only the search has. `optimize` does not call its `callbacks`.
    """

    config: Config

    def optimize(self, func: Callable[[Any], Any], *arguments: Any, **options: Any) -> NoReturn:
        trial = self.ask()
        try:
            value = trial.with_attributes(trial.left_of(func(trial)))
        except optuna.TrialPruned:
            trial.send()
            value = None
        if value is None and not trial._sent:
            raise ValueError("the objective ends without a value: it returns None, or prunes before it reports")
        raise Ended(value)

    def ask(self, fixed_distributions: Mapping[str, Any] | None = None) -> ReportingTrial:
        trial = ReportingTrial(self.config)
        trial.study = self
        for name, distribution in (fixed_distributions or {}).items():
            trial._suggest(name, distribution)
        return trial

    def tell(self, trial: Any, values: Any = None, state: Any = None, **options: Any) -> NoReturn:
        """Reports the trial's value and ends the script."""
        raise Ended(trial.with_attributes(trial.left_of(values)))

    def enqueue_trial(self, *arguments: Any, **options: Any) -> None:
        """Does nothing; to choose the parameters of the first trials, give the space `points=`."""


class ReportingTrial(optuna.trial.FixedTrial):
    """An Optuna trial with the search's parameters; it passes reported numbers to the search and ignores their steps.

    The search gets a number at `should_prune`, at the next report, or when the objective returns. A number that is
    reported last and then returned counts once. The scheduler does not prune at it unless `should_prune` has sent it.
    """

    study: StudyOfTrial
    _waiting: float | None = None
    _sent: tuple[float, ...] = ()

    @property
    def number(self) -> int:
        return int(tune.get_context().get_trial_id())

    def _suggest(self, name: str, distribution: BaseDistribution) -> Any:
        """Returns a parameter's value in the config; raises ValueError if it is missing, or not one of the choices."""
        config = self.study.config
        if name not in config:
            raise ValueError(
                f"the objective asks for {name!r}, which is not in the space's params; they have {', '.join(config)}"
            )
        if isinstance(distribution, CategoricalDistribution) and config[name] not in distribution.choices:
            raise ValueError(
                f"{name}={config[name]!r} is none of the objective's choices {distribution.choices}; give the same "
                f"ones in params"
            )
        value = super()._suggest(name, distribution)
        if trial := running():
            trial.held.setdefault("trial.params", {})[name] = value
        return value

    def report(self, value: float, step: int) -> None:
        """Sends the previously reported number, if it waits, and keeps `value` for the next `send`."""
        self.send()
        self._waiting = float(value)

    def should_prune(self) -> bool:
        """Sends the latest report; if the search's scheduler prunes the trial, the trial ends here."""
        self.send()
        return False

    def send(self) -> None:
        """Reports to the search the number that `report` has kept, if it is not sent yet."""
        if self._waiting is not None:
            self._sent, self._waiting = (*self._sent, self._waiting), None
            trial = running()
            tune.report({trial.compared if trial else DEFAULT_METRIC: self._sent[-1]})

    def with_attributes(self, value: Any) -> Any:
        """Returns the last report with the trial's constraints and its user attributes that are numbers.

        The attributes have the names of the columns in Optuna's `trials_dataframe`.
        """
        trial = running()
        numbers = {f"user_attrs_{key}": each for key, each in self.user_attrs.items() if isinstance(each, (int, float))}
        numbers |= self.constraints
        if not (trial and numbers) or value is None or isinstance(value, (tuple, list)):
            return value
        return {**numbers, **(value if isinstance(value, dict) else {trial.metric: value})}

    def left_of(self, value: Any) -> Any:
        """Returns what is still to be reported after the objective returned `value`, or None; sends an older report.

        Without a metric for the pruner, ValueError if `value` is none of the reported numbers: only one can count.
        """
        trial = running()
        if trial and trial.compared != trial.metric:
            self.send()
            if self._sent or isinstance(value, (dict, tuple, list)) or value is None:
                return value
            return {trial.metric: value, trial.compared: value}
        if self._waiting is not None and (value is None or value == self._waiting):
            return self._waiting
        self.send()
        if value is not None and self._sent and value not in self._sent:
            raise ValueError(
                f"the objective returns {value}, which it has not reported: it reports another metric than it returns; "
                f"give that one a name in the space, as prune_by={script_text.INTERMEDIATE!r}"
            )
        return None if value in self._sent else value
