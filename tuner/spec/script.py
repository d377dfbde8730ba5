"""Makes a space of a script that trains by itself: each trial runs the whole file with its own parameters.

A parameter reaches the script in one of four ways: as the value of the argparse option of the same name, in place of
constants that the script gives to a variable, argument or key of the same name, in the dictionary that `script`
returns, or in `wandb.config` of `tuner.integrations.wandb`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from tuner.errors import nearest
from tuner.spec.space import Space

CONFIG = "__tuner_config__"  # the name of the trial's parameters in the globals of its script
MOST_SIBLINGS = 200  # at most so many files beside the script are searched for a parameter's option
CONSTANT = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.List, ast.Tuple, ast.operator, ast.unaryop, ast.expr_context)

_importing: list[Path] = []  # space files being imported now; `search` refuses to start inside such an import
_trial: list[Trial] = []  # the trial that this process runs, if it runs one


@dataclass
class Trial:
    """The trial that runs in this process.

    Attributes:
        config: its parameters.
        metric: the metric that the search optimizes.
        reached: whether the script got parameters from `script`, argparse or `wandb.init`; constants do not count.
        reported: whether `tuner.integrations.wandb` has reported the metric.
        pid: the trial's process; `wandb.log` does nothing in processes that the script starts.
        stack: callbacks that clean up at the trial's end.
        at_end: called if the script ends without an error.
    """

    config: dict[str, Any]
    metric: str
    reached: bool = False
    reported: bool = False
    pid: int = field(default_factory=os.getpid)
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    at_end: Callable[[], None] | None = None


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
    """The space whose trials run this file.

    Raises:
        ValueError: a parameter or field is wrong, or a parameter would reach nothing: it names no option or constant of
            the script and no option in a file beside it, and the script does not read the parameters otherwise.
    """
    source = path.read_text(encoding="utf-8")
    train = Script(str(path), source)
    space = Space(params=params, train=train, **options)
    unread = set() if _reads_config(source) else space.params.keys() - train.targets(space.params).keys()
    if unread and (unread := unread.difference(*map(_options_of, _siblings(path)))):
        name = min(unread)
        words = set(re.findall(r"[A-Za-z_]\w*", _text_without_declaration(source).replace("-", "_")))
        raise ValueError(
            f"parameter {name!r} would reach nothing in {path.name}{nearest(name, words - {name})}; name an option "
            f"of the script, or a variable to which it gives a constant, or use what script() returns"
        )
    return space


def importing() -> Path | None:
    """The file of a space that is being imported now, if one is."""
    return _importing[-1] if _importing else None


def running() -> Trial | None:
    """The trial that runs in this process, if one does."""
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
def in_trial(config: dict[str, Any], metric: str, path: str = "") -> Iterator[Trial]:
    """Gives a trial's parameters to the code in a `with` block: through `script`, W&B's config and argparse."""
    trial = Trial(config, metric)
    _trial.append(trial)
    try:
        with trial.stack, _arguments(Path(path)), _parsed(trial):
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


@contextlib.contextmanager
def _parsed(trial: Trial) -> Iterator[None]:
    """Makes the trial's parameters the defaults of every parser's options and arguments of the same name."""
    original = argparse.ArgumentParser.parse_known_args

    def parse(parser: argparse.ArgumentParser, *arguments: Any, **options: Any) -> Any:
        for action in parser._actions:
            if action.dest in trial.config:
                action.default, action.required = trial.config[action.dest], False
                action.nargs = action.nargs if action.option_strings else "?"
                trial.reached = True
        return original(parser, *arguments, **options)

    argparse.ArgumentParser.parse_known_args = parse  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        argparse.ArgumentParser.parse_known_args = original  # type: ignore[method-assign]


@dataclass(frozen=True)
class Script:
    """The function of a script's trials: runs the file as Python would, as `__main__`, with the trial's parameters.

    `source` is the file's text, read once: all trials of a session run it, even if the file changes meanwhile.
    """

    path: str
    source: str

    def targets(self, names: Iterable[str]) -> dict[str, str]:
        """What each parameter sets, in words: `{"lr": "--lr", "momentum": "in place of the constant in line 4"}`.

        Parameters that set neither an option nor a constant are left out.
        """
        options = _options_of(self.source)
        constants = _Constants(set(names) - set(options))
        constants.visit(ast.parse(self.source))
        words = {}
        for name in names:
            lines = sorted(constants.lines.get(name, ()))
            if name in options:
                words[name] = options[name]
            elif lines:
                what = "constant in line" if len(lines) == 1 else "constants in lines"
                words[name] = f"in place of the {what} {', '.join(map(str, lines))}"
        return words

    def __call__(self, config: dict[str, Any]) -> None:
        """Runs the script in a trial."""
        tree = _Constants(set(config) - set(_options_of(self.source))).visit(ast.parse(self.source, self.path))
        module = ModuleType("__main__")
        module.__dict__.update({"__file__": self.path, CONFIG: config})
        before, folder = sys.modules["__main__"], str(Path(self.path).parent)
        sys.modules["__main__"] = module  # classes of the script are pickled by their names in __main__
        sys.path.insert(0, folder)
        sys.argv[0] = self.path
        try:
            exec(compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True), module.__dict__)
        finally:
            sys.modules["__main__"] = before
            with contextlib.suppress(ValueError):
                sys.path.remove(folder)


class _Constants(ast.NodeTransformer):
    """Replaces constants by the parameters whose names they get: `lr = 1`, `f(lr=1)`, `def f(lr=1)`, `{"lr": 1}`.

    `lines` has the line numbers of the replaced constants by name.
    """

    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.lines: dict[str, set[int]] = {}

    def _value(self, name: object, value: ast.expr | None) -> Any:
        if name not in self.names or value is None or not all(isinstance(each, CONSTANT) for each in ast.walk(value)):
            return value
        self.lines.setdefault(str(name), set()).add(value.lineno)
        read = ast.Subscript(ast.Name(CONFIG, ast.Load()), ast.Constant(name), ast.Load())
        return ast.copy_location(read, value)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return node if _declares(node) else self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        for target in node.targets if len(node.targets) == 1 else ():
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=False)
                node.value.elts[: len(target.elts)] = [self._value(_variable(each), value) for each, value in pairs]
            else:
                node.value = self._value(_variable(target), node.value)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = self._value(_variable(node.target), node.value)
        return self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        node.value = self._value(node.arg, node.value)
        return self.generic_visit(node)

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        named = [*node.posonlyargs, *node.args]
        late = named[len(named) - len(node.defaults) :]
        node.defaults = [self._value(a.arg, value) for a, value in zip(late, node.defaults, strict=True)]
        node.kw_defaults = [self._value(a.arg, v) for a, v in zip(node.kwonlyargs, node.kw_defaults, strict=True)]
        return self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        names = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
        node.values = [self._value(name, value) for name, value in zip(names, node.values, strict=True)]
        return self.generic_visit(node)


def _options_of(source: str) -> dict[str, str]:
    """Parameter name -> option (`lr` -> `--lr`), for each string of a script that looks like an option.

    `Script` does not replace constants that have the name of an option.
    """
    options = re.findall(r"""["'](--?[A-Za-z][\w-]*)["']|add_argument\(\s*["'](\w+)["']""", source)
    words = {flag.strip("-").replace("-", "_"): flag for flag, _ in options if flag}
    return words | {name: f"{name} of its command line" for _, name in options if name}


def _variable(target: ast.expr) -> object:
    """The name to which a statement assigns: `lr` of `lr = 1` and of `args.lr = 1`."""
    return getattr(target, "id", getattr(target, "attr", None))


def _reads_config(source: str) -> bool:
    """Whether parameters may reach the script in ways that its text does not show.

    So it is if the script uses what `script` returns, W&B, or a parser whose options are fields of imported classes.
    """
    tree = ast.parse(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and _declares(node))
    return "wandb" in source or "HfArgumentParser" in source or any(id(node) not in alone for node in calls)


def _text_without_declaration(source: str) -> str:
    """The script without its parameter declarations, to check that the rest mentions each parameter."""
    lines = source.split("\n")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and _declares(node):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return "\n".join(lines)


def _declares(node: ast.Call) -> bool:
    """Whether a call is that of `script` or of W&B's `sweep`, which declare the parameters."""
    return getattr(node.func, "id", getattr(node.func, "attr", "")) in ("script", "sweep")


def _siblings(path: Path) -> Iterator[str]:
    for number, file in enumerate(path.parent.glob("*.py")):
        if number < MOST_SIBLINGS and file != path:
            yield file.read_text(encoding="utf-8", errors="replace")
