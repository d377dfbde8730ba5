"""Finds and imports the space that a name, a path or a module refers to."""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import ModuleType

from tuner.errors import InterruptedEarly, RequestError, nearest
from tuner.errors.users_code import innermost_frame, is_importing, is_tuners, place_of, place_raised, shown_path
from tuner.spec.patience import patience
from tuner.spec.script import Declared, imported
from tuner.spec.space import Space
from tuner.training.task import Task

IMPORT_S = 5.0  # seconds after which a line says what is imported; torch and Ray together take 3 s
MOST_MESSAGE = 160  # maximum characters of a user's error that an error text quotes

WITH_SWEEPS = "tuner.integrations.wandb"  # a space file that imports this module may declare its space as a W&B sweep
MAIN = "__main__"  # a space that is defined in a script or a notebook is named `__main__:VARIABLE`


@dataclass(frozen=True)
class LoadedSpace:
    """A loaded space with its origin: the name that was requested, its file, and the file's sha256.

    A space of a notebook has no file; its sha256 is that of its functions' source texts (`tuner.spec.live`).
    """

    space: Space
    name: str
    path: Path | None
    sha256: str
    module: str

    @property
    def label(self) -> str:
        """The space's short name, with which the names of its experiments begin."""
        if is_live(self.name):
            script = self.path or getattr(sys.modules[MAIN], "__file__", None)
            return Path(script).stem.strip("_") if script else "notebook"
        stem = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(self.name).stem)[:80]  # only what a folder's --name may have
        return stem if re.match("[A-Za-z0-9]", stem) else f"space_{stem.strip('_')}"


def list_spaces() -> dict[str, str]:
    """Name -> first docstring line of each file in `search_spaces/`, except names that begin with `_`; imports none."""
    files = sorted(path for path in _folder().glob("*.py") if not path.name.startswith("_"))
    return {path.stem: _about(path) for path in files}


def is_path(name: str) -> bool:
    """Whether `--space` is a path to a file, rather than a name in `search_spaces/` or a module."""
    return split_path(name)[0].endswith(".py") or "/" in name


def split_path(name: str) -> tuple[str, str]:
    """`my_space.py:other` -> the path and the requested attribute, which is empty if the name has none."""
    path, _, attribute = name.rpartition(":")
    return (path, attribute) if path.endswith(".py") and attribute.isidentifier() else (name, "")


def is_live(name: str) -> bool:
    """Whether a space was defined in a script or notebook, so that only that program can use it."""
    return name.partition(":")[0] == MAIN


def locate_space(name: str) -> tuple[Path | str, str]:
    """The file or module that `--space` refers to, and the requested attribute; imports nothing.

    Raises:
        RequestError: no such file, an unknown name (the text suggests the nearest), or a space of a script or notebook.
    """
    module_name, _, attribute = name.partition(":")
    if is_live(name):
        raise RequestError(
            f"--space {name}: the space was defined in a script or notebook, so it can only be used there, from "
            f'Python: tuner.search(space, resume="NAME") resumes its search, tuner.load_best(FOLDER, space=space) '
            f"loads its best model"
        )
    known = list_spaces()
    if is_path(name) or (module_name not in known and Path(name).exists()):
        path, attribute = split_path(name)
        if Path(path).suffix == ".ipynb":
            what = "is a notebook; call tuner.search(space) in it, or save its cells as a .py file"
            raise RequestError(f"--space {name}: {what}")
        if Path(path).is_file() and Path(path).suffix != ".py":
            raise RequestError(f"--space {name}: is no .py file; give the file that has space = Space(...)")
        if not Path(path).is_file():
            what = "is a folder; give the .py file" if Path(path).is_dir() else "no such file"
            beside = Path(path) if Path(path).is_dir() else Path(path).parent
            files = sorted(each.name for each in beside.glob("*.py"))
            hint = nearest(Path(path).name, files)
            here = f" in {beside.absolute()}" if what == "no such file" else ""
            raise RequestError(f"--space {name}: {what}{here}{hint}")
        return Path(path), attribute
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
    module_name = name.partition(":")[0]
    if is_live(name):
        return None
    if is_path(name):
        path = Path(split_path(name)[0]).resolve()
    elif "." not in module_name:
        path = _folder() / f"{module_name}.py"
    else:
        path = _origin(module_name.split("."))
    return path if path.is_file() else None


def mentions_torch(name: str) -> bool:
    """Guesses from the source of the space whether its trials import torch; True if the source is not found.

    A wrong guess costs only seconds at the start: workers import torch needlessly, or not before their first trial.

    Raises:
        RequestError: the file is missing, or the name is unknown.
    """
    locate_space(name)
    path = file_of(name)
    return path is None or b"torch" in (text := path.read_bytes()) or b"Task" in text


def find_space(name: str) -> LoadedSpace:
    """Imports a space: a name in `search_spaces/`, `FILE.py[:attribute]`, or `package.module[:attribute]`.

    Raises:
        RequestError: the name is unknown, the file does not import (the text has its error, file and line), or the
            module has no Space.
    """
    place, attribute = locate_space(name)
    with _told_if_long(name):
        module = _import_file(place.resolve()) if isinstance(place, Path) else _import_module(place, name)
    space = getattr(module, attribute or "space", None)
    if not isinstance(space, Space):
        raise RequestError(f"--space {name}: {_no_space(name, module, attribute or 'space', space)}")
    path = Path(str(module.__file__))
    return LoadedSpace(space, name, path, hashlib.sha256(path.read_bytes()).hexdigest(), module.__name__)


@contextlib.contextmanager
def _told_if_long(name: str) -> Iterator[None]:
    """Says once, IMPORT_S after the start of an import or after Ctrl-C, which line runs and what the usual cause is."""
    cause = (
        "the usual cause is a training loop or an input() at the top level: put it under "
        'if __name__ == "__main__":, or call script({...}) above it, so that each trial runs the file'
    )
    try:
        with patience(f"importing {name}", f"; {cause}", first_s=IMPORT_S, once=True):
            yield
    except KeyboardInterrupt as error:
        why = "" if is_importing(innermost_frame(error)) else f"; {cause}"
        raise InterruptedEarly(f"interrupted while importing {name}{place_raised(error)}{why}") from None


def _no_space(name: str, module: ModuleType, attribute: str, value: object) -> str:
    """Why a module has no Space of this name, and what to write."""
    others = [other for other, each in vars(module).items() if isinstance(each, Space)]
    missing = f"has no {attribute} = Space(...) at module level"
    if others:
        place = split_path(name)[0] if is_path(name) else name.partition(":")[0]
        return f"{missing}, but {', '.join(others)}; give --space {place}:{others[0]}"
    if value is None and "script(" in Path(str(module.__file__)).read_text(encoding="utf-8", errors="replace"):
        return (
            f"{missing}; call script(...) at module level, above everything else: a file that is imported stops there"
        )
    if value is None:
        return (
            f"{missing}; add it. A script that trains by itself needs three lines instead: from tuner import script, "
            f"tune; script({{...}}), above everything else; and tune.report({{...}}) for each epoch (docs/spaces.md)"
        )
    return f"{missing}: {attribute} is a {type(value).__name__}{place_of(value)}; write Space(params=..., task=...)"


def _folder() -> Path:
    return Path(__file__).parent.parent.parent / "search_spaces"


def _about(path: Path) -> str:
    try:
        return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
    except SyntaxError as error:
        return f"(does not parse: {error.msg}, line {error.lineno})"
    except ValueError as error:  # Python before 3.11.4 raises it for a null byte
        return f"(does not parse: {error})"


def _origin(parts: list[str]) -> Path:
    """The file of a module, without an import: `importlib.util.find_spec` would import the packages around it."""
    places, origin = None, ""
    for end, part in enumerate(parts, 1):
        name = ".".join(parts[:end])
        finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
        try:
            spec = next(filter(None, (finder.find_spec(name, places) for finder in finders)), None)
            below = list(spec.submodule_search_locations or ()) if spec else []
        except KeyError:  # the finder of a folder without __init__.py needs the parent in sys.modules
            spec, below = None, [str(place) for one in places or sys.path if (place := Path(one, part)).is_dir()]
        places, origin = below, (spec and spec.origin) or ""
    return Path(origin)


def _import_module(module_name: str, asked: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        module = asked.partition(":")[0]
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            what = f"{error}, and no such file in {Path.cwd()}; give FILE.py or package.module"
            raise RequestError(f"--space {asked}: {what}") from error
        raise RequestError(f"--space {asked}: {_where(error)}") from error


def _import_file(path: Path) -> ModuleType:
    # The module's name contains a digest of the path and the text, so that one process can load two files of one name
    # or of one text, and a file again after a change.
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
        sys.path.append(str(path.parent))  # to import modules beside the file; workers get these paths too
    try:
        with imported(path):
            # The text is compiled here, because the module's loader may run a stale file of __pycache__.
            code = compile(source, str(path), "exec", dont_inherit=True)
            exec(code, module.__dict__)
            if not hasattr(module, "space") and WITH_SWEEPS in map(_module_name, vars(module).values()):
                # W&B's scripts declare their sweep under `if __name__ == "__main__":`, so such a file runs twice.
                exec(code, {**module.__dict__, "__name__": MAIN})
    except Declared as declared:
        module.space = declared.space  # type: ignore[attr-defined]
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise RequestError(f"--space {shown_path(path)}: {_where(error, path)}") from error
    return module


def _module_name(value: object) -> str:
    return value.__name__ if isinstance(value, ModuleType) else ""


def _where(error: BaseException, path: Path | None = None) -> str:
    """The error with the file and line in the user's code that raised it, if any did (see `users_place`)."""
    if isinstance(error, SyntaxError):
        place = f" ({shown_path(str(error.filename))}, line {error.lineno})" if error.lineno else ""
        return f"does not parse: {error.msg}{place}"
    if isinstance(error, ValueError) and "null bytes" in str(error):  # Python before 3.11.4 raises it
        return f"does not parse: {error}; give a Python file"
    if isinstance(error, RequestError):  # a declaration that tuner refuses: the text says where
        return str(error)
    if isinstance(error, ValueError) and is_tuners(error):  # a wrong Space
        return with_line(f"{error}{place_raised(error)}", path)
    return f"does not import: {with_line(with_place(error), path)}{_advice(error)}"


def _advice(error: BaseException) -> str:
    """What to do about an error at the import of a space; empty for most errors."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"; install {error.name.partition('.')[0]!r} for {sys.executable}, or correct the name"
    if isinstance(error, RecursionError):
        return "; a function, or a dictionary in params, contains itself"
    if "circular import" in str(error):
        return "; move what both files use into a third one"
    if "requires a lower bound" in str(error) or "requires a upper bound" in str(error):
        return "; write tune.uniform(low, high), or another domain, with finite numbers"
    if "relative import" in str(error):
        return "; a file that is given by its path is in no package: import without the leading dot"
    if isinstance(error, EOFError):
        return '; the file asks for input when it is imported: put that under if __name__ == "__main__":'
    if isinstance(error, SystemExit):
        what = "a space file is imported, so it must not exit: put what runs"
        if any(frame.filename == argparse.__file__ for frame in traceback.extract_tb(error.__traceback__)):
            what = "the file parses a command line, but tuner imports it without arguments: put the parsing"
        return f"; {what} under if __name__ == '__main__':"
    return ""


def line_written(path: Path | None, name: str, call: str = "") -> str:
    """`line 7`: a file's last line with this name as a dict's key or, with `call`, as an argument of it; else empty."""
    lines: list[int] = []
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        for node in ast.walk(ast.parse(path.read_text())) if path else ():
            if call and isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == call:
                lines += [each.value.lineno for each in node.keywords if each.arg == name]
            elif not call and isinstance(node, ast.Dict):
                lines += [key.lineno for key in node.keys if isinstance(key, ast.Constant) and key.value == name]
    return f"line {max(lines)}" if lines else ""


def with_line(text: str, path: Path | None) -> str:
    """A text with the line of the parameter that it names: `parameter 'lr' (line 7): ...`."""
    match = re.search(r"\bparameter '([^']+)'", text)
    line = match and line_written(path, match[1])
    return f"{text[: match.end()]} ({line}){text[match.end() :]}" if match and line else text


def metric_option(space: LoadedSpace, metric: str) -> str:
    """Names the source of a search's metric: `metric='loss' (my_space.py, line 7)` of the Space, or `--metric loss`."""
    if metric != space.space.metric:
        return f"--metric {metric}"
    line = line_written(space.path, "metric", "Space")
    return f"metric={metric!r}{line and f' ({shown_path(space.path)}, {line})'}"


def with_place(error: BaseException) -> str:
    """The error as text, with the file and line of the user's code that raised it, if any did."""
    message = _unexpected(error) or message_of(error)
    return f"{type(error).__name__}{message and ': '}{message}{place_raised(error)}"


def message_of(error: BaseException) -> str:
    """The message of an error in one line, cut after MOST_MESSAGE characters."""
    message = " ".join(str(error).split()).rstrip(".")
    return message if len(message) <= MOST_MESSAGE else f"{message[:MOST_MESSAGE].rstrip()} ..."


def _unexpected(error: BaseException) -> str:
    """The text for a missing argument of Space or Task, or an unknown one of these or a data class; else empty."""
    missing = re.match(r"(Space|Task)\.__init__\(\) missing \d+ required [\w\s-]*arguments?: (.+)", str(error))
    if missing:
        return (
            f"{missing[1]} needs the arguments {missing[2]}"
            if "and" in missing[2]
            else f"{missing[1]} needs {missing[2]}"
        )
    match = re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    owner = match and (
        {"Space": Space, "Task": Task}.get(match[1]) or getattr(sys.modules.get("tuner.training.data"), match[1], None)
    )
    if not match or not is_dataclass(owner):
        return ""
    known = [each.name for each in fields(owner)]
    return f"{match[1]} has no argument {match[2]!r}{nearest(match[2], known) or '; it takes ' + ', '.join(known)}"
