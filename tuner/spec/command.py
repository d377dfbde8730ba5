"""Makes a space of a command: each trial runs it, without a shell, with the trial's values as arguments.

A parameter takes the place of its name in braces: `python train.py --lr {lr}`. A parameter without a place is added as
an option. The program reports by `tuner_trial`, a Trainer or a logger, or by printed lines: JSON objects that have the
metric, or text that a regular expression matches. `ways.WAYS` lists them in the order of precedence.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tuner.errors import Parser, RequestError, nearest
from tuner.spec import domains
from tuner.spec.arrived import by_path
from tuner.spec.command_process import CHECKPOINT, CONFIG, NEWEST, Program, Sent, Starter, is_running, search_path
from tuner.spec.ways import NUM_WITH_CHECKPOINT, PRINTED, WAYS, Ways

DOMAINS = (  # of Ray Tune
    "uniform", "quniform", "loguniform", "qloguniform", "randn", "qrandn", "randint", "qrandint", "lograndint",
    "qlograndint", "choice", "grid_search",
)  # fmt: skip
ADDED = "--{key}={value}"
SECRET = re.compile(r"(?i)(api[_-]?key|token|secret|passw(or)?d|credential)s?$")  # the end of an option's name
ESCAPED = r"\{\{([\w./-]+)\}\}"
PLACE = rf"{ESCAPED}|\{{([\w./-]+)\}}"
OWN = ("max_epochs", "cpus", "gpus", "checkpoint", "config")  # names in braces for which a trial has values of its own
MUST_WAIT = (  # else the copy may be of the epoch after, or of half a file
    "the command has saved a checkpoint, but its printed or logged reports do not say of which epoch it is: report by "
    "`tuner_trial.report(metrics)` in Python, or by the program `python -m tuner_trial '{\"loss\": 0.5}'`, which waits"
)
TWO_CHECKPOINTS = "the command saves in {checkpoint}, and reports another checkpoint, too: keep one way"
TWO_PROCESSES = "two processes of the command report, as each rank would: report by one, that of rank 0"
QUOTED = "its last lines:"  # begins what an error quotes of the output
LAST_LINES = 10  # of the output, in the error of a command that fails
MAX_QUOTED_LINE_CHARS = 200  # maximum characters of each


@dataclass(frozen=True)
class Command:
    """Runs a command for each trial.

    Args:
        words: the program and its arguments.
        report: a regular expression with a named group for each metric, such as `val_loss=(?P<val_loss>\\S+)`;
            empty to read JSON lines alone.
        added: the words of a parameter without a place in `words`, with `{key}` and `{value}`.
    """

    words: tuple[str, ...]
    report: str = ""
    added: tuple[str, ...] = (ADDED,)

    def __call__(
        self,
        config: dict[str, Any],
        metrics: Sequence[str],
        folder: Path,
        own: Mapping[str, Any],
        start: Starter = subprocess.Popen,
    ) -> None:
        """Run the command for one trial, and report for it; RuntimeError if it fails or reports nothing.

        Args:
            config: the trial's parameters.
            metrics: a JSON object in the output is a report if it has one of these.
            folder: an empty folder of the trial's own, which the command gets.
            own: the values of OWN that are neither in `config` nor in `folder`.
            start: starts the program.
        """
        from ray import tune

        kept, ways = Kept(folder / CHECKPOINT), Ways(metrics[0])
        kept.restore(tune.get_checkpoint())
        program = Program(self.filled(config, {**own, **places_in(folder)}), folder, config, metrics, start)
        last, waits, pid = deque[str](maxlen=LAST_LINES), None, 0
        try:
            for each in program.heard():
                found: dict[str, Any] = {}
                if isinstance(each, Sent):
                    waits, before = each, ways.by
                    if not each.metrics:
                        ways.announce(each.by)
                    elif ways.counts(each.by, each.metrics, bool(each.checkpoint) or kept.has_files()):
                        found = each.metrics
                    if ways.by == each.by:
                        if ways.by == before and pid not in (0, each.pid) and is_running(pid):
                            raise RuntimeError(TWO_PROCESSES)
                        pid = each.pid
                else:
                    line = each.rstrip("\r").rpartition("\r")[2]  # the last state of a progress bar
                    last.append(line[:MAX_QUOTED_LINE_CHARS])
                    printed = self.metrics_in(line, metrics) if ways.by == PRINTED else {}
                    found = printed if printed and ways.counts(PRINTED, printed) else {}
                if found:
                    saved, sent = kept.changed(), waits.checkpoint if waits else ""
                    if saved and (sent or ways.by in WAYS[NUM_WITH_CHECKPOINT:]):
                        raise RuntimeError(TWO_CHECKPOINTS if sent else MUST_WAIT)
                    saved = saved or sent
                    tune.report(found, checkpoint=tune.Checkpoint.from_directory(saved) if saved else None)
                    if saved:
                        kept.set_newest(tune.get_checkpoint().path if sent else saved)
                if waits:
                    waits.answer()
                    waits = None
        finally:
            program.end(waits)
        if (code := program.process.returncode) == -signal.SIGKILL:
            os.kill(os.getpid(), signal.SIGKILL)  # as for lack of memory: a trial that ends so is retried
        if code:
            raise RuntimeError(f"the command {_ending(code)}; {_told(last)}")
        if not ways.num and not tune.get_checkpoint():  # a resumed one may have reported its last epoch before
            why = f"no process of it reported or logged the metric, and it printed no {self._wanted(metrics)}"
            raise RuntimeError(f"the command has not reported: {why}; {_told(last)}")

    @property
    def program(self) -> str:
        """The first word that ends in .py or .sh, else the program."""
        return next((word for word in self.words if Path(word).suffix in (".py", ".sh")), self.words[0])

    def uses(self, name: str) -> bool:
        """Whether a word has `{name}`."""
        return any(f"{{{name}}}" in re.sub(ESCAPED, "", word) for word in self.words)

    def filled(self, config: Mapping[str, Any], own: Mapping[str, Any] = MappingProxyType({})) -> list[str]:
        """Return the words of a trial: `{{lr}}` becomes `{lr}`, names that are not known stay as they are.

        A parameter takes precedence over a value of the trial's `own`. With a `{config}` file, no words are added.
        """
        given = {path.replace("/", "."): value for path, value in by_path(dict(config)) if not isinstance(value, dict)}
        values = {**own, **given}
        placed: set[str] = set()

        def value_of(match: re.Match[str]) -> str:
            if match[1]:
                return f"{{{match[1]}}}"
            name = match[2].replace("/", ".")
            placed.update({name} & values.keys())
            return written(values[name]) if name in values else match[0]

        words = [re.sub(PLACE, value_of, word) for word in self.words]
        has_file = self.uses("config") and "config" not in given
        added = {} if has_file else {name: given[name] for name in given if name not in placed}
        for name, value in added.items():
            words += [word.replace("{key}", name).replace("{value}", written(value)) for word in self.added]
        return words

    def check_names(self, params: Mapping[str, Any]) -> None:
        """Raise ValueError for a name in braces that misspells a parameter, or for `words=` that would add nothing."""
        known = [path.replace("/", ".") for path, _ in domains.leaves(params)]
        named = {match[2].replace("/", ".") for word in self.words for match in re.finditer(PLACE, word) if match[2]}
        left = [name for name in known if name not in named]
        if self.added != (ADDED,) and (not left or ("config" in named and "config" not in known)):
            raise ValueError(
                f"words={' '.join(self.added)!r} is for parameters without a place in the command, and there is none; "
                "leave it out"
            )
        unknown = sorted(named.difference(known, OWN, ["seed"]))
        wrong = [(name, hint) for name in unknown if (hint := nearest(name, left))]
        if wrong:
            each = "; ".join(f"{{{name}}} is no parameter{hint}" for name, hint in wrong)
            raise ValueError(f"command: {each}; {{{{{wrong[0][0]}}}}} is the text itself")

    def check(self) -> None:
        """Raise RequestError if the program is not found, or the script that Python would run."""
        program, script = self.words[0], Path(self.words[1]) if len(self.words) > 1 else Path()
        what = ""
        if not shutil.which(program, path=search_path()):
            where = "" if os.path.isabs(program) else f" in {os.getcwd()}" if "/" in program else " on PATH"
            is_script = Path(program).suffix == ".py" and Path(program).is_file()
            what = f"{program}: no executable{where}; {f'write python {program}' if is_script else 'correct it'}"
        elif Path(program).name.startswith("python") and script.suffix == ".py" and not re.search(PLACE, str(script)):
            if not script.exists():
                hint = nearest(str(script), [str(each) for each in script.parent.glob("*.py") if each.is_file()])
                what = f"{script}: no such file in {os.getcwd()}{hint or '; correct it'}"
        if what:
            raise RequestError(f"command {' '.join(self.words)!r}: {what}")

    def metrics_in(self, line: str, wanted: Sequence[str]) -> dict[str, Any]:
        """Return the metrics of a line that is a report, else nothing."""
        text = line.strip()
        if text.startswith("{") and text.endswith("}"):
            try:
                found = json.loads(text)
            except (ValueError, RecursionError):  # of a line that is nested too deeply
                found = {}
            if any(name in found for name in wanted):
                # Many programs write NaN as null.
                found |= {name: math.nan for name in wanted if name in found and found[name] is None}
                return {name: value for name, value in found.items() if isinstance(value, (int, float, str))}
        matched = re.search(self.report, line) if self.report else None
        return {name: _number(name, value) for name, value in (matched.groupdict() if matched else {}).items() if value}

    def _wanted(self, metrics: Sequence[str]) -> str:
        by_text = f", and no line that {self.report!r} matches" if self.report else ""
        return f"line with a JSON object that has {' or '.join(dict.fromkeys(metrics))}{by_text}"


class Kept:
    """The folder in which a command saves its checkpoints; it always exists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def has_files(self) -> bool:
        return any(self.folder.iterdir())

    def restore(self, checkpoint: Any) -> None:
        """Copy the trial's checkpoint into the folder, if there is one."""
        if checkpoint:
            with checkpoint.as_directory() as saved:
                shutil.copytree(saved, self.folder, dirs_exist_ok=True)
            self.set_newest(str(self.folder))
        self._before = self._files()

    def set_newest(self, folder: str) -> None:
        """Let `tuner_trial.checkpoint_folder` return this folder: what is in `self.folder` alone may be unfinished."""
        (self.folder.parent / NEWEST).write_text(folder)

    def changed(self) -> str:
        """Return the folder if it has files, and one of them has changed since the last call, else an empty text."""
        before, self._before = self._before, self._files()
        return str(self.folder) if self._before and self._before != before else ""

    def _files(self) -> set[tuple[str, int, int, int]]:
        found = set()
        for path in self.folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # another process has just replaced it
                if stat.S_ISREG((status := path.stat()).st_mode):
                    found.add((str(path), status.st_size, status.st_mtime_ns, status.st_ino))
        return found


def places_in(folder: Path) -> dict[str, str]:
    """Return the values of `{checkpoint}` and `{config}`."""
    return {"checkpoint": str(folder / CHECKPOINT), "config": str(folder / CONFIG)}


def command_of(given: str | Sequence[str], report: str, added: str) -> Command:
    """Return the function of a command, given as a text or as words; ValueError if it cannot be right."""
    try:
        words = shlex.split(given) if isinstance(given, str) else [str(each) for each in given]
        forms = shlex.split(added)
    except ValueError as error:
        raise ValueError(f"command={given!r}, words={added!r}: {error}") from error
    if not words:
        raise ValueError(f"command={given!r}: give a program and its arguments")
    try:
        groups = re.compile(report).groupindex
    except re.error as error:
        raise ValueError(f"report={report!r} is no regular expression ({error})") from error
    if report and not groups:
        raise ValueError(f"report={report!r} names no metric: write (?P<loss>\\S+) where the value of loss is")
    if "{value}" not in added:
        raise ValueError(f"words={added!r}: write {{value}} where the value is, as in {ADDED!r}")
    return Command(tuple(words), report, tuple(forms))


def name_of(params: Sequence[str], report: str, added: str, words: Sequence[str]) -> str:
    """Return the name of the space of a command that is given on the command line, as words from which it is built.

    `params` are texts such as `lr=loguniform(1e-5, 1e-1)`.
    """
    options = [word for each in params for word in ("--param", each)]
    options += ["--report", report] if report else []
    options += ["--words", added] if added != ADDED else []
    return shlex.join([*options, "--", *words])


def is_command(name: str) -> bool:
    """Whether the name of a space is that of a command."""
    return name.startswith("--param ")


def fields_of(name: str) -> dict[str, Any]:
    """Return the fields of the `Space` that `name_of` has named; ValueError or RequestError if they are wrong."""
    parser = Parser(add_help=False)
    parser.add_argument("--param", action="append", default=[])
    parser.add_argument("--report", default="")
    parser.add_argument("--words", default=ADDED)
    options, _, words = split_words(shlex.split(name))
    given = vars(parser.parse_args(options))
    flat, wrong = dict[str, Any](), list[str]()
    for each in given.pop("param"):
        try:
            name, domain = domain_of(each)
            flat[name.replace(".", "/")] = domain
        except ValueError as error:
            wrong.append(str(error))
    if wrong:
        raise ValueError("; ".join(wrong))
    return {"params": domains.nested(flat), "command": words, **given}


def masked(words: Sequence[str]) -> list[str]:
    """Return the words of a command for a reader: with `***` for the value of an option that SECRET finds."""
    shown = list[str]()
    hides_next = False
    for word in words:
        name, equals, _ = word.partition("=")
        is_secret = SECRET.search(name) is not None
        shown.append(
            "***" if hides_next and not word.startswith("-") else f"{name}=***" if equals and is_secret else word
        )
        hides_next = is_secret and not equals and word.startswith("-")
    return shown


def shown_name(name: str) -> str:
    """Return the name of a space for a reader; that of a command is `masked`."""
    return shlex.join(masked(shlex.split(name))) if is_command(name) else name


def split_words(words: Sequence[str]) -> tuple[list[str], bool, list[str]]:
    """Split words at the first `--`; also return whether there is one."""
    at = list(words).index("--") if "--" in words else len(words)
    return list(words[:at]), at < len(words), list(words[at + 1 :])


def domain_of(text: str) -> tuple[str, Any]:
    """Return a parameter's name and its domain of Ray Tune, or its constant; evaluates only numbers and texts.

    `choice(16, 64)` and `grid_search(16, 64)` need no list, and their texts need no quotes.
    """
    name, equals, value = text.partition("=")
    if not (name and equals and value.strip()):
        raise ValueError(f"--param {text!r}: write it as name=domain, such as 'lr=loguniform(1e-5, 1e-1)'")
    called = re.fullmatch(r"\s*(?:tune\.)?([a-z_]+)\((.*)\)\s*", value, re.DOTALL)
    if not called:
        return name, domains.literal(value)
    if called[1] not in DOMAINS:
        hint = nearest(called[1], DOMAINS) or f"; the domains are {', '.join(DOMAINS)}"
        raise ValueError(f"--param {text!r}: {called[1]} is no domain{hint}")
    from ray import tune

    try:
        call = ast.parse(f"f({called[2]})", mode="eval").body
        arguments = [_literal(each) for each in call.args]  # type: ignore[attr-defined]
        options = {each.arg: _literal(each.value) for each in call.keywords}  # type: ignore[attr-defined]
        if called[1] in ("choice", "grid_search") and not (len(arguments) == 1 and isinstance(arguments[0], list)):
            arguments = [arguments]
        return name, getattr(tune, called[1])(*arguments, **options)
    except (SyntaxError, TypeError, ValueError) as error:
        raise ValueError(f"--param {text!r}: {error}") from error


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.List):
        return [_literal(each) for each in node.elts]
    return ast.literal_eval(node)


def written(value: Any) -> str:
    """Return a value as a word: texts as they are, lists as JSON, 32 for the 32.0 of tune.quniform."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value, default=str) if isinstance(value, (list, tuple, dict)) else str(value)


def _number(name: str, text: str) -> float:
    try:
        return float(text.strip().rstrip(",;:)]}"))
    except ValueError as error:
        raise ValueError(f"report= matches {text!r} as the {name}: make its group match a number") from error


def _ending(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _told(lines: Sequence[str]) -> str:
    return f"{QUOTED} {' | '.join(lines)}" if lines else "it printed nothing"
