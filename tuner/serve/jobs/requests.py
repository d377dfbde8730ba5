"""Requests to start or resume a search: the options that they may set, and the check of the resulting command line.

A request sets what a search does: its space by name, budget, searcher, scheduler and resources. The user who starts
the service sets the folders and the cluster of all searches, whether they send results to W&B, and with --spaces a
folder of own spaces. A request names an own space by its file name, `my_space.py`; the names of other spaces have no
suffix.

`python -m tuner.serve.jobs.requests OPTIONS` checks the options of `tuner.run` in a child process, so that the service
neither imports torch nor executes a space's file. The child prints the experiment as JSON, or `tuner.run`'s error line.
With ELSEWHERE, a trial need not fit this machine, because the service itself checks the cluster's nodes.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from tuner.errors import RequestError, failed, nearest
from tuner.record.texts import command
from tuner.serve.access.own_spaces import OwnSpaces
from tuner.serve.answers import Refused
from tuner.spec.experiment import LATEST, Experiment, Options
from tuner.spec.option_values import helps_of, option, rows_of
from tuner.spec.space import Space
from tuner.spec.spaces import is_path, parsed, space_files, split_path

SETTABLE = tuple(name for name, row in rows_of(Options).items() if row.http)
ON_RESUME = tuple(name for name, row in rows_of(Options).items() if row.http == "always")
MOST_CHARS = 200  # maximum characters of a text option in a request
ELSEWHERE = "--elsewhere"
CHECK_S = 120.0  # seconds for the check of one request


def _model(name: str, doc: str, fields: tuple[str, ...], **more: Any) -> type[BaseModel]:
    """Returns a request's pydantic model; a field takes its type and its help text from the field in `Options`."""
    one_metric = {"metric": str, "mode": Literal["min", "max"]}  # the service starts searches of one metric only
    kinds, helps, definitions = get_type_hints(Options) | one_metric, helps_of(Options), dict(more)
    for field in fields:
        # Null means "not set": a new search uses the space's default, and a resumed search keeps its value.
        limit = MOST_CHARS if kinds[field] is str else None
        definitions[field] = (kinds[field] | None, Field(None, description=helps[field], max_length=limit))
    config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return create_model(name, __config__=config, __doc__=doc, **definitions)


Start: type[BaseModel] = _model(
    "Start",
    "A search to start; an option that is left out has the space's default.",
    SETTABLE,
    space=(str, Field(description="a name that /api/spaces lists", examples=list(space_files()))),
)
Resume: type[BaseModel] = _model(
    "Resume", "New limits of a resumed search; those left out stay as they are.", ON_RESUME
)


def described(path: Path) -> tuple[str, dict[str, Any]]:
    """Returns the first line of a space's docstring, and its defaults of SETTABLE; does not import the space's file.

    Leaves out None and computed defaults, such as what a script leaves out, because tuner reads the script's text.
    """
    try:
        tree = parsed(path)
    except (OSError, SyntaxError, ValueError) as error:
        return f"(does not parse: {error})", {}
    return (ast.get_docstring(tree) or "").partition("\n")[0], _defaults(tree)


def _defaults(tree: ast.Module) -> dict[str, Any]:
    defaults: dict[str, Any] = {each.name: each.default for each in dataclasses.fields(Options)}
    own = {each.name: each.default for each in dataclasses.fields(Space)}
    defaults = {name: defaults[name] if own.get(name) is None else own[name] for name in SETTABLE}
    calls = [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    kinds = ((kind, call) for kind in ("Space", "script") for name, call in calls if name.rpartition(".")[2] == kind)
    kind, called = next(kinds, ("", None))
    if kind != "Space":
        defaults |= dict.fromkeys(own.keys() & defaults.keys())
    if called and any(keyword.arg == "command" for keyword in called.keywords):
        defaults["max_epochs"] = None
    for keyword in called.keywords if called else ():
        if keyword.arg in own and keyword.arg in defaults:
            defaults[keyword.arg] = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
    if isinstance(defaults["grace_period"], int) and defaults["max_epochs"] is not None:
        defaults["grace_period"] = min(defaults["grace_period"], defaults["max_epochs"])
    return {name: value for name, value in defaults.items() if value is not None}


def start_arguments(asked: BaseModel, spaces: OwnSpaces) -> list[str]:
    """Returns the command line of a new search; raises RequestError for an unknown space or an unprintable text."""
    chosen = asked.model_dump(exclude_none=True)
    space = chosen.pop("space")
    if space not in space_files():  # a path or a module would let a request run any code
        file = spaces.find(space)
        if file is None:
            known = [*space_files(), *spaces.files()]
            raise RequestError(f"space {space!r}: must be one of {', '.join(known)}{nearest(space, known)}")
        space = str(file)
    return [f"--space={space}", *_arguments(chosen)]


def resume_arguments(name: str, space: str, path: str, asked: BaseModel, spaces: OwnSpaces) -> list[str]:
    """Returns the arguments that resume a search; `space` and `path` are what its experiment.json says of its space.

    `path` is the absolute path of the space's file, or empty if it is not known. If the folder names another space by
    then, `tuner.run` refuses it before any import. Raises RequestError if the space is neither one of `search_spaces/`
    nor an own one, the name is LATEST, or a text is not printable.
    """
    if name == LATEST:  # a user gave a folder this name by hand
        raise RequestError(f"--resume={name} means the newest experiment, not this folder; rename the folder {name}")
    file, colon, attribute = space.partition(":")
    if file not in space_files() or (colon and not attribute.isidentifier()):
        space = _own_space(name, space, path, spaces)
    return [f"--resume={name}", f"--space={space}", *_arguments(asked.model_dump(exclude_none=True))]


def _own_space(name: str, space: str, path: str, spaces: OwnSpaces) -> str:
    """Returns the value of `--space` for an experiment over an own space; raises RequestError for any other space."""
    file, attribute = split_path(space)
    if file.endswith(".py") and (own := spaces.at(path or file)):
        return f"{own}:{attribute}" if attribute else str(own)
    where, allowing = "", ""
    if is_path(space):
        where = f" ({path[:MOST_CHARS]!r})" if path not in ("", file) else ""
        allowing = "start tuner.serve with --spaces and the folder of that file, or "
    raise RequestError(
        f"{name} searches {space[:MOST_CHARS]!r}{where}: the service resumes only searches over the spaces that ship "
        f"and over the files in the folder of --spaces; if you trust that code, {allowing}run "
        f"{command('run', '--resume', name, '--results FOLDER')}"
    )


def _arguments(chosen: dict[str, Any]) -> list[str]:
    """Returns options as `--name=value` (True: `--name`), so that a value may begin with a dash; omits False and "".

    Raises RequestError for a text that is not printable, because a command line cannot have a zero byte, and control
    characters could steer a terminal.
    """
    for name, value in chosen.items():
        if not str(value).isprintable():
            raise RequestError(f"{name} {value!r}: must have printable characters only")
    options = {option(name): value for name, value in chosen.items() if value is not False and value != ""}
    return [name if value is True else f"{name}={value}" for name, value in options.items()]


def checked_options(arguments: list[str]) -> dict[str, Any]:
    """Checks arguments of `tuner.run` in a child process; returns the experiment's fields with defaults filled in.

    Raises RequestError with the text of `tuner.run` if an argument is wrong, and Refused if the check itself fails.
    """
    check = [sys.executable, "-m", "tuner.serve.jobs.requests", *arguments]
    try:
        done = subprocess.run(check, capture_output=True, text=True, timeout=CHECK_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise Refused(503, f"checking the request took more than {CHECK_S:g} s; try again") from None
    if done.returncode == 0:
        options: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return options
    lines = done.stderr.strip().splitlines()
    if done.returncode == 2 and lines and lines[-1].startswith("tuner: error: "):
        raise RequestError(lines[-1].removeprefix("tuner: error: "))
    print(done.stderr, file=sys.stderr, flush=True)
    raise Refused(503, f"checking the request failed (exit code {done.returncode}); see the service's output")


def experiment_of(argv: list[str]) -> Experiment:
    from tuner import run  # imported here, because the service needs only `checked_options`
    from tuner.tuning.checks.request import checked
    from tuner.tuning.resume.loading import load_resumed

    here = ELSEWHERE not in argv
    argv = [each for each in argv if each != ELSEWHERE]
    call = run.call_of(argv, run.parse(argv))
    call.dry_run = True
    with ExitStack() as stack:
        return checked(call, load_resumed(call, stack) if call.resume else None, here).experiment


def main(argv: list[str]) -> int:
    try:
        print(json.dumps(dataclasses.asdict(experiment_of(argv))))
        return 0
    except RequestError as error:
        return failed(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
