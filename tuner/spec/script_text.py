"""Reads the text of a user's script: finds mistakes, an Optuna study, and the constants that parameters replace."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from importlib.util import decode_source
from pathlib import Path
from typing import Any

from tuner.errors import RequestError, nearest
from tuner.spec import domains, parameters
from tuner.spec.arrived import key_of, text_of

CONFIG = "__tuner_config__"  # the name, in the globals of a script, of the function that gives the trial's values
CONSTANT = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.List, ast.Tuple, ast.operator, ast.unaryop, ast.expr_context)
# Functions of dataclasses, pydantic and typer whose first argument or `default=` is a field's default value.
FIELDS = ("field", "Field", "Option", "Argument")
INTERMEDIATE = "intermediate_value"  # the metric that an Optuna objective reports for the pruner
OPTIMIZE = ("func", "n_trials", "timeout", "n_jobs", "catch", "callbacks")  # arguments of Study.optimize, in order
# What a search does not use of a study: arguments, with their default values, and methods.
UNUSED = {"storage": None, "sampler": None, "pruner": None, "timeout": None, "n_jobs": 1, "callbacks": None}
UNUSED_METHODS = ("enqueue_trial", "add_trial", "add_trials")
DIRECTIONS = {"minimize": "min", "maximize": "max", "none": "min"}
COMMAND = "command"  # the parameter that names the subcommand of a script with click or typer
CONFIG_FILES = ("yaml", "yml", "json", "toml", "ini", "cfg", "conf", "txt")  # kinds that a script may read
MOST_FILES = 200  # maximum number of a folder's files that are searched for parameters and reports
REPORT = ("metrics", "checkpoint", "checkpoint_dir_name", "data")  # arguments of `report` functions, not metrics
MOST_REPORTS = 1000  # a script's default of --max-epochs; a smaller one may end a trial before the script's last lines


def python_files(folder: Path, pattern: str = "*.py") -> dict[Path, str]:
    """Returns the Python files of a folder with their text, MOST_FILES at most."""
    files = [file for file in sorted(folder.glob(pattern))[:MOST_FILES] if file.is_file()]
    return {file: source_of(file) for file in files}


def source_of(file: Path) -> str:
    """Returns a Python file's text in the encoding that Python uses: by a BOM, by a line as in PEP 263, or UTF-8."""
    content = file.read_bytes()
    try:
        return decode_source(content)
    except (SyntaxError, UnicodeDecodeError):
        return content.decode(errors="replace")


def relative_import(source: str) -> int:
    """Returns the line of a script's first top-level `from . import x` outside of a `try`; 0 if it has none."""
    lines = (node.lineno for node in ast.parse(source).body if isinstance(node, ast.ImportFrom) and node.level)
    return next(lines, 0)


def names_of(file: Path) -> list[str]:
    """Returns the names by which a file may be imported, such as `train` and `package.train`, the longest last."""
    names = [file.stem]
    for folder in file.parents:
        if not (folder / "__init__.py").is_file():
            break
        names.append(f"{folder.name}.{names[-1]}")
    return names


def imports(source: str, module: str) -> bool:
    """Whether an import statement of the source text contains this name."""
    return re.search(rf"(?m)^\s*(import|from)\s.*\b{re.escape(module)}\b", source) is not None


def imported_by(source: str, files: Mapping[Path, str]) -> dict[Path, str]:
    """Returns the files whose modules a script imports, directly or through another of the files."""
    found: dict[Path, str] = {}
    texts = [source]
    for text in texts:
        new = {file: own for file, own in files.items() if file not in found and imports(text, file.stem)}
        found |= new
        texts += new.values()
    return found


def options_of(source: str) -> dict[str, str]:
    """Returns parameter -> option (`lr` -> `--lr`) for strings such as `"--lr"`; adds argparse arguments and dests."""
    options = re.findall(r"""["'](--?[A-Za-z][\w-]*)(?:/--?[\w-]+)?["']|add_argument\(\s*["'](\w+)["']""", source)
    dests = re.findall(r"""\bdest\s*=\s*["'](\w+)["']""", source)
    words = {flag.strip("-").replace("-", "_"): flag for flag, _ in options if flag}
    if re.search(r"(click\.group|Typer)\(", source):
        words[COMMAND] = "the command of its command line"
    return words | {name: f"{name} of its command line" for name in [*dests, *(name for _, name in options if name)]}


class Constants(ast.NodeTransformer):
    """A file in which each parameter replaces constants of its name: `lr = 1`, `f(lr=1)`, `def f(lr=1)`, `{"lr": 1}`.

    `lines` has, for each parameter, the numbers of the lines in which it replaces a constant.
    """

    def __init__(self, file: Path | str, text: str, names: Set[str]) -> None:
        self.file, self.names = str(file), names
        self.lines: dict[str, set[int]] = {}
        self.tree: ast.Module = ast.fix_missing_locations(self.visit(ast.parse(text, self.file)))

    def run(self, value_of: Callable[[str, Any], Any], namespace: dict[str, Any]) -> None:
        """Execute the file; `value_of` gets a parameter's name and the constant, and returns the one to use."""
        namespace[CONFIG] = value_of
        exec(compile(self.tree, self.file, "exec", dont_inherit=True), namespace)

    def visit(self, node: ast.AST) -> Any:
        """Replaces, in a node and the nodes inside it, constants by parameters; skips calls that declare parameters."""
        match node:
            case ast.Call() if declares(node):
                return node
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)) if len(names) == len(values):
                values[:] = map(self._value, names, values)
            case ast.Assign(targets=[target]) | ast.AnnAssign(target=target):
                node.value = self._value(target, node.value)
            case ast.keyword():
                node.value = self._value(node, node.value)
            case ast.arguments():
                named = [*node.posonlyargs, *node.args][-len(node.defaults) :]
                node.defaults = list(map(self._value, named, node.defaults))
                node.kw_defaults = list(map(self._value, node.kwonlyargs, node.kw_defaults))
            case ast.Dict():
                keys = [key if isinstance(key, ast.Constant) else None for key in node.keys]
                node.values = list(map(self._value, keys, node.values))
        return self.generic_visit(node)

    def _value(self, named: ast.AST | None, value: Any) -> Any:
        """Returns the parameter `named` if `value` is a constant, else `value`; changes defaults in FIELDS calls."""
        name = _name(named)
        if name is None or name not in self.names or value is None:
            return value
        if isinstance(value, ast.Call) and _name(value.func) in FIELDS:
            for each in value.keywords:
                each.value = self._value(named, each.value) if each.arg == "default" else each.value
            value.args[:1] = [self._value(named, each) for each in value.args[:1]]
            return value
        if not all(isinstance(each, CONSTANT) for each in ast.walk(value)):
            return value
        self.lines.setdefault(name, set()).add(value.lineno)
        return ast.copy_location(ast.Call(ast.Name(CONFIG, ast.Load()), [ast.Constant(name), value], []), value)


def declares(node: ast.AST) -> bool:
    """Whether a node is a call of W&B's `sweep` or of `script`, but not of `torch.jit.script`."""
    return isinstance(node, ast.Call) and bool(re.search(r"(?<!jit\.)\b(script|sweep)$", ast.unparse(node.func)))


def reads_config(source: str) -> bool:
    """Whether parameters may reach a script through W&B, Optuna, HfArgumentParser or the result of `script`."""
    nodes = list(ast.walk(ast.parse(source)))
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    elsewhere = ("wandb", "suggest_", "HfArgumentParser")
    return any(word in source for word in elsewhere) or any(declares(node) and id(node) not in alone for node in nodes)


def check_reports(source: str, path: object) -> None:
    """Raises RequestError for a call such as `tune.report(loss=loss)`: the function takes a dictionary."""
    for node in _calls(ast.parse(source), "report"):
        metrics = [each for each in node.keywords if each.arg and each.arg not in REPORT]
        owner = ast.unparse(node.func.value).rpartition(".")[2] if isinstance(node.func, ast.Attribute) else ""
        if owner in ("tune", "train", "session", "") and metrics and not node.args:
            written = ", ".join(f'"{each.arg}": {ast.unparse(each.value)}' for each in metrics)
            raise RequestError(
                f"{ast.unparse(node)} ({path}, line {node.lineno}): report takes a dictionary; "
                f"write tune.report({{{written}}})"
            )


def check_options(source: str, path: object, params: Mapping[str, Any]) -> None:
    """Raises RequestError for a parameter with a value that `type=int` or `choices=[...]` of its option refuses."""
    for node in _calls(ast.parse(source), "add_argument"):
        given = {each.arg: _literal(each.value) for each in node.keywords}
        for flag in [str(each.value) for each in node.args if isinstance(each, ast.Constant)]:
            name = key_of(flag)
            if name not in params or parameters.is_nested(params[name]):
                continue
            place = f"{flag} ({path}, line {node.lineno})"
            domain = params[name]
            described = {"values": [domain]} if domains.is_constant(domain) else domains.describe(domain)
            kind, values = described.get("kind", ""), described.get("values", ())
            fractions = [f"tune.{kind}"] if "uniform" in kind else [repr(v) for v in values if isinstance(v, float)]
            if given.get("type") == "int" and fractions:
                raise RequestError(
                    f"parameter {name!r} is {fractions[0]}, but {place} takes whole numbers; write "
                    f"tune.randint(low, high), tune.qrandint or a tune.choice of whole numbers"
                )
            allowed: Any = given.get("choices")
            for value in values if isinstance(allowed, (list, tuple, set)) else ():
                if value not in allowed and value != given.get("default"):
                    listed = ", ".join(map(repr, allowed))
                    raise RequestError(f"parameter {name!r} has the value {value!r}, but {place} takes {listed}")


def check_names(source: str, path: Path, unread: Set[str]) -> None:
    """Raises ValueError if parameters are `unread` (no option or constant has the name) and cannot reach the script."""
    if unread and not reads_config(source):
        name, words = min(unread), set(re.findall(r"[A-Za-z_]\w*", source.replace("-", "_"))) - unread
        hint = nearest(name, words) or nearest(name.upper(), words)
        raise ValueError(
            f"parameter {name!r} would reach nothing in {path.name}{hint}; give it the name of an "
            f"option or of a constant of the script, or use what script() returns"
        )


def of_study(source: str, path: object, beside: Iterable[str] = (), mode: Any = None) -> dict[str, Any]:
    """Returns the fields of a Space that a script's Optuna study declares; RequestError if tuner cannot search it.

    `beside` has the texts of modules that the script imports; `mode` is the mode that `script` was given, if any.
    """
    tree = ast.parse(source)
    created, optimized = list(_calls(tree, "create_study")), list(_calls(tree, "optimize"))
    created = created or list(_calls(tree, "load_study"))
    if not created:
        return {}
    given = {each.arg: _literal(each.value) for node in (*created, *optimized) for each in node.keywords}
    for call in optimized:
        given |= dict(zip(OPTIMIZE, map(_literal, call.args), strict=False))
    if isinstance(several := given.get("directions"), (list, tuple)) and len(several) > 1:
        raise RequestError(
            f"the study has {len(several)} objectives ({path}, line {created[0].lineno}), but a search has one metric: "
            f"let the objective return one number, and write direction={several[0]!r}"
        )
    for node in (each for each in ast.walk(tree) if isinstance(each, (ast.Import, ast.ImportFrom))):
        statement = ast.unparse(node)
        if re.match(r"import (.*, )?optuna\b|from optuna\b.*\bcreate_study\b", statement):
            raise RequestError(
                f"each trial would run the whole study: replace {statement} ({path}, line {node.lineno}) by "
                f"from tuner.integrations import optuna"
            )
    objectives = {ast.unparse(node.args[0]): str(node.lineno) for node in optimized if node.args}
    if len(objectives) > 1:
        raise RequestError(
            f"the script optimizes several objectives ({path}, lines {', '.join(objectives.values())}), but a trial "
            f"runs one: search one of them, as Space(params=..., train=with_trial({list(objectives)[-1]}), "
            f"metric='value')"
        )
    num_trials, mode = given.get("n_trials"), mode or _mode_of(created, [tree, *map(_parsed, beside)], path)
    trials = {"num_samples": num_trials} if isinstance(num_trials, int) and num_trials > 0 else {}
    reports = any(map(reports_to_pruner, (source, *beside)))
    # What the objective reports is for the pruner; as in Optuna, only what it returns is its value.
    pruning = {"prune_by": INTERMEDIATE, "prune_mode": mode} if reports else {}
    keys = [_literal(node.args[0]) for node in _calls(tree, "set_constraint") if node.args]
    constraints = {"constraints": {key: "<= 0" for key in keys if isinstance(key, str)}} if keys else {}
    unused = [name for name, default in UNUSED.items() if given.get(name, default) != default]
    unused += [name for name in UNUSED_METHODS if any(_calls(tree, name))]
    notes = [f"not used of the study: {', '.join(unused)}; see docs/moving.md"] if unused else []
    if num_trials is not None and not trials:
        notes += [f"n_trials={num_trials} is known only when the script runs: --num-samples is the number of trials"]
    if any(
        each.arg == "constraints_func"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for each in node.keywords
    ):
        notes += ["constraints_func is not used, so the answer may violate it: call trial.set_constraint(name, value)"]
    return {"metric": "value", "mode": mode, "notes": notes, **pruning, **trials, **constraints}


def line_that_sets(path: Path, name: str, value: str) -> tuple[Path, int] | None:
    """Returns the file and line that give a name this value, a text of `text_of`; None if none is found.

    Looks in the script, in the modules of its folder and of packages there that it imports, and in the configuration
    files of the folder and its subfolders.
    """
    own, beside = path.read_text(encoding="utf-8", errors="replace"), python_files(path.parent)
    below = {file: text for file, text in python_files(path.parent, "*/*.py").items() if imports(own, file.parent.name)}
    found: list[tuple[Path, int]] = []
    for file, text in ({path: own} | imported_by(own, beside) | below).items():
        tree = _parsed(text)
        entries = [([key], given) for key, given in _entries(tree) if key is not None]
        for targets, given in sorted([*_assignments(tree), *entries], key=lambda each: each[1].lineno):
            named = [_name(each.slice if isinstance(each, ast.Subscript) else each) for each in targets]
            if name in named and text_of(_literal(given)) == value:
                found.append((file, given.lineno))
    line = re.compile(rf"""\s*(?:- +)?["']?-*{re.escape(name)}["']?\s*[:= ]\s*["']?([^"'#,]*)""")
    folders = [f"{folder}*.{kind}" for folder in ("", "*/") for kind in CONFIG_FILES]
    for file, text in {k: v for each in folders for k, v in python_files(path.parent, each).items()}.items():
        lines = [(n, line.match(each)) for n, each in enumerate(text.splitlines(), 1)]
        found += [(file, n) for n, match in lines if match and text_of(match[1]) == value]
    return next(iter([each for each in found if each[0] == path][-1:] or found[-1:]), None)


def reports_to_pruner(source: str) -> bool:
    """Whether a text calls Optuna's `trial.report(value, step)`, or makes a callback that does."""
    tree = _parsed(source)
    makes_callback = re.search(r"PruningCallback\(", source) is not None
    return makes_callback or any(
        len(c.args) == 2 or "step" in [k.arg for k in c.keywords] for c in _calls(tree, "report")
    )


def _mode_of(created: Iterable[ast.Call], trees: Iterable[ast.Module], path: object) -> str:
    """Returns the mode of a study's direction, which may be a constant of the script or of a module beside it."""
    constants: dict[str, dict[str, ast.expr]] = {}
    for targets, assigned in (each for tree in trees for each in _assignments(tree)):
        for name in filter(None, map(_name, targets)):
            constants.setdefault(name, {})[ast.unparse(assigned)] = assigned
    found: dict[str, str] = {}
    for call in created:
        given = {each.arg: each.value for each in call.keywords}
        unknown = None in given or _name(call.func) == "load_study"  # create_study(**options)
        value: ast.expr = given.get("direction", given.get("directions", ast.Constant(None)))
        for _ in range(3):  # a name, of a list, of a name
            if isinstance(value, (ast.List, ast.Tuple)) and len(value.elts) == 1:
                value = value.elts[0]
            elif isinstance(value, (ast.Name, ast.Attribute)):
                values = list(constants.get(str(_name(value)), {}).values())
                value = values[0] if len(values) == 1 else value
        written = str(_literal(value)).lower().rpartition(".")[2]
        if written not in DIRECTIONS or (unknown and not given.keys() & {"direction", "directions"}):
            raise RequestError(
                f"the study's direction is known only when the script runs ({path}, line {call.lineno}: "
                f'{ast.unparse(call)[:100]}); say it to the search, too: script({{...}}, mode="max")'
            )
        found[DIRECTIONS[written]] = str(call.lineno)
    if len(found) > 1:
        lines = ", ".join(sorted(found.values(), key=int))
        raise RequestError(f"the script has studies of both directions ({path}, lines {lines}); search one of them")
    return next(iter(found))


def _assignments(tree: ast.Module) -> Iterator[tuple[list[ast.expr], ast.expr]]:
    """Yields the targets and the value of each assignment: of `a = b = 1` and `a: int = 1`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value:
            yield [node.target], node.value


def _entries(tree: ast.Module) -> Iterator[tuple[Any, ast.expr]]:
    """Yields the key and the value of each entry of a dictionary, and of each keyword of a call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            yield from zip(node.keys, node.values, strict=True)
        elif isinstance(node, ast.keyword):
            yield node, node.value


def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError:  # of a file beside the script, which need not be for this version of Python
        return ast.Module([], [])


def _calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node.func) == name)


def _name(node: ast.AST | None) -> str | None:
    """Returns the last name of a variable, attribute, argument or key: `lr` for `args.lr`, `lr=` and `"lr":`."""
    names = (getattr(node, attribute, None) for attribute in ("id", "attr", "arg", "value"))
    return next((name for name in names if isinstance(name, str)), None)


def _literal(node: ast.expr) -> Any:
    """Returns the value of a literal, or the code of another expression as text."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return ast.unparse(node)
