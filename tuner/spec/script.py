"""Makes a space of a script that trains by itself: each trial runs the whole file with its own parameters.

A parameter reaches the script in one of four ways: as the value of the option of the same name (argparse, click), in
place of constants that the script or a module beside it gives to a variable, argument or key of the same name, in the
dictionary that `script` returns, or from an object of `tuner.integrations.wandb` or `tuner.integrations.optuna`.
`tuner.spec.reach` does the first two.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from tuner.errors import nearest
from tuner.spec import reach, source
from tuner.spec.reach import CONFIG, Constants, declares, options_of
from tuner.spec.space import Space

_importing: list[Path] = []  # space files being imported now; `search` refuses to start inside such an import
_trial: list[Trial] = []  # the trial that this process runs, if it runs one


class Ended(BaseException):
    """Raised to end a trial's script before the code that needs the results of many trials.

    `value` is the metric's value that is still to be reported, or None if there is nothing left to report.
    """

    def __init__(self, value: Any = None) -> None:
        super().__init__("the trial has ended")
        self.value = value


@dataclass
class Trial:
    """The trial that runs in this process.

    Attributes:
        config: its parameters.
        metric, mode: the metric that the search optimizes, and "min" or "max".
        reached: whether the script got parameters from `script`, argparse, `wandb.init` or Optuna; constants do not
            count.
        reported: whether `tuner.integrations.wandb` has reported the metric.
        pid: the id of the trial's process; `wandb.log` does nothing in processes that the script starts.
        stack: callbacks that clean up at the trial's end.
        at_end: called if the script ends without an error.
    """

    config: dict[str, Any]
    metric: str
    mode: str = "min"
    reached: bool = False
    reported: bool = False
    pid: int = field(default_factory=os.getpid)
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    at_end: Callable[[], None] | None = None

    def reach(self) -> None:
        """Notes that the script got parameters."""
        self.reached = True


class Declared(BaseException):
    """Raised to end the import of a file once its space is declared; only trials run the rest of the file."""

    def __init__(self, space: Space) -> None:
        super().__init__("the file's space is declared")
        self.space = space


def script(params: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Makes the calling file a space: each trial runs the whole file with its own parameters.

    Call it at the top of a script, above everything that trains. The script reports with `ray.tune.report`.

    Args:
        params: name -> Ray domain or constant, as in `Space`. A name is that of a command-line option, or of a
            variable, argument or dictionary key to which the script gives a constant.
        options: other fields of `Space`, such as `metric`, `mode` and `max_epochs`.

    Returns:
        The trial's parameters. They are empty when the script runs without tuner.
    """
    if trial := running():
        trial.reached = True
        return dict(trial.config)
    if path := importing():
        raise Declared(script_space(path, params, **options))
    return {}


def script_space(path: Path, params: Mapping[str, Any], **options: Any) -> Space:
    """Returns the space whose trials run this file.

    Raises:
        ValueError: a parameter or field is wrong, or a parameter would reach nothing: it names no option or constant of
            the script or of a file beside it, and the script does not read the parameters otherwise.
        RequestError: `tuner.spec.source` finds a mistake in the script that would spoil each trial.
    """
    text = path.read_text(encoding="utf-8")
    train = Script(str(path), text)
    source.check_reports(text, path)
    source.check_options(text, path, params)
    space = Space(params=params, train=train, **(source.of_study(text, path) | options))
    unread = set() if _reads_config(text) else space.params.keys() - train.targets(space.params).keys()
    if unread:
        name = min(unread)
        words = set(re.findall(r"[A-Za-z_]\w*", _text_without_declaration(text).replace("-", "_")))
        near = nearest(name, words - {name}) or nearest(name, {word.lower() for word in words} - {name})
        raise ValueError(
            f"parameter {name!r} would reach nothing in {path.name}{near}; name an option "
            f"of the script, or a variable to which it gives a constant, or use what script() returns"
        )
    return space


def importing() -> Path | None:
    """Returns the file of the space that is being imported now; None if there is none."""
    return _importing[-1] if _importing else None


def check_declared(function: str) -> None:
    """Raises ValueError if a space's file, while it is imported, calls a function that only trials should call."""
    if importing():
        raise ValueError(
            f"{function} was called before the file declared its space; put tuner.script({{...}}), with the "
            f"parameters, above it"
        )


def running() -> Trial | None:
    """Returns the trial that runs in this process; None if there is none."""
    return _trial[-1] if _trial else None


@contextlib.contextmanager
def imported(path: Path) -> Iterator[None]:
    """Marks a file as being imported for its space; hides this process's command-line arguments from the file."""
    _importing.append(path)
    try:
        with _arguments(path):
            yield
    finally:
        _importing.pop()


@contextlib.contextmanager
def in_trial(config: dict[str, Any], metric: str, path: str = "", mode: str = "min") -> Iterator[Trial]:
    """Gives a trial's parameters to the code in a `with` block: through `script`, W&B, Optuna and argparse."""
    trial = Trial(config, metric, mode)
    _trial.append(trial)
    try:
        with trial.stack, _arguments(Path(path)), reach.into_argparse(config, trial.reach):
            yield trial
    finally:
        _trial.remove(trial)


@contextlib.contextmanager
def _arguments(path: Path) -> Iterator[None]:
    before, sys.argv = sys.argv, [str(path)]
    try:
        yield
    finally:
        sys.argv = before


@dataclass(frozen=True)
class Script:
    """The function of a script's trials: runs the file as Python would, as `__main__`, with the trial's parameters.

    `source` is the file's text, read once: all trials of a session run it, even if the file changes meanwhile.
    """

    path: str
    source: str

    def sources(self) -> dict[Path, str]:
        """Returns file -> text, for the script and for the modules beside it that it imports."""
        path = Path(self.path)
        return {path: self.source, **reach.imported_by(self.source, reach.beside(path))}

    def targets(self, names: Iterable[str]) -> dict[str, str]:
        """Says what each parameter sets: `{"lr": "--lr", "momentum": "in place of the constant in line 4"}`.

        Parameters that set nothing are left out.
        """
        words = dict(options_of(self.source))
        left = set(names) - words.keys()
        # Files that the script does not import count, too: a package beside it may import them and parse the options.
        for text in reach.beside(Path(self.path)).values():
            words |= {name: option for name, option in options_of(text).items() if name in left}
        for place, visitor in self._constants(names).items():
            for name, lines in visitor.lines.items():
                what = "constant in line" if len(lines) == 1 else "constants in lines"
                of = "" if str(place) == self.path else f" of {place.name}"
                words.setdefault(name, f"in place of the {what} {', '.join(map(str, sorted(lines)))}{of}")
        return {name: words[name] for name in names if name in words}

    def _constants(self, names: Iterable[str]) -> dict[Path, Constants]:
        """Returns, by file, the constants that parameters replace in the script and in the modules beside it.

        A module gets only parameters that replace nothing in the script. An option of a parameter's name takes
        precedence over constants.
        """
        found: dict[Path, Constants] = {}
        sources, script = self.sources(), Path(self.path)
        left = set(names) - set(options_of(self.source))
        for file, text in sources.items():
            names_here = left if file == script else left.difference(*map(options_of, sources.values()))
            found[file] = Constants(names_here)
            with contextlib.suppress(SyntaxError):
                found[file].visit(ast.parse(text))
            if file == script:
                left = left - found[file].lines.keys()
        return found

    def __call__(self, config: dict[str, Any]) -> None:
        """Runs the script in a trial."""
        path = Path(self.path)
        replaced = {file: set(each.lines) for file, each in self._constants(config).items() if each.lines}
        tree = Constants(replaced.pop(path, set())).visit(ast.parse(self.source, self.path))
        module = ModuleType("__main__")
        module.__dict__.update({"__file__": self.path, CONFIG: config})
        before = sys.modules["__main__"]
        sys.modules["__main__"] = module  # pickle looks up the script's classes in __main__
        sys.argv[0] = self.path
        with contextlib.ExitStack() as stack:
            stack.callback(sys.modules.__setitem__, "__main__", before)
            beside = {file.stem: names for file, names in replaced.items()}
            stack.enter_context(reach.fresh_modules(path.parent, config, beside))
            if reach.imports(self.source, "click"):
                stack.enter_context(reach.into_click(config))
            words = ("report(", "TunerCallback", "tuner.integrations")
            if not any(word in text for text in self.sources().values() for word in words):
                for name in reach.trainers_in(self.source):
                    stack.enter_context(importlib.import_module(name).automatic())
            exec(compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True), module.__dict__)


def _reads_config(source: str) -> bool:
    """Returns whether parameters may reach the script in ways that its text does not show.

    They may if it uses what `script` returns, W&B, Optuna, or a parser whose options are fields of imported classes.
    """
    tree = ast.parse(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and declares(node))
    elsewhere = ("wandb", "suggest_", "HfArgumentParser")
    return any(word in source for word in elsewhere) or any(id(node) not in alone for node in calls)


def _text_without_declaration(source: str) -> str:
    """Returns the script without its parameter declarations; the rest may have the name that a parameter misspells."""
    lines = source.split("\n")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and declares(node):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return "\n".join(lines)
