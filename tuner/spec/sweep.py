"""Makes a space of a W&B sweep: of the file `sweep.yaml`, or of the dictionary that a script gives to `wandb.sweep`."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tuner.errors import nearest
from tuner.spec import domains
from tuner.spec.command import Command
from tuner.spec.metrics import is_number
from tuner.spec.option_values import MOST_SAMPLES
from tuner.spec.script_text import MOST_REPORTS
from tuner.spec.space import Space

SUFFIXES = (".yaml", ".yml")
MAX_FILE_BYTES, MAX_DECLARED = 1 << 20, 100_000  # of a file, and of what it declares once its aliases are followed
COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")  # W&B's default
MACRO, VARIABLE = re.compile(r"\$\{(\w+)\}"), re.compile(r"\$\{envvar:([A-Z0-9_]*)\}")
SEARCHERS = {"grid": "grid", "random": "random", "bayes": "forest"}  # `method` -> searcher
MODES = {"minimize": "min", "maximize": "max"}
# What is read, and what is left out with a note.
KEYS = "program", "command", "method", "metric", "parameters", "early_terminate", "run_cap"
UNUSED = "name", "description", "project", "entity", "kind", "apiVersion", "controller"
METRIC_KEYS, UNUSED_OF_METRIC = ("name", "goal"), ("target", "impute", "impute_while_running")
OF_VALUES = "log_uniform_values", "q_log_uniform_values", "inv_log_uniform_values"
RANGES = "int_uniform", "uniform", "q_uniform", "log_uniform", "q_log_uniform", "inv_log_uniform", *OF_VALUES
NO_DOMAIN = "log_normal", "q_log_normal", "beta", "q_beta"  # distributions that Ray Tune lacks


@dataclass(frozen=True)
class SweepCommand(Command):
    """Runs a sweep's command for each trial, with W&B's macros filled in; no parameter is added."""

    def filled(self, config: Mapping[str, Any], own: Mapping[str, Any] = MappingProxyType({})) -> list[str]:
        """Return the words of a trial as W&B's agent writes them; `${envvar:...}` only in a trial: a plan is shown."""
        words, forms = list[str](), forms_of(config, own.get("config", "${args_json_file}"))
        for word in self.words:
            words += forms[match[1]] if (match := MACRO.fullmatch(word)) else [word]
        if "config" not in own:  # the plan, which is printed
            return words
        return [VARIABLE.sub(lambda match: os.environ.get(match[1], match[1]), word) for word in words]

    def uses(self, name: str) -> bool:
        return False


def forms_of(config: Mapping[str, Any], file: str = "") -> dict[str, list[str]]:
    """Return macro -> its words; `file` is the path of a JSON file with the parameters."""
    flags = [f"{name}={value}" for name, value in config.items()]
    given = [(name, "" if value is True else f"={value}") for name, value in config.items() if value is not False]
    return {
        "args": [f"--{flag}" for flag in flags],
        "args_no_equals": [word for name, value in config.items() for word in (f"--{name}", str(value))],
        "args_no_hyphens": flags,
        "args_no_boolean_flags": [f"--{name}{value}" for name, value in given],
        "args_append_hydra": [f"+{flag}" for flag in flags],
        "args_override_hydra": [f"++{flag}" for flag in flags],
        "args_json": [json.dumps(config, default=str)],
        "args_json_file": [file],
    }


class Weighted:
    """Ray's sampler of a `tune.choice` whose values have probabilities, which sum to 1."""

    def __init__(self, probabilities: Sequence[float]) -> None:
        self.probabilities = [float(each) for each in probabilities]

    def sample(self, domain: Any, config: Any = None, size: int = 1, random_state: Any = None) -> Any:
        drawn = random_state.choice(len(self.probabilities), size=size, p=self.probabilities)
        items = [domain.categories[each] for each in drawn]
        return items if len(items) > 1 else items[0]


def space_of(path: Path) -> Space:
    """Return the space of a sweep's file; ValueError if something in it is wrong or unknown."""
    sweep = _read(path)
    words = _command(sweep)
    unset = {match[1] for word in words for match in VARIABLE.finditer(word)} - os.environ.keys()
    fields = fields_of(sweep)
    notes = [
        *fields.pop("notes"),
        *(f"command: {each} is not set, so its name takes its place" for each in sorted(unset)),
    ]
    if "num_samples" not in fields:
        notes.append("no run_cap: W&B runs until its agents end; here, --num-samples is the number of settings")
    train: Any = SweepCommand(tuple(words))
    return Space(train=train, max_epochs=MOST_REPORTS, notes=notes, **fields)


def fields_of(sweep: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `Space` that a sweep's dictionary declares; `notes` has the differences from W&B."""
    notes: list[str] = []
    _check_keys("the sweep", sweep, KEYS, UNUSED, notes)
    if (method := str(sweep.get("method"))) not in SEARCHERS:
        raise ValueError(f"method {method!r}: must be {', '.join(SEARCHERS)}{nearest(method, SEARCHERS)}")
    if method == "bayes":
        notes.append("method bayes: the searcher forest learns from the trials, instead of a Gaussian process")
    params = params_of(_mapping(sweep.get("parameters"), "parameters"), method == "grid", notes)
    fields: dict[str, Any] = {"params": params, "searcher": SEARCHERS[method], **_rungs(sweep, notes)}
    metric = _mapping(sweep.get("metric", {}), "metric")
    _check_keys("metric", metric, METRIC_KEYS, UNUSED_OF_METRIC, notes)
    if "name" in metric:
        fields["metric"] = metric["name"]
    else:
        notes.append("no metric: this search uses the metric loss; --metric names another")
    if (goal := str(metric.get("goal", "minimize"))) not in MODES:
        raise ValueError(f"metric goal {goal!r}: must be minimize or maximize")
    if "run_cap" in sweep:
        fields["num_samples"] = sweep["run_cap"]
    elif method == "grid":
        searched = (domain for _, domain in domains.leaves(params) if not domains.is_constant(domain))
        fields["num_samples"] = min(math.prod(len(domains.grid_values(each)) for each in searched), MOST_SAMPLES)
    return {**fields, "mode": MODES[goal], "notes": notes}


def params_of(parameters: Mapping[str, Any], is_grid: bool = False, notes: list[str] | None = None) -> dict[str, Any]:
    """Return a sweep's parameters as domains and constants; ValueError for what has no counterpart.

    In a grid, each value of a range of whole numbers, or with a step, is tried. `notes` gets the differences from W&B.
    """
    notes = [] if notes is None else notes
    return {
        name: _domain(name, _mapping(each, f"parameter {name!r}"), is_grid, notes) for name, each in parameters.items()
    }


def _domain(name: str, declared: Mapping[str, Any], is_grid: bool, notes: list[str]) -> Any:
    from ray import tune

    of = f"parameter {name!r}"
    if "parameters" in declared:
        _check_keys(of, declared, ("parameters",))
        return params_of(_mapping(declared["parameters"], of), is_grid, notes)
    if "value" in declared:
        _check_keys(of, declared, ("value", "distribution"))
        return declared["value"] if domains.is_constant(declared["value"]) else tune.choice([declared["value"]])
    if "values" in declared:
        _check_keys(of, declared, ("values", "probabilities", "distribution"))
        return _choice(of, declared["values"], declared.get("probabilities"), is_grid)
    whole = all(type(declared.get(key)) is int for key in ("min", "max"))
    kind = str(declared.get("distribution", "int_uniform" if whole else "uniform"))
    step = _number(of, declared, "q", 1)
    if not step > 0:
        raise ValueError(f"{of}: q={step}: must be above 0")
    steps = ("q",) if kind.startswith("q_") else ()
    if kind in ("normal", "q_normal"):
        _check_keys(of, declared, ("distribution", "mu", "sigma", *steps))
        shape = _number(of, declared, "mu", 0), _number(of, declared, "sigma", 1)
        if not shape[1] > 0:
            raise ValueError(f"{of}: sigma={shape[1]}: must be above 0; write value: {shape[0]} for a constant")
        return tune.qrandn(*shape, step) if steps else tune.randn(*shape)
    if kind in NO_DOMAIN:
        raise ValueError(f"{of}: the distribution {kind} has no counterpart here; write log_uniform_values, or values")
    if kind not in RANGES:
        raise ValueError(f"{of}: unknown distribution {kind!r}{nearest(kind, RANGES)}")
    _check_keys(of, declared, ("distribution", "min", "max", *steps))
    if not {"min", "max"} <= declared.keys():
        raise ValueError(f"{of} of the sweep: {dict(declared)} needs value, values, or min and max")
    low, high = _number(of, declared, "min"), _number(of, declared, "max")
    if not low < high:
        raise ValueError(f"{of}: min={low}: must be below max={high}")
    is_log = "log" in kind
    if is_log and not kind.endswith("_values"):  # then the bounds are exponents of e, of 1/x for inv_log_uniform
        low, high = (-high, -low) if kind.startswith("inv") else (low, high)
        if high > math.log(1e300):
            raise ValueError(f"{of}: {kind} takes exponents of e; write {kind}_values if min and max are values")
        low, high = math.exp(low), math.exp(high)
    if is_log and not low > 0:
        raise ValueError(f"{of}: min={low}: must be above 0 for {kind}")
    if kind == "int_uniform":
        if not whole:
            raise ValueError(f"{of}: min={low}, max={high}: must be whole numbers for int_uniform")
        return _choice(of, range(low, high + 1)) if is_grid else tune.randint(low, high + 1)
    if not steps:
        return tune.loguniform(low, high) if is_log else tune.uniform(low, high)
    if is_grid:
        return _choice(of, [low + each * step for each in range(min(math.ceil((high - low) / step), MAX_DECLARED + 1))])
    # The least and the greatest number of steps to which W&B rounds a value.
    least, most = math.floor(low / step - 0.5) + 1, math.ceil(high / step + 0.5) - 1
    if is_log and least < 1:
        least = 1
        notes.append(f"{of}: W&B may round to 0, which is left out here")
    if least >= most:
        return tune.choice([least * step])
    if step == 1 and isinstance(step, int):
        return tune.lograndint(least, most + 1) if is_log else tune.randint(least, most + 1)
    of_floats, of_integers = (tune.qloguniform, tune.qlograndint) if is_log else (tune.quniform, tune.qrandint)
    return (of_integers if isinstance(step, int) else of_floats)(least * step, most * step, step)


def _choice(of: str, values: Any, probabilities: Any = None, is_grid: bool = False) -> Any:
    from ray import tune

    if not isinstance(values, Sequence) or isinstance(values, str) or not 0 < len(values) <= MAX_DECLARED:
        raise ValueError(f"{of}: values must be a list of 1 to {MAX_DECLARED:,} values")
    domain = tune.choice(list(values))
    if probabilities is None:
        return domain
    if is_grid:
        raise ValueError(f"{of}: a grid tries each value once; leave probabilities out, or write method: random")
    numbers = probabilities if isinstance(probabilities, list) and all(map(is_number, probabilities)) else []
    if len(numbers) != len(values) or min(numbers) < 0 or not math.isclose(sum(numbers), 1, rel_tol=1e-5):
        raise ValueError(f"{of}: probabilities must have a number for each value, and sum to 1")
    domain.set_sampler(Weighted([each / sum(numbers) for each in numbers]), allow_override=True)
    return domain


def _rungs(sweep: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Return the scheduler that stands for `early_terminate`, and its rungs."""
    if "early_terminate" not in sweep:
        notes.append("no early_terminate: no trial is pruned; --scheduler asha prunes")
        return {"scheduler": "fifo"}
    of, declared = "early_terminate", _mapping(sweep["early_terminate"], "early_terminate")
    _check_keys(of, declared, ("type", "min_iter", "max_iter", "s", "eta", "strict"))
    if declared.get("type") != "hyperband":
        raise ValueError(f"{of}: type {declared.get('type')!r}: must be hyperband")
    eta = _number(of, declared, "eta", 3)
    if not eta > 1:
        raise ValueError(f"{of}: eta={eta}: must be above 1")
    if declared.get("strict") is False:
        notes.append(f"{of}: strict: false: asha compares the report at a rung, W&B the best one so far")
    if "max_iter" not in declared:
        return {"scheduler": "asha", "grace_period": _whole(of, declared, "min_iter"), "reduction_factor": eta}
    most, num_bands = _whole(of, declared, "max_iter"), _whole(of, declared, "s")
    bands = [band for band in (int(most / eta**each) for each in range(1, min(num_bands, 64) + 1)) if band >= 1]
    if not bands:
        raise ValueError(f"{of}: max_iter={most}: must be at least eta={eta}")
    listed = ", ".join(map(str, reversed(bands)))
    notes.append(
        f"{of}: W&B compares at epochs {listed}; asha begins at {bands[-1]} and multiplies by {eta}, until --max-epochs"
    )
    return {"scheduler": "asha", "grace_period": bands[-1], "reduction_factor": eta}


def _command(sweep: Mapping[str, Any]) -> list[str]:
    words = sweep.get("command", COMMAND)
    if not isinstance(words, (list, tuple)) or not words or any(isinstance(each, (list, dict)) for each in words):
        raise ValueError(f"command: must be a list of words, such as {list(COMMAND)}")
    if tuple(words[:2]) == COMMAND[:2]:
        words = words[1:]  # env would look up python on PATH, as a trial does: without it, the program can be a fork
    places = {"env": "/usr/bin/env", "interpreter": "python"}
    if isinstance(sweep.get("program"), str):
        places["program"] = sweep["program"]
    elif "${program}" in words:
        raise ValueError("the sweep has no program: give the training script, such as program: train.py")
    named, forms = [(match := MACRO.fullmatch(str(word))) and match[1] for word in words], forms_of({})
    for name in filter(None, named):
        if name not in (*places, *forms):
            raise ValueError(f"command: ${{{name}}} is no macro{nearest(name, (*places, *forms))}")
    return [places.get(name or "", str(word)) for name, word in zip(named, words, strict=True)]


def _read(path: Path) -> Mapping[str, Any]:
    import yaml

    with path.open("rb") as file:
        text = file.read(MAX_FILE_BYTES + 1)
    if len(text) > MAX_FILE_BYTES:
        raise ValueError(f"has more than {MAX_FILE_BYTES:,} bytes")
    try:
        sweep = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"is no YAML: {' '.join(str(error).split())}") from None
    todo, num_values = [sweep], 0
    while todo:  # an alias may repeat, or contain itself
        each = todo.pop()
        todo += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        num_values += 1
        if num_values + len(todo) > MAX_DECLARED:
            raise ValueError(f"declares more than {MAX_DECLARED:,} values")
    return _mapping(sweep, "the file")


def _mapping(found: Any, of: str) -> Mapping[str, Any]:
    if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
        raise ValueError(f"{of} must be a mapping, name: value")
    return found


def _check_keys(
    of: str, found: Mapping[str, Any], known: Sequence[str], unused: Sequence[str] = (), notes: list[str] | None = None
) -> None:
    for key in found:
        if key not in (*known, *unused):
            hint = nearest(key, (*known, *unused)) or f"; known: {', '.join((*known, *unused))}"
            raise ValueError(f"{of} has the unknown key {key!r}{hint}")
    if notes is not None and (left := [key for key in found if key in unused]):
        notes.append(f"not used of {of}: {', '.join(left)}")


def _number(of: str, declared: Mapping[str, Any], key: str, default: Any = None) -> Any:
    value = declared.get(key, default)
    if not is_number(value) or not math.isfinite(value):
        hint = "; YAML reads 1e-5 as a text, write 1.0e-5" if isinstance(value, str) else ""
        raise ValueError(f"{of}: {key}={value!r}: must be a number{hint}")
    return value


def _whole(of: str, declared: Mapping[str, Any], key: str) -> int:
    value = _number(of, declared, key)
    if value != int(value) or value < 1:
        raise ValueError(f"{of}: {key}={value!r}: must be a whole number, 1 or more")
    return int(value)
