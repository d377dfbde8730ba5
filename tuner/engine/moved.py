"""Turns the `tune.Tuner` of a script that was written for Ray Tune into a Space and the options of its search."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from ray import tune
from ray.train.constants import DEFAULT_STORAGE_PATH
from ray.tune.search.sample import Domain

from tuner.errors import RequestError
from tuner.record.report_keys import EPOCH, RAY_KEYS
from tuner.spec.domains import is_constant, is_grid
from tuner.spec.methods import SCHEDULERS, SEARCHERS, MethodRow
from tuner.spec.script_text import MOST_REPORTS
from tuner.spec.space import Space

IN_RAY = {"max_epochs": "max_t", "mutable": "hyperparam_mutations"}  # option -> Ray's argument, if its name is another
READ: dict[str, Callable[[Any], Any]] = {  # option -> its value in one of Ray's schedulers
    "max_epochs": lambda ray: getattr(ray, "_max_t", None) or ray._max_t_attr,
    "grace_period": lambda ray: max(1, int(getattr(ray, "_grace_period", None) or ray._brackets[0]._rungs[-1][0])),
    "reduction_factor": lambda ray: getattr(ray, "_reduction_factor", None) or ray._eta,
    "perturbation_interval": lambda ray: int(ray._perturbation_interval),
    "mutable": lambda ray: {name: _domain(value) for name, value in ray._hyperparam_mutations.items()},
}
GENERATED = re.compile(r"_\d{4}(-\d\d){2}_\d\d(-\d\d){2}$")  # the end of the name that Ray gives to a run without one
MAX_FAILURES = 1_000_000  # for Ray's -1, which has no limit
BEST = 'the best report of a trial counts, as in get_best_result(scope="all"); Ray\'s default compares the last reports'


class TunerRequest(NamedTuple):
    """What a `tune.Tuner` declares: the space, options by name, and notes for the user."""

    space: Space
    options: dict[str, Any]
    notes: tuple[str, ...]


def read_tuner(ray_tuner: tune.Tuner, options: Mapping[str, Any]) -> TunerRequest:
    """Reads a Tuner that has not run; raises no error for a part that the caller's `options` replace.

    Raises:
        RequestError: no metric; no parameters; only a stopper or Ray's time limits reports; tuner lacks the searcher or
            scheduler; Ray has run a part of the Tuner's trials.
        ValueError: the Space refuses what the Tuner declares.
    """
    parts = ray_tuner._local_tuner
    config, run = parts._tune_config, parts._run_config
    if parts._is_restored:
        raise RequestError("Ray has run a part of its trials: Tuner.restore(...).fit() continues them")
    searcher, limit = config.search_alg, getattr(config.search_alg, "max_concurrent", 0)
    if type(searcher).__name__ == "ConcurrencyLimiter":
        searcher = searcher.searcher
    metric, mode = (_goal(name, config, searcher) or options.get(name) for name in ("metric", "mode"))
    if not metric:
        raise RequestError('the Tuner names no metric: give one, as search(tuner, metric="loss", mode="min")')
    if not parts.param_space:
        raise RequestError(
            "the Tuner has no param_space: write there what its search_alg searches, with tune.uniform and the like"
        )
    own = _scheduling(config.scheduler)
    stop, stopper = run.stop or {}, ""
    if not isinstance(stop, Mapping):
        stop, stopper = {}, getattr(stop, "__name__", type(stop).__name__)
    stop = {name: value for name, value in stop.items() if name != "done"}  # a class's `done` ends a trial anyway
    if "stop" not in options and (of_ray := RAY_KEYS.intersection(stop) - {EPOCH}):
        raise RequestError(
            f"the Tuner ends trials by {min(of_ray)}, which Ray measures: limit the reports, as "
            f'search(tuner, max_epochs=100), or the time of the whole search, as time_budget="30m"'
        )
    notes = [BEST, *([f"stop={stopper} is not used"] if stopper else []), *_unused(config, run, metric, searcher)]
    if mode == "min" and metric in stop:
        notes += [f"stop={{{metric!r}: {stop[metric]:g}}} ends a trial at or below this; Ray would at or above it"]
    epochs = [number for number in (stop.pop(EPOCH, None), own.pop("max_epochs", None)) if number]
    if not epochs and "max_epochs" not in options:
        if stopper:
            raise RequestError(
                f"the Tuner ends trials by stop={stopper}, which tuner cannot use: limit the reports per trial, "
                f"as search(tuner, max_epochs=100)"
            )
        notes += [f"nothing limits the reports of a trial; it ends after {MOST_REPORTS}: max_epochs= is another number"]
    points = getattr(searcher, "_points_to_evaluate", None)
    space = Space(
        params=_declared(parts.param_space),
        train=_passing(parts.trainable, parts.param_space),
        metric=metric,
        mode=mode or "min",
        num_samples=max(1, config.num_samples),
        max_epochs=int(min(epochs, default=MOST_REPORTS)),
        points=points if isinstance(points, list) else (),
        stop=stop,
        callbacks=run.callbacks or (),
        **{name: own.pop(name) for name in ("grace_period", "reduction_factor", "mutable") if name in own},
    )
    own |= _resources(parts.trainable, parts.param_space)
    own["searcher"] = _counterpart(searcher, SEARCHERS, "searcher", options)
    own["scheduler"] = _counterpart(config.scheduler, SCHEDULERS, "scheduler", options)
    if run.storage_path != DEFAULT_STORAGE_PATH:
        own["results"] = run.storage_path
    if most := run.failure_config.max_failures:
        own["max_failures"] = most if most > 0 else MAX_FAILURES
    if run.checkpoint_config.num_to_keep == 1 and "pbt" not in (own["scheduler"], options.get("scheduler")):
        own["keep_checkpoints"] = 1
    own["num_samples"] = max(0, config.num_samples)  # Ray's -1 is without a limit: a budget ends such a search
    own["max_concurrent_trials"] = config.max_concurrent_trials or limit or 0
    if budget := config.time_budget_s:
        own["time_budget"] = f"{budget.total_seconds() if isinstance(budget, timedelta) else budget:g}s"
    return TunerRequest(space, own, tuple(notes))


def _goal(name: str, config: tune.TuneConfig, searcher: Any) -> Any:
    """Returns the metric or the mode, which may be an argument of the TuneConfig, the scheduler or the searcher."""
    parts = config.scheduler, searcher
    return getattr(config, name) or next(filter(None, (getattr(part, f"_{name}", None) for part in parts)), None)


def _unused(config: tune.TuneConfig, run: tune.RunConfig, metric: str, searcher: Any) -> Iterator[str]:
    """Yields notes on arguments that the search ignores, or uses in another way than Ray."""
    kept, scheduler, counts = run.checkpoint_config, config.scheduler, _counts_reports(config.scheduler)
    kind = _named(scheduler, SCHEDULERS)
    used = " ".join(IN_RAY.get(each, each) for each in _uses(scheduler)) if counts else "hyperparam_mutations"
    by_metric = " checkpoint_score_attribute checkpoint_score_order" * (kept.checkpoint_score_attribute == metric)
    named = " name" * bool(GENERATED.search(run.name or ""))
    parts = (
        (config, "metric mode search_alg scheduler num_samples max_concurrent_trials time_budget_s reuse_actors"),
        (run, f"storage_path failure_config checkpoint_config sync_config stop callbacks{named}"),
        (run.sync_config, ""),
        (run.failure_config, "max_failures"),
        (kept, f"num_to_keep{by_metric}" if kept.num_to_keep == 1 and kind != "pbt" else by_metric),  # else all stay
        (scheduler, f"metric mode {used}"),
    )
    changed = [(type(part).__name__, ", ".join(_changed(part, used.split()))) for part, used in parts]
    if unused := "; ".join(f"{kind} {names}" for kind, names in changed if names):
        yield f"not used: {unused}"
    if not counts:
        yield f"{type(scheduler).__name__} counts {scheduler._time_attr}; here its counterpart counts reports"
    if searcher is not None:
        yield f"of {type(searcher).__name__} only the kind, points_to_evaluate and max_concurrent are used"
    if run.failure_config.max_failures:
        yield "max_failures: a trial is retried after the loss of its process, but not after an error of its function"


def _changed(part: Any, used: Sequence[str]) -> list[str]:
    """Returns the arguments of an object that are not their defaults, without the `used` ones."""
    names = []
    for name, parameter in inspect.signature(type(part)).parameters.items() if part is not None else ():
        value = getattr(part, f"_{name}", getattr(part, name, parameter.default))
        value = len(value) if name == "brackets" else value
        if name not in used and name != "time_attr" and value != parameter.default:
            names.append(name)
    return names


def _counts_reports(scheduler: Any) -> bool:
    return getattr(scheduler, "_time_attr", EPOCH) == EPOCH  # else it counts, for example, seconds


def _named(part: Any, rows: Mapping[str, MethodRow]) -> str:
    """Returns the name of the counterpart of Ray's searcher or scheduler; empty if it has none."""
    return next((name for name, row in rows.items() if type(part).__name__ in row.in_ray), "")


def _counterpart(given: Any, rows: Mapping[str, MethodRow], option: str, options: Mapping[str, Any]) -> str:
    name, names = _named(given, rows), list(rows)
    if not name and option not in options:
        raise RequestError(
            f"tuner has no {option} {type(given).__name__}: give another, as search(tuner, {option}={names[0]!r}); "
            f"it has {', '.join(names)}"
        )
    return name


def _uses(scheduler: Any) -> tuple[str, ...]:
    return SCHEDULERS[name].uses if (name := _named(scheduler, SCHEDULERS)) else ()


def _scheduling(scheduler: Any) -> dict[str, Any]:
    """Returns a known scheduler's arguments as fields of a Space or options; if it counts no epochs, only mutations."""
    counted = _counts_reports(scheduler)
    return {name: READ[name](scheduler) for name in _uses(scheduler) if counted or name == "mutable"}


def _domain(mutation: Any) -> Any:
    """Returns the domain of a parameter that PBT changes; Ray also accepts a list or a function as a domain."""
    if isinstance(mutation, (list, tuple)):
        return tune.choice(list(mutation))
    return mutation if isinstance(mutation, Domain) else tune.sample_from(lambda spec: mutation())


def _resources(trainable: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the CPUs and GPUs that the trainable requests, by `tune.with_resources` or in its class."""
    of_class = getattr(trainable, "default_resource_request", None)
    asked = of_class(dict(config)) if of_class else getattr(trainable, "_resources", None)
    if not isinstance(asked, tune.PlacementGroupFactory):
        return {}
    total = asked.required_resources
    return {"gpus_per_trial": total.get("GPU", 0)} | ({"cpus_per_trial": total["CPU"]} if total.get("CPU") else {})


def _declared(params: Any) -> Any:
    """Returns what a Space can hold of a param_space: a list with domains as a dictionary with the keys "0", "1", ...

    Leaves out other lists and objects: `_passing` adds them to each config.
    """
    if is_constant(params) or isinstance(params, Domain) or is_grid(params):
        return params
    inside = params.items() if isinstance(params, Mapping) else enumerate(params) if _has_domain(params) else ()
    declared = {name if isinstance(params, Mapping) else str(name): _declared(value) for name, value in inside}
    return {name: value for name, value in declared.items() if value != {}}


def _has_domain(value: Any) -> bool:
    if isinstance(value, Domain) or is_grid(value):
        return True
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return any(map(_has_domain, inside))


def _passing(trainable: Any, params: Mapping[str, Any]) -> Any:
    """Returns a trainable that runs the given one with each config in the form of `params`, and with all its values."""
    if _declared(params) == dict(params):
        return trainable
    if not inspect.isclass(trainable):
        return lambda config: trainable(_in_form(params, config))

    class Passing(trainable):
        def __init__(self, config: dict[str, Any], **others: Any) -> None:
            super().__init__(_in_form(params, config), **others)

    return Passing


def _in_form(params: Any, config: Any) -> Any:
    """Returns a config with lists and tuples where `params` has them, and copies of the values that it lacks."""
    if isinstance(params, Mapping) and not is_grid(params):
        whole = {
            name: _in_form(value, config[name]) if name in config else own(value) for name, value in params.items()
        }
        return {**config, **whole}
    if isinstance(params, (list, tuple)) and _has_domain(params):
        named = ((str(place), value) for place, value in enumerate(params))
        whole_list = [_in_form(value, config[place]) if place in config else own(value) for place, value in named]
        return tuple(whole_list) if isinstance(params, tuple) else whole_list
    return config


def own(value: Any) -> Any:
    """Returns a copy of a value, which a trial may change; the value itself if it cannot be copied."""
    try:
        return copy.deepcopy(value)
    except Exception:  # a lock, or an object's own __deepcopy__
        return value
