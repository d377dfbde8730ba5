"""Makes a space of a command: each trial runs it with the trial's values in its words, and reads its output.

A parameter takes the place of its name in braces: `python train.py --lr {lr}`. A parameter without a place is added as
an option. A report is a line of the command's output: a JSON object that has the metric, or text that a regular
expression matches. The command is executed without a shell.
"""

from __future__ import annotations

import ast
import fcntl
import json
import math
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.errors import Parser, RequestError, nearest
from tuner.spec import domains
from tuner.spec.arrived import by_path

DOMAINS = (  # of Ray Tune
    "uniform", "quniform", "loguniform", "qloguniform", "randn", "qrandn", "randint", "qrandint", "lograndint",
    "qlograndint", "choice", "grid_search",
)  # fmt: skip
ADDED = "--{key}={value}"
GRACE_S = 4.0  # seconds that a stopped command has between SIGTERM and SIGKILL; less than `keeper.GRACE_S`
LAST_LINES = 10  # of the output, in the error of a command that fails
MOST_CHARS = 200  # maximum characters of each
MOST_BYTES = 1 << 20  # of a line without an end that are kept


@dataclass(frozen=True)
class Command:
    """The function of a command's trials.

    Args:
        words: the program and its arguments.
        report: a regular expression with a named group for each metric, such as `val_loss=(?P<val_loss>\\S+)`;
            empty to read JSON lines alone.
        added: the words of a parameter without a place in `words`, with `{key}` and `{value}`.
    """

    words: tuple[str, ...]
    report: str = ""
    added: tuple[str, ...] = (ADDED,)

    def __call__(self, config: dict[str, Any], metrics: Sequence[str] = ()) -> None:
        """Run the command for one trial, and report what it prints; RuntimeError if it fails or reports nothing.

        A JSON object is a report if it has one of `metrics`.
        """
        from ray import tune

        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}  # else Python keeps lines back that go to a pipe
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(self.filled(config), env=environment, bufsize=0, start_new_session=True, **pipes)
        num_reports, last = 0, deque[str](maxlen=LAST_LINES)
        try:
            for line in lines_of(process):
                line = line.rstrip("\r").rpartition("\r")[2]  # the last state of a progress bar
                last.append(line[:MOST_CHARS])
                if found := self.metrics_in(line, metrics):
                    num_reports += 1
                    tune.report(found)
        finally:
            _end(process)
        if process.returncode:
            raise RuntimeError(f"the command {_ending(process.returncode)}; {_told(last)}")
        if not num_reports:
            raise RuntimeError(f"the command printed no {self._wanted(metrics)}; {_told(last)}")

    @property
    def program(self) -> str:
        """The script, if the program is an interpreter, else the program."""
        return next((word for word in self.words if Path(word).suffix in (".py", ".sh")), self.words[0])

    def filled(self, config: Mapping[str, Any]) -> list[str]:
        """Return the words of a trial: `{{lr}}` becomes `{lr}`, names that are no parameter stay as they are."""
        values = {path.replace("/", "."): value for path, value in by_path(dict(config)) if not isinstance(value, dict)}
        placed: set[str] = set()

        def value_of(match: re.Match[str]) -> str:
            if match[1]:
                return f"{{{match[1]}}}"
            name = match[2].replace("/", ".")
            placed.update({name} & values.keys())
            return written(values[name]) if name in values else match[0]

        words = [re.sub(r"\{\{([\w./-]+)\}\}|\{([\w./-]+)\}", value_of, word) for word in self.words]
        added = {name: value for name, value in values.items() if name not in placed}
        for name, value in added.items():
            words += [word.replace("{key}", name).replace("{value}", written(value)) for word in self.added]
        return words

    def check(self) -> None:
        """Raise RequestError if the program is not found."""
        program = self.words[0]
        if not shutil.which(program):
            where = "" if os.path.isabs(program) else f" in {os.getcwd()}" if "/" in program else " on PATH"
            raise RequestError(f"command {' '.join(self.words)!r}: {program}: no executable{where}; correct it")

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
    return {"params": domains.nested(dict(map(domain_of, given.pop("param")))), "command": words, **given}


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


def lines_of(process: subprocess.Popen[bytes], seconds: float = math.inf) -> Iterator[str]:
    """Yield the lines of a process until it has ended, or for `seconds`; this process's streams get its output at once.

    What it has printed at its end is read, and no more: a process that it has left may print for ever.
    """
    streams: dict[Any, Any] = {process.stdout: sys.stdout, process.stderr: sys.stderr}
    begun, deadline, has_ended = dict.fromkeys(streams, b""), time.monotonic() + seconds, False

    def read(pipe: Any, size: int) -> list[str]:
        data = os.read(pipe.fileno(), size)
        if not data:
            selector.unregister(pipe)
        os.write(streams[pipe].fileno(), data)
        *lines, begun[pipe] = (begun[pipe] + data).split(b"\n")
        begun[pipe] = begun[pipe][-MOST_BYTES:]
        return [line.decode(errors="replace") for line in lines]

    with selectors.DefaultSelector() as selector, open(os.pidfd_open(process.pid), "rb", buffering=0) as end:
        for each in (end, *streams):
            selector.register(each, selectors.EVENT_READ)
        while not has_ended and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(None if left == math.inf else left):
                if key.fileobj is end:
                    has_ended = True
                else:
                    yield from read(key.fileobj, 1 << 16)
        for pipe in streams if has_ended else ():
            if size := int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder):
                yield from read(pipe, size)
    yield from (line.decode(errors="replace") for line in begun.values() if line)


def _number(name: str, text: str) -> float:
    try:
        return float(text.strip().rstrip(",;:)]}"))
    except ValueError as error:
        raise ValueError(f"report= matches {text!r} as the {name}: make its group match a number") from error


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command that still runs: it may save what it has; all that it leaves behind ends with the trial."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        for _ in lines_of(process, GRACE_S):
            pass  # it may print more than a pipe holds
        process.kill()
    process.wait()


def _ending(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _told(lines: Sequence[str]) -> str:
    return f"its last lines: {' | '.join(lines)}" if lines else "it printed nothing"
