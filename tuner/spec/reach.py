"""Carries a trial's parameters into a script: to its options and its constants."""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

CONFIG = "__tuner_config__"  # the name of the trial's parameters in the globals of its script
CONSTANT = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.List, ast.Tuple, ast.operator, ast.unaryop, ast.expr_context)
MOST_FILES = 200  # the most files beside a script, or in a folder, that are searched for a parameter

Config = Mapping[str, Any]


@contextlib.contextmanager
def into_argparse(config: Config, reached: Callable[[], None]) -> Iterator[None]:
    """Makes the parameters the defaults of every parser's options and arguments of the same name."""
    original, refuse = argparse.ArgumentParser.parse_known_args, argparse.ArgumentParser.error

    def parse(parser: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
        given = sys.argv[1:] if args is None else list(args)
        for action in parser._actions:
            flags = (flag.lstrip("-").replace("-", "_") for flag in action.option_strings)
            name = next((name for name in (action.dest, *flags) if name in config), None)
            if name is not None and isinstance(action, argparse._SubParsersAction):
                given = given or [str(config[name])]  # a subcommand has no default: its name must be an argument
                reached()
            elif name is not None:
                action.default, action.required = config[name], False
                action.nargs = action.nargs if action.option_strings else "?"
                reached()
        return original(parser, given, namespace)

    def error(parser: argparse.ArgumentParser, message: str) -> Any:
        raise ValueError(f"the script's command line: {message}; give such options as constants in params")

    argparse.ArgumentParser.error = error  # type: ignore[method-assign,assignment]
    argparse.ArgumentParser.parse_known_args = parse  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        argparse.ArgumentParser.parse_known_args = original  # type: ignore[method-assign]
        argparse.ArgumentParser.error = refuse  # type: ignore[method-assign]


@contextlib.contextmanager
def into_click(config: Config) -> Iterator[None]:
    """Makes the parameters the defaults of every click command's options and arguments of the same name."""
    command: Any = importlib.import_module("click").Command
    original = command.make_context

    def make_context(self: Any, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        return original(self, info_name, args, parent, **{**extra, "default_map": dict(config)})

    command.make_context = make_context
    try:
        yield
    finally:
        command.make_context = original


def imports(source: str, modules: str) -> bool:
    """Returns whether a script imports one of the modules of a pattern such as `yaml|omegaconf`."""
    return re.search(rf"(?m)^\s*(import|from)\b.*\b({modules})\b", source) is not None


# Package with a Trainer -> the module that reports for it. Only names: those modules import `tuner.spec`.
TRAINERS = {
    "pytorch_lightning": "tuner.integrations.lightning",
    "lightning": "tuner.integrations.lightning",
    "transformers": "tuner.integrations.transformers",
}


def trainers_in(source: str) -> list[str]:
    """Returns modules whose `automatic` reports for the Trainers that a script uses; imports the Trainers' packages."""
    found = []
    for package, module in TRAINERS.items():
        uses = imports(source, package) and re.search(r"\bTrainer\(", source)
        if uses and module not in found:
            importlib.import_module(package)  # the integration uses the package that is imported
            found.append(module)
    return found


def beside(path: Path) -> dict[Path, str]:
    """Returns the Python files beside a script, with their text."""
    files = sorted(file for file in path.parent.glob("*.py") if file != path)[:MOST_FILES]
    return {file: file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file()}


def python_files(folder: Path) -> dict[Path, str]:
    """Returns the Python files of a folder and of the folders directly in it, with their text."""
    files = sorted(file for depth in ("*.py", "*/*.py") for file in folder.glob(depth))[:MOST_FILES]
    return {file: file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file()}


def imported_by(source: str, files: Mapping[Path, str]) -> dict[Path, str]:
    """Returns the files whose modules a script imports, directly or through another of the files."""
    found: dict[Path, str] = {}
    texts = [source]
    while texts:
        text = texts.pop()
        for file, own in files.items():
            if file not in found and re.search(rf"(?m)^\s*(import|from)\s.*\b{re.escape(file.stem)}\b", text):
                found[file] = own
                texts.append(own)
    return found


@contextlib.contextmanager
def fresh_modules(folder: Path, config: Config, names: Mapping[str, set[str]]) -> Iterator[None]:
    """Imports the modules beside a script anew for a trial, with parameters in place of their constants.

    Args:
        names: module -> the parameters that replace its constants.
    """
    before, finder = set(sys.modules), Beside(folder, config, names)
    sys.meta_path.insert(0, finder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if isinstance(file, str) and Path(file).is_relative_to(folder) and "-packages" not in file:
                del sys.modules[name]  # the worker's next trial imports it with other parameters


class Beside(MetaPathFinder):
    """Makes Python import the modules beside a script with parameters in place of their constants."""

    def __init__(self, folder: Path, config: Config, names: Mapping[str, set[str]]) -> None:
        self._folder, self._config, self._names = folder, config, names

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if path is not None or name not in self._names:
            return None
        file = str(self._folder / f"{name}.py")
        return spec_from_file_location(name, file, loader=Replacing(name, file, self._config, self._names[name]))


class Replacing(SourceFileLoader):
    """Loads a module with parameters in place of its constants."""

    def __init__(self, name: str, file: str, config: Config, names: set[str]) -> None:
        super().__init__(name, file)
        self._config, self._names = config, names

    def get_code(self, fullname: str) -> Any:
        tree = Constants(self._names).visit(ast.parse(self.get_data(self.path), self.path))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__[CONFIG] = self._config
        super().exec_module(module)


# Functions of dataclasses, pydantic and typer whose first argument or `default=` is a field's default value.
FIELDS = ("field", "Field", "Option", "Argument")


class Constants(ast.NodeTransformer):
    """Replaces constants by the parameters whose names they get: `lr = 1`, `f(lr=1)`, `def f(lr=1)`, `{"lr": 1}`.

    `lines`: name -> the line numbers of the constants that the parameter of this name has replaced.
    """

    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.lines: dict[str, set[int]] = {}

    def _value(self, name: object, value: ast.expr | None) -> Any:
        if name in self.names and isinstance(value, ast.Call) and _called(value) in FIELDS:
            for each in value.keywords:
                each.value = self._value(name, each.value) if each.arg == "default" else each.value
            value.args[:1] = [self._value(name, each) for each in value.args[:1]]
            return value
        if name not in self.names or value is None or not all(isinstance(each, CONSTANT) for each in ast.walk(value)):
            return value
        self.lines.setdefault(str(name), set()).add(value.lineno)
        read = ast.Subscript(ast.Name(CONFIG, ast.Load()), ast.Constant(name), ast.Load())
        return ast.copy_location(read, value)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return node if declares(node) else self.generic_visit(node)

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


def options_of(source: str) -> dict[str, str]:
    """Returns parameter name -> option (`lr` -> `--lr`), for each string of a script that looks like an option.

    `Script` does not replace constants that have the name of an option.
    """
    options = re.findall(r"""["'](--?[A-Za-z][\w-]*)(?:/--?[\w-]+)?["']|add_argument\(\s*["'](\w+)["']""", source)
    words = {flag.strip("-").replace("-", "_"): flag for flag, _ in options if flag}
    words |= {name: f"{name} of its command line" for name in re.findall(r"""\bdest\s*=\s*["'](\w+)["']""", source)}
    return words | {name: f"{name} of its command line" for _, name in options if name}


def _variable(target: ast.expr) -> object:
    """Returns the name to which a statement assigns: `lr` of `lr = 1` and of `args.lr = 1`."""
    return getattr(target, "id", getattr(target, "attr", None))


def _called(node: ast.Call) -> str:
    """Returns the last name of a call: `field` of `dataclasses.field(...)`."""
    return str(getattr(node.func, "id", getattr(node.func, "attr", "")))


def declares(node: ast.Call) -> bool:
    """Returns whether a call is that of `script` or of W&B's `sweep`, which declare the parameters."""
    return _called(node) in ("script", "sweep")
