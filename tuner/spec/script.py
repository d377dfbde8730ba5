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
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from multiprocessing import spawn
from pathlib import Path
from types import ModuleType
from typing import Any

from wrapt import when_imported

from tuner.errors import RequestError
from tuner.errors.users_code import enter_trial, entered, trial_path
from tuner.spec import script_text
from tuner.spec.arrived import Seen, by_path, key_of, look
from tuner.spec.script_text import COMMAND, Constants, imported_by, options_of, python_files
from tuner.spec.space import Space
from tuner.spec.spawned import running_in_spawned

CONNECTED = "tuner.integrations.connected"  # connects Trainers; importing the module here would be a cycle
CLICKS = "click", "typer._click"  # packages that parse command lines: click, and typer's copy of it
# How the errors of a script's command line begin, and what to do about them.
COMMAND_LINE, AS_CONSTANTS = "the script's command line:", "give such options as constants in params"
_importing: list[Path] = []  # space files being imported now; `search` refuses to start inside such an import
_modules: list[str] = []  # the names by which they are imported; empty for a file that is given by its path
_trial: list[Trial] = []  # the trial that this process runs, if it runs one
_spawned = contextlib.ExitStack()  # open as long as a process that a trial has spawned


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
    parsed_names: set[str] = field(default_factory=set)  # the parameters that options have taken
    read: bool = False  # whether `script`, argparse, `wandb.init` or Optuna passed parameters to its code
    steps: Any = None  # what `tuner.integrations.wandb` knows of the steps that were logged
    pid: int = field(default_factory=os.getpid)  # the trial's own process; `wandb.log` does nothing in others
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)  # cleans up at the trial's end
    at_end: Callable[[], None] | None = None  # called at the script's end, unless an error ended it
    held: dict[str, Any] = field(default_factory=dict)  # name -> what has the parameters, such as `wandb.config`
    parsed: list[Any] = field(default_factory=list)  # what the command line's parsers have returned
    num_reports: Callable[[], int] = int  # so far
    num_of_trainer: int | None = None  # of them by a Trainer that has got its callback by `connected`; None without one
    seen: dict[str, Seen] | None = None  # what `look` has returned

    def __post_init__(self) -> None:
        self.own = dict(by_path(self.config))  # the code may change the dictionaries in `config`

    def value_of(self, name: str, constant: Any) -> Any:
        """Returns what a constant of the script becomes: the parameter's value, unless an option has taken that."""
        return constant if name in self.parsed_names else self.config[name]

    def look(self) -> dict[str, Seen]:
        """Returns what is alive of the parameters; looks once, at the first report or when the script ends."""
        if self.seen is None:
            self.seen = look(self.own, self.held, self.parsed)
        return self.seen


def script(params: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Makes the calling file a space: each trial runs the whole file with its own parameters.

    Call it at the top of a script, above everything that trains. It returns the trial's parameters; they are empty when
    the script runs without tuner. The script reports with `ray.tune.report`.

    Args:
        params: name -> Ray domain or constant, as in `Space`. Unless the script uses the returned dict, W&B or Optuna,
            a name must be that of a command-line option, or of a variable, argument or key with a constant value.
        options: other fields of `Space`, such as `metric`, and `length="epochs"`, which names the script's number of
            epochs. Without `length`, a trial ends at report number `max_epochs`, by default 1000.
    """
    if trial := running():
        trial.read = True
        return dict(trial.config)
    if path := importing():
        raise Declared(script_space(path, params, **options))
    # Without a search, `tune.report` does nothing, and Ray warns at each call.
    warnings.filterwarnings("ignore", "`report` is meant to only be called")
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
    study = script_text.of_study(text, path, train.texts()[1:], options.get("mode"))
    usual = {} if options.get("length") else {"max_epochs": script_text.MOST_REPORTS}
    fields = {**usual, **study, **options}
    space = Space(params=params, train=train, **fields)
    script_text.check_options(text, path, params)
    script_text.check_names(text, path, {*space.names} - train.targets(space.names).keys())
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
    """Gives each parameter to argparse's option or argument of its name, as if typed; its errors raise ValueError."""
    config, original = trial.config, argparse.ArgumentParser.parse_known_args

    def parse(parser: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
        given, words = sys.argv[1:] if args is None else list(args), list[str]()
        with contextlib.ExitStack() as stack:
            values = _values_by_dest(parser, config)
            trial.parsed_names |= {key_of(each) for action in parser._actions for each in _names_of(action)} & {*config}
            trial.read = trial.read or bool(values)
            for action in (action for action in parser._actions if action.dest in values):
                value = values[action.dest]
                if isinstance(action, argparse._SubParsersAction):
                    given = given or [str(value)]  # a subcommand has no default: its name must be an argument
                elif typed := _typed(parser, action, value):
                    words += typed
                else:
                    nargs = action.nargs if action.option_strings else "?"
                    _replace(stack, action, default=value, required=False, nargs=nargs)
                    if hasattr(namespace, action.dest):  # argparse would leave it as it is
                        setattr(namespace, action.dest, value)
            for group in parser._mutually_exclusive_groups:
                if any(action.dest in values for action in group._group_actions):
                    _replace(stack, group, required=False)
            # The last word of an option counts: the trial's, not a config file's, unless something takes the rest.
            takes_rest = any(each.nargs in (argparse.PARSER, argparse.REMAINDER) for each in parser._actions)
            at = 0 if takes_rest else given.index("--") if "--" in given else len(given)
            parsed, rest = original(parser, [*given[:at], *words, *given[at:]], namespace)
        trial.parsed.append(parsed)
        return parsed, rest

    def error(parser: argparse.ArgumentParser, message: str) -> Any:
        is_value = message.startswith("argument ")
        advice = "search values that the option takes" if is_value else AS_CONSTANTS
        raise ValueError(f"{COMMAND_LINE} {message}; {advice}")

    _replace(trial.stack, argparse.ArgumentParser, error=error, parse_known_args=parse)


def _names_of(action: argparse.Action) -> list[str]:
    return [action.dest, *action.option_strings]


def _typed(parser: argparse.ArgumentParser, action: argparse.Action, value: Any) -> list[str]:
    """Returns the words by which a person would give a value to an option; empty if the value becomes the default.

    That is so for flags, arguments without a name, None, and what nobody can type, such as a dictionary, or a list for
    an option of one value.
    """
    adds = isinstance(action, argparse._AppendAction) and action.nargs is None
    takes_one = action.nargs in (None, argparse.OPTIONAL)
    values = list(value) if isinstance(value, (list, tuple)) and (adds or not takes_one) else [value]
    is_typed = all(isinstance(each, (str, int, float)) for each in values)
    if not action.option_strings or action.nargs == 0 or not is_typed:
        return []
    flag, words = action.option_strings[-1], [_word(parser, action, each) for each in values]
    if takes_one:
        return [f"{flag}={word}" for word in words]  # a word may begin with a dash
    return [flag, *words]


def _word(parser: argparse.ArgumentParser, action: argparse.Action, value: Any) -> str:
    """Returns the word for a value: 32 for 32.0 (of tune.quniform) and 1 for True if the option takes no other."""
    if value is False and action.type is bool:
        return ""  # bool() of any other word is True
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        try:
            parser._get_value(action, str(value))
        except argparse.ArgumentError:
            return str(int(value))
    return str(value)


def _values_by_dest(parser: argparse.ArgumentParser, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns dest -> value for the parameters that name a dest, or else a flag: then as if the flag were given."""
    values: dict[str, Any] = {}
    for action in parser._actions:
        constant = action.const if action.nargs == 0 else None
        if isinstance(action, argparse._AppendConstAction):
            constant = [*(action.default or ()), constant]
        for flag in action.option_strings:
            if (name := key_of(flag)) in config and action.dest not in config:
                inverts = isinstance(action, argparse.BooleanOptionalAction) and flag.startswith("--no-")
                values |= _given({name: config[name]}, constant, action.dest, inverts=inverts)
    return values | {action.dest: config[action.dest] for action in parser._actions if action.dest in config}


def _given(parameter: dict[str, Any], constant: Any, dest: str, *, inverts: bool) -> dict[str, Any]:
    """Returns the value of `dest` if a parameter has the name of a flag: the flag's constant, if the parameter is True.

    A flag with a constant takes no value. If the parameter is False, the flag is not given. `inverts` marks a flag such
    as `--no-cache`.
    """
    ((name, value),) = parameter.items()
    if inverts or constant is None or (value == constant and not isinstance(value, bool)):
        return {dest: not value if inverts else value}
    if not isinstance(value, bool):
        raise ValueError(f"{COMMAND_LINE} {name}={value!r}: the option takes no value; search True and False")
    return {dest: constant} if value else {}


def _into_click(stack: contextlib.ExitStack, config: Mapping[str, Any], core: Any) -> None:
    """Makes each parameter the default of click's options of its name; a parameter `command` names the subcommand."""
    original = core.Command.make_context

    def make_context(self: Any, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        defaults = extra.get("default_map", self.context_settings.get("default_map")) or {}
        values = {name: value for each in self.params for name, value in _values_of_click(each, config).items()}
        if trial := running():
            flags = {flag for each in self.params for flag in (each.name, *each.opts, *each.secondary_opts)}
            trial.parsed_names |= set(map(key_of, flags)) & {*config}
        if not args and getattr(self, "commands", None) and not self.invoke_without_command:
            if COMMAND not in config:
                names = ", ".join(self.commands)
                why = f"it has the subcommands {names}, and none is given"
                raise ValueError(
                    f"{COMMAND_LINE} {why}; name one in params, such as {{{COMMAND!r}: {names.split(', ')[0]!r}}}"
                )
            args = [str(config[COMMAND])]
        try:
            return original(self, info_name, args, parent, **{**extra, "default_map": {**defaults, **values}})
        except Exception as error:
            if hasattr(error, "format_message"):  # click's own, which it would print before it calls sys.exit
                raise ValueError(f"{COMMAND_LINE} {error.format_message().rstrip('.')}; {AS_CONSTANTS}") from error
            raise

    _replace(stack, core.Command, make_context=make_context)


def _values_of_click(param: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the value that the parameters give to one of click's options or arguments, by its name."""
    if param.name in config:
        return {param.name: config[param.name]}
    constant = param.flag_value if getattr(param, "is_flag", False) else None
    for flags, inverts in ((param.opts, False), (param.secondary_opts, True)):
        for name in filter(config.__contains__, map(key_of, flags)):
            return _given({name: config[name]}, constant, param.name, inverts=inverts)
    return {}


@dataclass(frozen=True)
class Script:
    """The function of a script's trials: runs the file as Python would, as `__main__`, with the trial's parameters.

    It runs in a process of the trial's own, which stays the script's: what the script sets is not set back.
    """

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

    def __call__(self, config: dict[str, Any], name: str = "__main__") -> None:
        path, files = Path(trial_path(self.path)), self._constants(config)
        own, module = files.pop(Path(self.path)), ModuleType(name)
        module.__file__ = str(path)  # in the trial's own folder, as is sys.path[0]: a script may look around itself
        folder = path.parent
        if self.module:
            vars(module).update(__package__=self.module.rpartition(".")[0], __spec__=ModuleSpec(self.module, None))
            folder = path.parents[self.module.count(".")]
        modules = {each: found for file, found in files.items() if found.lines for each in script_text.names_of(file)}
        with contextlib.ExitStack() as stack:
            sys.argv, sys.path = [str(path)], [str(folder), *sys.path]
            trial = running()
            value_of = trial.value_of if trial else lambda name, constant: config[name]
            sys.meta_path.insert(0, ChangedModules(modules, value_of))
            sys.modules["__main__"] = sys.modules[name] = module  # pickle looks up the script's classes in __main__
            for package in CLICKS:
                when_imported(f"{package}.core")(partial(_into_click, stack, config))
            importlib.import_module(CONNECTED).connect_trainers(stack)
            if trial:
                passed = trial.config, trial.metric, trial.mode, trial.compared, trial.others
                again = running_in_spawned(partial(run_again, self, passed, trial.pid, entered()))
                _replace(stack if name == "__main__" else _spawned, spawn, get_preparation_data=again)
            own.run(value_of, module.__dict__)
            if trial:
                trial.look()  # while the script's variables are alive

    def texts(self) -> list[str]:
        """Returns the text of the script and those of the modules beside it that it imports."""
        return [self.source, *imported_by(self.source, self._beside()).values()]


def run_again(train: Script, passed: tuple[Any, ...], pid: int, where: tuple[Path | None, str]) -> None:
    """Run the script again in a process that the trial has spawned.

    Args:
        passed: the arguments of `in_trial`.
        pid: of the trial's own process.
        where: what `entered` returns there.
    """
    enter_trial(*where)
    _spawned.enter_context(in_trial(*passed)).pid = pid
    train(passed[0], "__mp_main__")


class ChangedModules(MetaPathFinder, Loader):
    """Makes Python import modules beside a script with parameters in place of their constants."""

    def __init__(self, modules: Mapping[str, Constants], value_of: Callable[[str, Any], Any]) -> None:
        self._modules, self._value_of = modules, value_of

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        known = name in self._modules
        return spec_from_file_location(name, trial_path(self._modules[name].file), loader=self) if known else None

    def create_module(self, spec: ModuleSpec) -> None:
        return None  # Python creates the module as usual

    def exec_module(self, module: ModuleType) -> None:
        self._modules[module.__name__].run(self._value_of, module.__dict__)
