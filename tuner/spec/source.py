"""Reads the text of a user's script before any trial runs: finds mistakes, and options of a search that it declares."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from tuner.errors import RequestError

REPORT = ("metrics", "checkpoint", "checkpoint_dir_name", "data")  # the arguments of `tune.report`
ONE_METRIC = "but a search has one metric"
MODES = {"minimize": "min", "maximize": "max"}
MOST_REPORTS = 1000  # the default of --max-epochs for an Optuna script: its objective declares none


def check_reports(source: str, path: object) -> None:
    """Raises RequestError for a call such as `tune.report(loss=loss)`: the function takes a dictionary."""
    for node in _calls(ast.parse(source), "report"):
        names = [each.arg for each in node.keywords if each.arg and each.arg not in REPORT]
        if _owner(node) in ("tune", "train", "session", "") and names and not node.args:
            written = ", ".join(
                f'"{each.arg}": {ast.unparse(each.value)}' for each in node.keywords if each.arg in names
            )
            raise RequestError(
                f"{ast.unparse(node)} ({path}, line {node.lineno}): report takes a dictionary; "
                f"write tune.report({{{written}}})"
            )


def check_options(source: str, path: object, params: Mapping[str, Any]) -> None:
    """Raises RequestError for a parameter with a value that `type=int` or `choices=[...]` of its option refuses."""
    for node in _calls(ast.parse(source), "add_argument"):
        flags = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        given = {each.arg: each.value for each in node.keywords}
        names = {flag.lstrip("-").replace("-", "_"): flag for flag in flags}
        kind = getattr(given.get("type"), "id", "")
        for name in names.keys() & params.keys():
            place = f"{names[name]} ({path}, line {node.lineno})"
            if kind == "int" and (wrong := _not_whole(params[name])):
                raise RequestError(
                    f"parameter {name!r} is {wrong}, but {place} takes whole numbers; write tune.randint(low, high), "
                    f"tune.qrandint or a tune.choice of whole numbers"
                )
            allowed = _literal(given.get("choices"))
            if isinstance(allowed, (list, tuple, set)) and (wrong := _not_in(params[name], allowed)):
                raise RequestError(
                    f"parameter {name!r} has the value {wrong}, but {place} takes {', '.join(map(repr, allowed))}"
                )


def of_study(source: str, path: object) -> dict[str, Any]:
    """Returns the fields of a Space for a script's Optuna study, with the mode and number of trials that it declares.

    Raises:
        RequestError: the study has several directions, the script optimizes several objectives, or it imports Optuna
            itself, so that each trial would run the whole study.
    """
    tree = ast.parse(source)
    created = list(_calls(tree, "create_study"))
    if not created:
        return {}
    for node in created:
        given = {each.arg: _literal(each.value) for each in node.keywords}
        if isinstance(several := given.get("directions"), (list, tuple)) and len(several) > 1:
            raise RequestError(
                f"the study has {len(several)} objectives ({path}, line {node.lineno}), {ONE_METRIC}: let the "
                f"objective return one number, and write direction={several[0]!r}"
            )
    for line in _imports(tree, "optuna", "create_study"):
        raise RequestError(
            f"each trial would run the whole study: replace the import of optuna ({path}, line {line}) by "
            f"from tuner.integrations import optuna"
        )
    optimized = {ast.unparse(node.args[0]): node.lineno for node in _calls(tree, "optimize") if node.args}
    if len(optimized) > 1:
        lines = ", ".join(map(str, optimized.values()))
        raise RequestError(
            f"the script optimizes several objectives ({path}, lines {lines}), but a trial runs one: search one of "
            f"them, as Space(params=..., train=with_trial({list(optimized)[-1]}), metric='value')"
        )
    directions = [_literal(each.value) for node in created for each in node.keywords if each.arg == "direction"]
    mode = MODES.get(str(directions[-1]).lower().rpartition(".")[2]) if directions else "min"
    numbers = [
        _literal(each.value) for node in _calls(tree, "optimize") for each in node.keywords if each.arg == "n_trials"
    ]
    count = {"num_samples": numbers[-1]} if numbers and isinstance(numbers[-1], int) and numbers[-1] > 0 else {}
    return {"metric": "value", "max_epochs": MOST_REPORTS, **({"mode": mode} if mode else {}), **count}


def returned_tuple(function: Any) -> str:
    """Returns where a function returns several values (`file, line 12`); empty if it does not, or has no known text."""
    while hasattr(function, "func"):  # `func` of a functools.partial is its function
        function = function.func
    function = function if inspect.isroutine(function) else type(function).__call__
    try:
        lines, first = inspect.getsourcelines(function)
        (tree,) = ast.parse(textwrap.dedent("".join(lines))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return ""
    for node in _returns(tree) if isinstance(tree, ast.FunctionDef) else ():
        if isinstance(node.value, ast.Tuple) and len(node.value.elts) > 1:
            return f"{inspect.getsourcefile(function)}, line {first + node.lineno - 1}"
    return ""


def never_reports(path: str, texts: Mapping[Any, str], metric: str) -> None:
    """Raises RequestError if no text mentions a function that reports, or a library that reports by itself."""
    words = ("report", "Trainer(", "TunerCallback", "tuner.integrations", "wandb", "TuneReport")
    if not any(word in text for text in texts.values() for word in words):
        raise RequestError(
            f'{path} never reports a metric: write tune.report({{"{metric}": value}}) where an epoch has its value'
        )


def _calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == name:
            yield node


def _owner(node: ast.Call) -> str:
    """Returns the name before the last dot of a call: `tune` of `tune.report(...)`; empty for `report(...)`."""
    return ast.unparse(node.func.value).rpartition(".")[2] if isinstance(node.func, ast.Attribute) else ""


def _imports(tree: ast.AST, package: str, name: str) -> Iterator[int]:
    """Yields the line numbers of `import package` and of `from package import name`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(each.name == package for each in node.names):
            yield node.lineno
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == package:
            if any(each.name == name for each in node.names):
                yield node.lineno


def _literal(node: ast.AST | None) -> Any:
    """Returns the value of a literal; for another expression, its code as text."""
    if node is None:
        return None
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return ast.unparse(node)


def _not_whole(domain: Any) -> str:
    """Returns, as text, a parameter's domain or value that is no whole number; empty if there is none."""
    from ray.tune.search.sample import Categorical, Float

    if isinstance(domain, Float):
        return f"tune.{'loguniform' if 'Log' in type(domain.get_sampler()).__name__ else 'uniform'}"
    values = domain.categories if isinstance(domain, Categorical) else [domain]
    wrong = [each for each in values if isinstance(each, float)]
    return repr(wrong[0]) if wrong else ""


def _not_in(domain: Any, allowed: Any) -> str:
    """Returns a parameter's value that is not allowed, as text; empty if there is none."""
    from ray.tune.search.sample import Categorical, Domain

    values = domain.categories if isinstance(domain, Categorical) else [] if isinstance(domain, Domain) else [domain]
    wrong = [each for each in values if each not in allowed]
    return repr(wrong[0]) if wrong else ""


def _returns(tree: ast.AST) -> Iterator[ast.Return]:
    """Yields the return statements of a function, without those of functions and classes in it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Return):
            yield node
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            yield from _returns(node)
