"""The options of a search that a request may set, generated from the fields of `Options`.

The command line, the API and the page thus share one declaration. A request may set what a search does: its space by
name, its budget, searcher, scheduler and resources. Other options are the same for all requests; the user
who starts the service sets them. These say where searches read and write (`results`, `data_dir`), where they run
(`address`), and what they send to other services (`wandb`, `wandb_project`). A request cannot set the lists `point` and
`stop`; a space may.
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
from tuner.spec.spaces import file_of, parsed, space_files

SETTABLE = (
    "num_samples", "max_epochs", "grace_period", "reduction_factor", "brackets", "perturbation_interval",
    "searcher", "scheduler", "metric", "mode",
    "cpus_per_trial", "gpus_per_trial", "workers_per_trial", "strategy", "precision", "on_oom",
    "max_concurrent_trials", "priority", "max_failures", "trial_timeout", "time_budget", "seed", "name", "tensorboard",
)  # fmt: skip
WITHHELD = ("results", "data_dir", "address", "wandb", "wandb_project", "point", "stop")
ON_RESUME = ("num_samples", "max_epochs", "time_budget")
MOST_CHARS = 200  # most characters of a text option in a request


def helps() -> dict[str, str]:
    """Returns the help text of each field of `Options`: the string literal below the field in its source."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(Options)).body if isinstance(node, ast.ClassDef))
    return {
        ast.unparse(field.target): ast.literal_eval(text.value)
        for field, text in zip(body, body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def _model(name: str, doc: str, fields: tuple[str, ...], **more: Any) -> type[BaseModel]:
    kinds, about = get_type_hints(Options), helps()
    definitions: dict[str, Any] = dict(more)
    for field in fields:
        # Null means "not set": the space's own default, or for a resume the value that the search has.
        limit = MOST_CHARS if kinds[field] is str else None
        definitions[field] = (kinds[field] | None, Field(None, description=about[field], max_length=limit))
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
    defaults = {name: defaults[name] for name in SETTABLE}
    path = file_of(space)
    calls = ast.walk(parsed(path)) if path else ()
    called = next((node for node in calls if isinstance(node, ast.Call) and ast.unparse(node.func) == "Space"), None)
    own: dict[str, Any] = {each.name: each.default for each in dataclasses.fields(Space) if each.name in defaults}
    for keyword in called.keywords if called else ():
        if keyword.arg in own:
            own[keyword.arg] = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
    defaults |= own
    if isinstance(defaults["grace_period"], int) and defaults["max_epochs"] is not None:
        defaults["grace_period"] = min(defaults["grace_period"], defaults["max_epochs"])
    return {name: value for name, value in defaults.items() if value is not None}


def ships(space: str) -> bool:
    """Returns whether a space, `name` or `name:attribute`, is a file of tuner's own `search_spaces/`."""
    name, colon, attribute = space.partition(":")
    return name in space_files() and (not colon or attribute.isidentifier())


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
    if not ships(space):
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
