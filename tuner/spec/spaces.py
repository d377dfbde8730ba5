"""Finds and imports the space that a name, a path or a module refers to."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import re
import sys
import threading
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import ModuleType

from tuner.errors import InterruptedEarly, RequestError, nearest
from tuner.errors.users_code import innermost_frame, is_importing, is_tuners, place_of, place_raised, shown_path
from tuner.spec import sweep
from tuner.spec.command import Command, fields_of, is_command
from tuner.spec.experiment import Experiment, Options
from tuner.spec.option_values import option
from tuner.spec.patience import patience
from tuner.spec.script import Declared, imported
from tuner.spec.space import Space
from tuner.training.task import Task

SPACE_FILES = (".py", *sweep.SUFFIXES)  # the endings of files that declare a space
MOST_MESSAGE = 160  # maximum characters of a user's error that an error text quotes

WITH_SWEEPS = "tuner.integrations.wandb"  # a file that imports this integration may declare its space as a W&B sweep
FINITE = "; write tune.uniform(low, high), or another domain, with finite numbers"
ADVICE = {  # words of an import's error -> what to do
    "recursion depth": "; a function, or a dictionary in params, contains itself",
    "requires a lower bound": FINITE,
    "requires a upper bound": FINITE,
    "relative import": (
        "; a file that is given by its path is in no package: give --space package.module, or import without the "
        "leading dot"
    ),
    "EOF when reading": '; the file asks for input when it is imported: put that under if __name__ == "__main__":',
}
CAUSE = (  # the usual cause of an import that takes long
    "; the usual cause is a training loop or an input() at the top level: put it under "
    'if __name__ == "__main__":, or call script({...}) above it, so that each trial runs the file'
)
_parsing = threading.Lock()
MAIN = "__main__"  # a space that is defined in a script or a notebook is named `__main__:VARIABLE`


@dataclass(frozen=True)
class LoadedSpace:
    """A space, and the file or module from which it was loaded."""

    space: Space
    name: str  # the value of `--space` that finds it, or `__main__:VARIABLE` for a space of a script or notebook
    path: Path | None  # None for a space without a file, such as one of a notebook
    sha256: str  # digest of the file; without a file, of the functions' source texts; empty if these are unknown
    module: str

    @property
    def options(self) -> Options:
        """The options that this space declares for a search; the caller's options take precedence."""
        return replace(self.space.options, space=self.name)

    @property
    def label(self) -> str:
        """The space's short name, with which the default names of its experiments begin."""
        if is_in_main(self.name):
            script = self.path or getattr(sys.modules[MAIN], "__file__", None)
            return Path(script).stem.strip("_") if script else "notebook"
        program = self.space.train.program if isinstance(self.space.train, Command) else self.name
        stem = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(program).stem)[:80]  # only characters that --name allows
        return stem if re.match("[A-Za-z0-9]", stem) else f"space_{stem.strip('_')}"


def space_files() -> dict[str, Path]:
    """Returns name -> path for each file in `search_spaces/` except `_*.py`, sorted by name."""
    return {path.stem: path for path in sorted(_folder().glob("*.py")) if not path.name.startswith("_")}


def list_spaces() -> dict[str, str]:
    """Returns name -> first docstring line for each file in `search_spaces/`; imports nothing."""
    return {name: _about(path) for name, path in space_files().items()}


def parsed(path: Path) -> ast.Module:
    """Parses a Python file, one thread at a time: two threads that parse at once may raise SystemError in 3.11."""
    with _parsing:
        return ast.parse(path.read_bytes())


def is_path(name: str) -> bool:
    """Whether `--space` is a path to a file, rather than a name in `search_spaces/` or a module."""
    return not is_command(name) and (split_path(name)[0].endswith(SPACE_FILES) or "/" in name)


def split_path(name: str) -> tuple[str, str]:
    """Splits `my_space.py:other` into the path and the attribute, which is empty if `name` has none."""
    path, _, attribute = name.rpartition(":")
    return (path, attribute) if path.endswith(".py") and attribute.isidentifier() else (name, "")


def is_in_main(name: str) -> bool:
    """Whether a space was defined in a script or notebook, so that only that program can use it."""
    return name.partition(":")[0] == MAIN


def locate_space(name: str) -> tuple[Path | str, str]:
    """The file or module that `--space` refers to, and the requested attribute; imports nothing.

    Raises RequestError for a missing file, an unknown name, or a space of a script or notebook.
    """
    module_name, _, attribute = name.partition(":")
    if is_in_main(name):
        raise RequestError(
            f"--space {name}: the space was defined in a script or notebook, so it can only be used there, from "
            f'Python: tuner.search(space, resume="NAME") resumes its search, tuner.load_best(FOLDER, space=space) '
            f"loads its best model"
        )
    known = space_files()
    if is_path(name) or (module_name not in known and Path(name).exists()):
        path, attribute = split_path(name)
        file = Path(path)
        if file.suffix in SPACE_FILES and file.is_file():
            return file, attribute
        folder = file if file.is_dir() else file.parent
        what = "is a folder; give the .py file" if file.is_dir() else f"no such file in {folder.absolute()}"
        if file.suffix == ".ipynb":
            what = "is a notebook; call tuner.search(space) in it, or save its cells as a .py file"
        elif file.is_file():
            what = "is no .py file; give the file that has space = Space(...)"
        raise RequestError(
            f"--space {name}: {what}{nearest(file.name, sorted(each.name for each in folder.glob('*.py')))}"
        )
    if "." in module_name:
        return module_name, attribute
    if module_name in known:
        return f"search_spaces.{module_name}", attribute
    raise RequestError(
        f"no space named {name!r}{nearest(name, known)}; known: {', '.join(known)}; "
        f"or give a path to a .py file or package.module:attribute"
    )


def file_of(name: str) -> Path | None:
    """The file that `find_space` runs for this name, or None if it does not exist; imports nothing."""
    if is_command(name):
        return None
    try:
        origin, _ = locate_space(name)
    except RequestError:
        return None
    path = origin.resolve() if isinstance(origin, Path) else _origin(origin.split("."))
    return path if path.is_file() else None


def mentions_torch(name: str) -> bool:
    """Guesses whether the trials of a space import torch; a wrong guess costs seconds. Errors as in `locate_space`."""
    if is_command(name):
        return False
    locate_space(name)
    path = file_of(name)
    return path is None or b"torch" in (text := path.read_bytes()) or b"Task" in text


def find_space(name: str) -> LoadedSpace:
    """Imports a space: a name in `search_spaces/`, `FILE.py[:attribute]`, or `package.module[:attribute]`.

    A file `sweep.yaml` of W&B is read.

    A name that `tuner.spec.command.name_of` has made stands for a command.
    """
    if is_command(name):
        try:
            sha256 = hashlib.sha256(name.encode()).hexdigest()
            return LoadedSpace(Space(**fields_of(name)), name, None, sha256, "")
        except ValueError as error:
            raise RequestError(str(error)) from None
    origin, attribute = locate_space(name)
    if isinstance(origin, Path) and origin.suffix in sweep.SUFFIXES:
        try:
            of_sweep = sweep.space_of(origin)
        except (ValueError, OverflowError, OSError) as error:
            raise RequestError(f"--space {name}: {error}") from None
        return LoadedSpace(of_sweep, name, origin.resolve(), hashlib.sha256(origin.read_bytes()).hexdigest(), "")
    try:
        with patience(f"importing {name}", CAUSE):
            module = _import_file(origin.resolve()) if isinstance(origin, Path) else _import_module(origin, name)
    except KeyboardInterrupt as error:
        why = "" if is_importing(innermost_frame(error)) else CAUSE
        raise InterruptedEarly(f"interrupted while importing {name}{place_raised(error)}{why}") from None
    space = getattr(module, attribute or "space", None)
    if not isinstance(space, Space):
        raise RequestError(f"--space {name}: {_no_space(name, module, attribute or 'space', space)}")
    path = Path(str(module.__file__))
    return LoadedSpace(space, name, path, hashlib.sha256(path.read_bytes()).hexdigest(), module.__name__)


def _no_space(name: str, module: ModuleType, attribute: str, value: object) -> str:
    others = [other for other, each in vars(module).items() if isinstance(each, Space)]
    missing = f"has no {attribute} = Space(...) at module level"
    if others:
        place = split_path(name)[0] if is_path(name) else name.partition(":")[0]
        return f"{missing}, but {', '.join(others)}; give --space {place}:{others[0]}"
    if value is not None:
        return f"{missing}: {attribute} is a {type(value).__name__}{place_of(value)}; write Space(params=..., task=...)"
    if "script(" in Path(str(module.__file__)).read_text(encoding="utf-8", errors="replace"):
        return f"{missing}; call script(...) there, above everything else: a file that is imported stops at the call"
    return (
        f"{missing}; add it. A script that trains by itself needs three lines instead: from tuner import script, tune; "
        f"script({{...}}), above everything else; and tune.report({{...}}) for each epoch (docs/spaces.md)"
    )


def _folder() -> Path:
    return Path(__file__).parent.parent.parent / "search_spaces"


def _about(path: Path) -> str:
    try:
        return (ast.get_docstring(parsed(path)) or "").partition("\n")[0]
    except (SyntaxError, ValueError) as error:
        return f"(does not parse: {error})"


def _origin(parts: list[str]) -> Path:
    """Finds a module's file without an import: `importlib.util.find_spec` would import the packages that contain it."""
    places, origin = None, ""
    for end, part in enumerate(parts, 1):
        name = ".".join(parts[:end])
        finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
        try:
            spec = next(filter(None, (finder.find_spec(name, places) for finder in finders)), None)
            below = list(spec.submodule_search_locations or ()) if spec else []
        except KeyError:  # for a folder without __init__.py, Python needs the parent in sys.modules
            spec, below = None, [str(place) for one in places or sys.path if (place := Path(one, part)).is_dir()]
        places, origin = below, (spec and spec.origin) or ""
    return Path(origin)


def _import_module(module_name: str, name: str) -> ModuleType:
    path = _origin(module_name.split("."))
    try:
        with imported(path, module_name):
            return importlib.import_module(module_name)
    except Declared as declared:
        module = ModuleType(module_name)
        vars(module).update(__file__=str(path), space=declared.space)
        return module
    except (Exception, SystemExit) as error:
        given, what = name.partition(":")[0], _import_error(error)
        if isinstance(error, ModuleNotFoundError) and f"{given}.".startswith(f"{error.name}."):
            what = f"{error}, and no such file in {Path.cwd()}; give FILE.py or package.module"
        raise RequestError(f"--space {name}: {what}") from error


def _import_file(path: Path) -> ModuleType:
    # With a digest in the module's name, a process can load two files of the same name, and a changed file once more.
    source = path.read_bytes()
    digest = hashlib.sha256(bytes(path) + source).hexdigest()[:8]
    name = f"tuner_space_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # so that the file can import modules beside it
    try:
        with imported(path):
            # The text is compiled here, because the module's loader may run a stale file of __pycache__.
            code = compile(source, str(path), "exec", dont_inherit=True)
            exec(code, module.__dict__)
            sweeps = sys.modules.get(WITH_SWEEPS)
            if sweeps and not hasattr(module, "space") and any(each is sweeps for each in vars(module).values()):
                # W&B's scripts declare their sweep under `if __name__ == "__main__":`: run the file again as main.
                exec(code, {**module.__dict__, "__name__": MAIN})
    except Declared as declared:
        module.space = declared.space  # type: ignore[attr-defined]
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise RequestError(f"--space {shown_path(path)}: {_import_error(error, path)}") from error
    return module


def _import_error(error: BaseException, path: Path | None = None) -> str:
    """The text for an import's error, with the user's file and line, and what to do about it."""
    if isinstance(error, RequestError):  # a declaration that tuner refuses: the text says where
        return str(error)
    if isinstance(error, ValueError) and is_tuners(error):  # a wrong Space
        return with_line(f"{error}{place_raised(error)}", path)
    if isinstance(error, SyntaxError):
        place = f" ({shown_path(str(error.filename))}, line {error.lineno})" if error.lineno else ""
        return f"does not parse: {error.msg}{place}"
    advice = next((text for words, text in ADVICE.items() if words in str(error)), "")
    if isinstance(error, ModuleNotFoundError) and error.name:
        advice = f"; install {error.name.partition('.')[0]!r} for {sys.executable}, or correct the name"
    if isinstance(error, SystemExit):
        advice = (
            "; a space file is imported without arguments and must not exit: put what parses a command line, and what "
            "runs, under if __name__ == '__main__':"
        )
    return f"does not import: {with_line(with_place(error), path)}{advice}"


def line_written(path: Path | None, pattern: str) -> str:
    """Returns the number of the file's last line that matches a pattern, as `line 7`; empty if no line matches."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path else []
    except OSError:
        return ""
    return next((f"line {n}" for n in range(len(lines), 0, -1) if re.search(pattern, lines[n - 1])), "")


def with_line(text: str, path: Path | None) -> str:
    """Adds the line of a parameter to a text that names the parameter: `parameter 'lr' (line 7): ...`."""
    match = re.search(r"\bparameter '([^']+)'", text)
    key = match and rf"""["']{re.escape(match[1])}["']\s*:"""
    line = key and (line_written(path, rf"{key}.*\btune\.") or line_written(path, key))
    return f"{text[: match.end()]} ({line}){text[match.end() :]}" if match and line else text


def metric_option(space: LoadedSpace, metric: str, field: str = "metric") -> str:
    """Names the source of a search's metric: `metric='loss' (my_space.py, line 7)` of the Space, or `--metric loss`."""
    own = getattr(space.space, field)
    if metric not in ((own,) if isinstance(own, str) else own):
        return f"{option(field)} {metric}"
    line = line_written(space.path, rf"\b{field}\s*=")
    return f"{field}={metric!r}{line and f' ({shown_path(space.path)}, {line})'}"


def compared_option(space: LoadedSpace, experiment: Experiment) -> str:
    """Names the source of the metric that the scheduler compares, as `metric_option` does."""
    return metric_option(space, experiment.compared.metric, "prune_by" if experiment.prune_by else "metric")


def with_place(error: BaseException) -> str:
    """The error as text, with the file and line of the user's code that raised it, if any did."""
    message = _unknown_argument(str(error)) or message_of(error)
    return f"{type(error).__name__}{message and ': '}{message}{place_raised(error)}"


def message_of(error: BaseException) -> str:
    """The message of an error in one line, cut after MOST_MESSAGE characters."""
    message = " ".join(str(error).split()).rstrip(".")
    return message if len(message) <= MOST_MESSAGE else f"{message[:MOST_MESSAGE].rstrip()} ..."


def _unknown_argument(text: str) -> str:
    """Text for an unknown argument of Space, Task or a class of tuner.training.data, with known names; else empty."""
    if match := re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", text):
        data = sys.modules.get("tuner.training.data")
        owner = {"Space": Space, "Task": Task}.get(match[1]) or getattr(data, match[1], None)
        known = [each.name for each in fields(owner)] if is_dataclass(owner) else []
        hint = nearest(match[2], known) or f"; it takes {', '.join(known)}"
        return f"{match[1]} has no argument {match[2]!r}{hint}" if known else ""
    return ""
