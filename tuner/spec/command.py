"""Makes a space of a command: each trial runs it with the trial's values in its words, and reads its output.

A parameter takes the place of its name in braces: `python train.py --lr {lr}`. A parameter without a place is added as
an option. A report is a line of the command's output: a JSON object that has the metric, or text that a regular
expression matches. The command is executed without a shell.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from tuner.errors import RequestError
from tuner.spec.arrived import by_path

ADDED = "--{key}={value}"
GRACE_S = 4.0  # seconds that a stopped command has between SIGTERM and SIGKILL; less than `keeper.GRACE_S`
LAST_LINES = 10  # of the output, in the error of a command that fails
MOST_LINE = 200  # maximum characters of each


@dataclass(frozen=True)
class Command:
    """The function of a command's trials.

    Args:
        words: the program and its arguments.
        report: a regular expression with a named group for each metric, such as `val_loss=(?P<val_loss>[0-9.e+-]+)`;
            empty to read JSON lines alone.
        added: the word of a parameter without a place in `words`, with `{key}` and `{value}`.
    """

    words: tuple[str, ...]
    report: str = ""
    added: str = ADDED

    def __call__(self, config: dict[str, Any], metrics: Sequence[str] = ()) -> None:
        """Run the command for one trial, and report what it prints; RuntimeError if it fails or reports nothing.

        A JSON object is a report if it has one of `metrics`.
        """
        from ray import tune

        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}  # else Python keeps lines back that go to a pipe
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(self.filled(config), env=environment, text=True, errors="replace", **streams)
        last: deque[str] = deque(maxlen=LAST_LINES)
        errors = threading.Thread(target=_pass_on, args=(process.stderr, sys.stderr, last), daemon=True)
        errors.start()
        num_reports = 0
        try:
            for line in passed_on(process.stdout or (), sys.stdout, last):
                if found := self.metrics_in(line, metrics):
                    num_reports += 1
                    tune.report(found)
        finally:
            _end(process)
            errors.join(GRACE_S)  # a process that the command has left may hold the pipe open
        if process.returncode:
            raise RuntimeError(f"the command {_ending(process.returncode)}; {_told(last)}")
        if not num_reports:
            raise RuntimeError(f"the command printed no {self._wanted(metrics)}; {_told(last)}")

    def filled(self, config: Mapping[str, Any]) -> list[str]:
        """Return the words of a trial: `{{` and `}}` become braces, names that are no parameter stay as they are."""
        values = {path.replace("/", "."): value for path, value in by_path(dict(config)) if not isinstance(value, dict)}
        placed: set[str] = set()

        def value_of(match: re.Match[str]) -> str:
            if match[0] in ("{{", "}}"):
                return match[0][0]
            name = match[1].replace("/", ".")
            placed.update({name} & values.keys())
            return written(values[name]) if name in values else match[0]

        words = [re.sub(r"\{\{|\}\}|\{([\w./-]+)\}", value_of, word) for word in self.words]
        added = {name: value for name, value in values.items() if name not in placed}
        return words + [self.added.format(key=name, value=written(value)) for name, value in added.items()]

    def check(self) -> None:
        """Raise RequestError if the program is not found."""
        program = self.words[0]
        if not shutil.which(program):
            where = os.getcwd() if "/" in program else "the folders of PATH"
            raise RequestError(f"command {' '.join(self.words)!r}: {program} is no program in {where}; correct it")

    def metrics_in(self, line: str, wanted: Sequence[str]) -> dict[str, Any]:
        """Return the metrics of a line that is a report, else nothing."""
        text = line.strip()
        if text.startswith("{") and text.endswith("}"):
            try:
                found = json.loads(text)
            except ValueError:
                found = {}
            if any(name in found for name in wanted):
                return {name: value for name, value in found.items() if isinstance(value, (int, float, str))}
        matched = re.search(self.report, line) if self.report else None
        return {name: _number(value) for name, value in (matched.groupdict() if matched else {}).items() if value}

    def _wanted(self, metrics: Sequence[str]) -> str:
        by_text = f", and no line that {self.report!r} matches" if self.report else ""
        return f"line with a JSON object that has {' or '.join(dict.fromkeys(metrics))}{by_text}"


def command_of(given: str | Sequence[str], report: str, added: str) -> Command:
    """Return the function of a command, given as a text or as words; ValueError if it cannot be right."""
    words = shlex.split(given) if isinstance(given, str) else [str(each) for each in given]
    if not words:
        raise ValueError(f"command={given!r}: give a program and its arguments")
    try:
        groups = re.compile(report).groupindex
    except re.error as error:
        raise ValueError(f"report={report!r} is no regular expression ({error})") from error
    if report and not groups:
        raise ValueError(f"report={report!r} names no metric: write (?P<loss>[0-9.e+-]+) where the number of loss is")
    if "{value}" not in added:
        raise ValueError(f"words={added!r}: write {{value}} where the value is, as in {ADDED!r}")
    return Command(tuple(words), report, added)


def written(value: Any) -> str:
    """Return a value as a word: texts as they are, lists as JSON."""
    return json.dumps(value) if isinstance(value, (list, tuple, dict)) else str(value)


def passed_on(pipe: Iterable[str], to: TextIO, last: deque[str]) -> Iterator[str]:
    """Yield the lines of a pipe once they are written to a stream of this process; keep the last ones."""
    for line in pipe:
        print(line, end="", file=to, flush=True)
        last.append(line.rstrip()[:MOST_LINE])
        yield line


def _pass_on(pipe: Iterable[str], to: TextIO, last: deque[str]) -> None:
    deque(passed_on(pipe, to, last), maxlen=0)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _end(process: subprocess.Popen[str]) -> None:
    """End a command that still runs: it may save what it has; all that it leaves behind ends with the trial."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ending(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _told(lines: Sequence[str]) -> str:
    return f"its last lines: {' | '.join(lines)}" if lines else "it printed nothing"
