"""The options of a search that a request may set, generated from the fields of `Options`.

A request may set what a search does: its space by name, its budget, searcher, scheduler and resources. The user who
starts the service sets, for all requests, where searches read, write and run, and what they send elsewhere.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from tuner.errors import RequestError, nearest
from tuner.record.texts import command
from tuner.spec.experiment import LATEST, Options, option
from tuner.spec.space import Space
from tuner.spec.spaces import parsed, space_files

SETTABLE = (
    "num_samples", "max_epochs", "grace_period", "reduction_factor", "brackets", "perturbation_interval",
    "searcher", "scheduler", "metric", "mode",
    "cpus_per_trial", "gpus_per_trial", "workers_per_trial", "strategy", "precision", "on_oom",
    "max_concurrent_trials", "priority", "max_failures", "trial_timeout", "time_budget", "seed", "name", "tensorboard",
)  # fmt: skip
ON_RESUME = ("num_samples", "max_epochs", "time_budget")
MOST_CHARS = 200  # most characters of a text option in a request


def _model(name: str, doc: str, fields: tuple[str, ...], **more: Any) -> type[BaseModel]:
    """Returns a request's model: the fields have the types of `Options`, and the string literals below them as help."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(Options)).body if isinstance(node, ast.ClassDef))
    helps = {
        ast.unparse(field.target): ast.literal_eval(text.value)
        for field, text in zip(body, body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
    kinds, definitions = get_type_hints(Options), dict(more)
    for field in fields:
        # Null means "not set": the space's own default, or for a resume the value that the search has.
        limit = MOST_CHARS if kinds[field] is str else None
        definitions[field] = (kinds[field] | None, Field(None, description=helps[field], max_length=limit))
    config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return create_model(name, __config__=config, __doc__=doc, **definitions)


Start: type[BaseModel] = _model(
    "Start",
    "A search to start; an option that is left out has the space's default.",
    SETTABLE,
    space=(str, Field(description="a name that /api/spaces lists", json_schema_extra={"enum": list(space_files())})),
)
Resume: type[BaseModel] = _model(
    "Resume", "What to extend in a resumed search; an empty one changes nothing.", ON_RESUME
)


def defaults_of(space: str) -> dict[str, Any]:
    """Returns the default of each option in SETTABLE for a space of `search_spaces/`, without importing the space.

    An option that the space's file computes is left out.
    """
    defaults: dict[str, Any] = {each.name: each.default for each in dataclasses.fields(Options)}
    own = {each.name: each.default for each in dataclasses.fields(Space)}
    defaults = {name: own.get(name, defaults[name]) for name in SETTABLE}
    calls = (node for node in ast.walk(parsed(space_files()[space])) if isinstance(node, ast.Call))
    called = next((call for call in calls if ast.unparse(call.func) == "Space"), None)
    for keyword in called.keywords if called else ():
        if keyword.arg in own and keyword.arg in defaults:
            defaults[keyword.arg] = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
    if isinstance(defaults["grace_period"], int) and defaults["max_epochs"] is not None:
        defaults["grace_period"] = min(defaults["grace_period"], defaults["max_epochs"])
    return {name: value for name, value in defaults.items() if value is not None}


def start_arguments(asked: BaseModel) -> list[str]:
    """Returns the command line of a new search; raises RequestError for an unknown space or a text as `_arguments`."""
    chosen = asked.model_dump(exclude_none=True)
    space, known = chosen.pop("space"), space_files()
    if space not in known:  # a path or a module would let a request run any code
        raise RequestError(f"space {space!r}: must be one of {', '.join(known)}{nearest(space, known)}")
    return [f"--space={space}", *_arguments(chosen)]


def resume_arguments(name: str, space: str, asked: BaseModel) -> list[str]:
    """Returns the arguments that resume a search; `space` is the name in its experiment.json.

    Before any import, `tuner.run` refuses a folder that names another space.

    Raises:
        RequestError: the space is not one of `search_spaces/`, the name is LATEST, or a text is not printable.
    """
    if name == LATEST:  # a user gave a folder this name by hand
        raise RequestError(f"--resume={name} means the newest experiment, not this folder; rename the folder {name}")
    file, colon, attribute = space.partition(":")
    if file not in space_files() or (colon and not attribute.isidentifier()):
        raise RequestError(
            f"{name} searches {space[:MOST_CHARS]!r}: the service resumes only searches over "
            f"{', '.join(space_files())}; if you trust that code, run "
            f"{command('run', '--resume', name, '--results FOLDER')}"
        )
    return [f"--resume={name}", f"--space={space}", *_arguments(asked.model_dump(exclude_none=True))]


def _arguments(chosen: dict[str, Any]) -> list[str]:
    """Returns the options as `--name=value`; True gives a bare `--name`, False and an empty text are left out.

    Each option is one word, so that a value with a leading dash is not read as another option. Raises RequestError for
    a text that is not printable: a command line has no zero byte, and control characters could steer a terminal.
    """
    for name, value in chosen.items():
        if not str(value).isprintable():
            raise RequestError(f"{name} {value!r}: must have printable characters only")
    options = {option(name): value for name, value in chosen.items() if value is not False and value != ""}
    return [name if value is True else f"{name}={value}" for name, value in options.items()]
