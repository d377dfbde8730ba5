"""Makes a space of a script that trains by itself: each trial runs the whole file with its own parameters.

A parameter can reach the script in four ways:
1. as the value of the option or argument of the same name (argparse, click);
2. in place of a constant that the script, or a module beside it, assigns to a variable, argument or key of that name;
3. in the dictionary that `script` returns;
4. from an object of `tuner.integrations.wandb` or `tuner.integrations.optuna`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from tuner.errors import RequestError
from tuner.errors.users_code import in_trial as in_trial_folder
from tuner.spec import script_text
from tuner.spec.script_text import REPORTING, Constants, imported_by, imports, options_of, python_files
from tuner.spec.space import Space

# Package with a Trainer -> name of the module that reports its epochs; importing the module here would be a cycle.
LIGHTNING = "tuner.integrations.lightning"
TRAINERS = {"pytorch_lightning": LIGHTNING, "lightning": LIGHTNING, "transformers": "tuner.integrations.transformers"}
_importing: list[Path] = []  # space files being imported now; `search` refuses to start inside such an import
_modules: list[str] = []  # the names by which they are imported; empty for a file that is given by its path
_trial: list[Trial] = []  # the trial that this process runs, if it runs one


class Ended(BaseException):
    """Ends a trial's script before code that needs many trials' results; the worker reports `value` if not None."""

    def __init__(self, value: Any = None) -> None:
        super().__init__("the trial has ended")
        self.value = value


class Declared(BaseException):
    """Ends the import of a file once its space is declared; only trials run the rest of the file."""

    def __init__(self, space: Space) -> None:
        super().__init__("the file's space is declared")
        self.space = space


@dataclass
class Trial:
    """The trial that runs in this process, the search's metric and mode, and the metric that the scheduler compares."""

    config: dict[str, Any]
    metric: str
    mode: str = "min"
    compared: str = ""  # empty = the metric
    others: Sequence[str] = ()  # the further metrics, if there are several
    read: bool = False  # whether `script`, argparse, `wandb.init` or Optuna passed parameters to its code
    reported: bool = False  # whether `tuner.integrations.wandb` has reported the compared metric
    answered: bool = False  # whether it has reported the searched metric
    pid: int = field(default_factory=os.getpid)  # the trial's own process; `wandb.log` does nothing in others
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)  # cleans up at the trial's end
    at_end: Callable[[], None] | None = None  # called at the script's end, unless an error ended it


def script(params: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Makes the calling file a space: each trial runs the whole file with its own parameters.

    Call it at the top of a script, above everything that trains. It returns the trial's parameters; they are empty when
    the script runs without tuner. The script reports with `ray.tune.report`.

    Args:
        params: name -> Ray domain or constant, as in `Space`. Unless the script uses the returned dict, W&B or Optuna,
            a name must be that of a command-line option, or of a variable, argument or key with a constant value.
        options: other fields of `Space`, such as `metric`. A trial ends at report number `max_epochs`, by default 1000.
    """
    if trial := running():
        trial.read = True
        return dict(trial.config)
    if path := importing():
        raise Declared(script_space(path, params, **options))
    return {}


def script_space(path: Path, params: Mapping[str, Any], **options: Any) -> Space:
    """Returns the space whose trials run this file; ValueError or RequestError for a mistake that spoils all trials."""
    text = script_text.source_of(path)
    train = Script(str(path), text, _modules[-1] if _modules else "")
    if not train.module and (line := script_text.relative_import(text)):
        name = script_text.names_of(path)[-1]
        name = name if "." in name else f"{path.parent.name}.{name}"
        raise RequestError(
            f"{path}, line {line}, imports from its own package: give --space {name}, in the folder in which "
            f"`python -m {name}` runs it"
        )
    script_text.check_reports(text, path)
    fields = {"max_epochs": script_text.MOST_REPORTS, **script_text.of_study(text, path), **options}
    space = Space(params=params, train=train, **fields)
    script_text.check_options(text, path, params)
    script_text.check_names(text, path, space.params.keys() - train.targets(space.params).keys())
    return space


def importing() -> Path | None:
    return _importing[-1] if _importing else None


def check_declared(function: str) -> None:
    """Raises ValueError if a space's file, while it is imported, calls a function that only trials should call."""
    if importing():
        text = "was called before the file declared its space; put tuner.script({...}), with the parameters, above it"
        raise ValueError(f"{function} {text}")


def running() -> Trial | None:
    return _trial[-1] if _trial else None


@contextlib.contextmanager
def imported(path: Path, module: str = "") -> Iterator[None]:
    """Marks a file as being imported for its space; hides this process's command-line arguments from the file.

    `module` is the name by which it is imported; empty if the file is given by its path.
    """
    with contextlib.ExitStack() as stack:
        _importing.append(path)
        _modules.append(module)
        stack.callback(_importing.pop)
        stack.callback(_modules.pop)
        _replace(stack, sys, argv=[str(path)])
        yield


@contextlib.contextmanager
def in_trial(
    config: dict[str, Any], metric: str, mode: str = "min", compared: str = "", others: Sequence[str] = ()
) -> Iterator[Trial]:
    """Passes a trial's parameters to the code in a `with` block: through `script`, W&B, Optuna and argparse."""
    trial = Trial(config, metric, mode, compared or metric, others)
    with trial.stack:
        _trial.append(trial)
        trial.stack.callback(_trial.pop)
        _replace(trial.stack, sys, argv=[""])
        _into_argparse(trial)
        yield trial


def _replace(stack: contextlib.ExitStack, owner: Any, **values: Any) -> None:
    """Sets attributes of an object until the stack closes."""
    for name, value in values.items():
        stack.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)


def _into_argparse(trial: Trial) -> None:
    """Makes each parameter the default of argparse's options and arguments of its name; its errors raise ValueError."""
    config, original = trial.config, argparse.ArgumentParser.parse_known_args

    def parse(parser: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
        given = sys.argv[1:] if args is None else list(args)
        for action in parser._actions:
            flags = (flag.lstrip("-").replace("-", "_") for flag in action.option_strings)
            name = next((name for name in (action.dest, *flags) if name in config), None)
            if name is None:
                continue
            trial.read = True
            if isinstance(action, argparse._SubParsersAction):
                given = given or [str(config[name])]  # a subcommand has no default: its name must be an argument
            else:
                action.default, action.required = config[name], False
                action.nargs = action.nargs if action.option_strings else "?"
        return original(parser, given, namespace)

    def error(parser: argparse.ArgumentParser, message: str) -> Any:
        raise ValueError(f"the script's command line: {message}; give such options as constants in params")

    _replace(trial.stack, argparse.ArgumentParser, error=error, parse_known_args=parse)


def _into_click(stack: contextlib.ExitStack, config: Mapping[str, Any]) -> None:
    command: Any = importlib.import_module("click").Command
    original = command.make_context

    def make_context(self: Any, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        return original(self, info_name, args, parent, **{**extra, "default_map": dict(config)})

    _replace(stack, command, make_context=make_context)


@dataclass(frozen=True)
class Script:
    """The function of a script's trials: runs the file as Python would, as `__main__`, with the trial's parameters."""

    path: str
    source: str  # the file's text: all trials of a session run it, even if the file changes meanwhile
    module: str = ""  # its name if it runs as `python -m NAME` does; empty if it runs as `python FILE`

    def targets(self, names: Iterable[str]) -> dict[str, str]:
        """Says how parameters reach the script: `{"lr": "--lr", "gamma": "in place of the constant in line 4"}`."""
        words = options_of(self.source)
        for text in self._beside().values():
            words = options_of(text) | words
        for file, constants in self._constants(names).items():
            of = "" if str(file) == self.path else f" of {file.name}"
            for name, lines in constants.lines.items():
                s = "s" if len(lines) > 1 else ""
                numbers = ", ".join(map(str, sorted(lines)))
                words.setdefault(name, f"in place of the constant{s} in line{s} {numbers}{of}")
        return {name: words[name] for name in names if name in words}

    def check_reporting(self, metric: str) -> None:
        """Raises RequestError unless a Python file of the folder or a subfolder mentions something that reports."""
        folder = Path(self.path).parent
        texts = [self.source, *python_files(folder).values(), *python_files(folder, "*/*.py").values()]
        if not any(word in text for text in texts for word in REPORTING):
            raise RequestError(
                f'{self.path} never reports a metric: write tune.report({{"{metric}": value}}) where an epoch has its '
                f"value"
            )

    def _beside(self) -> dict[Path, str]:
        path = Path(self.path)
        return {file: text for file, text in python_files(path.parent).items() if file != path}

    def _constants(self, names: Iterable[str]) -> dict[Path, Constants]:
        """Returns, by file, the constants that parameters replace in the script and in imported modules beside it.

        An option takes precedence over constants of its file and of modules, and the script's constant over a module's.
        """
        modules = imported_by(self.source, self._beside())
        own = Constants(self.path, self.source, set(names) - options_of(self.source).keys())
        left = set(names).difference(own.lines, *map(options_of, (self.source, *modules.values())))
        found = {Path(self.path): own}
        for file, text in modules.items() if left else ():
            with contextlib.suppress(SyntaxError):
                found[file] = Constants(file, text, left)
        return found

    def __call__(self, config: dict[str, Any]) -> None:
        path, files = Path(in_trial_folder(self.path)), self._constants(config)
        own, module = files.pop(Path(self.path)), ModuleType("__main__")
        module.__file__ = str(path)  # in the trial's own folder, as is sys.path[0]: a script may look around itself
        folder = path.parent
        if self.module:
            vars(module).update(__package__=self.module.rpartition(".")[0], __spec__=ModuleSpec(self.module, None))
            folder = path.parents[self.module.count(".")]
        changes = {name: each for file, each in files.items() if each.lines for name in script_text.names_of(file)}
        changed = ChangedModules(changes, config)
        with contextlib.ExitStack() as stack:
            stack.callback(sys.modules.__setitem__, "__main__", sys.modules["__main__"])
            stack.callback(_forget_modules, folder, before=set(sys.modules))
            stack.callback(sys.meta_path.remove, changed)
            _replace(stack, sys, argv=[str(path)], path=[str(folder), *sys.path])
            sys.meta_path.insert(0, changed)
            sys.modules["__main__"] = module  # pickle looks up the script's classes in __main__
            if imports(self.source, "click"):
                _into_click(stack, config)
            for trainer in self._trainers():
                stack.enter_context(importlib.import_module(trainer).automatic())
            own.run(config, module.__dict__)

    def _trainers(self) -> set[str]:
        """Imports the script's Trainers; returns the modules that report for them, or none if its own code reports."""
        texts = [self.source, *imported_by(self.source, self._beside()).values()]
        if any(word in text for text in texts for word in ("report(", "TunerCallback", "tuner.integrations")):
            return set()
        packages = [each for each in TRAINERS if imports(self.source, each) and "Trainer(" in self.source]
        for package in packages:
            importlib.import_module(package)  # the integration uses whichever package is imported
        return {TRAINERS[package] for package in packages}


class ChangedModules(MetaPathFinder, Loader):
    """Makes Python import modules beside a script with parameters in place of their constants."""

    def __init__(self, modules: Mapping[str, Constants], config: Mapping[str, Any]) -> None:
        self._modules, self._config = modules, config

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        known = name in self._modules
        return spec_from_file_location(name, in_trial_folder(self._modules[name].file), loader=self) if known else None

    def create_module(self, spec: ModuleSpec) -> None:
        return None  # Python creates the module as usual

    def exec_module(self, module: ModuleType) -> None:
        self._modules[module.__name__].run(self._config, module.__dict__)


def _forget_modules(folder: Path, before: set[str]) -> None:
    """Makes the worker's next trial import the modules of a script's folder anew, with its own parameters."""
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if isinstance(file, str) and Path(file).is_relative_to(folder) and "-packages" not in file:
            del sys.modules[name]
