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
import selectors
import shlex
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.errors import RequestError
from tuner.spec.arrived import by_path

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
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(self.filled(config), env=environment, bufsize=0, **pipes)
        num_reports, last = 0, deque[str](maxlen=LAST_LINES)
        try:
            for line in lines_of(process):
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
            except (ValueError, RecursionError):  # of a line that is nested too deeply
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


def lines_of(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """Yield the lines of a process until it has ended; this process's own streams get what it prints at once.

    What other processes print later is lost: one that the process has left may hold the pipes open for ever.
    """
    streams = {process.stdout: sys.stdout, process.stderr: sys.stderr}
    begun = dict.fromkeys(streams, b"")  # what follows the last end of a line
    with selectors.DefaultSelector() as selector, open(os.pidfd_open(process.pid), "rb", buffering=0) as ended:
        for each in (ended, *streams):
            selector.register(each, selectors.EVENT_READ)  # type: ignore[arg-type]
        has_ended = False
        while ready := selector.select(0 if has_ended else None):
            for key, _ in ready:
                pipe: Any = key.fileobj
                data = b"" if pipe is ended else os.read(pipe.fileno(), 1 << 16)
                if not data:
                    selector.unregister(pipe)
                    has_ended = has_ended or pipe is ended
                    continue
                os.write(streams[pipe].fileno(), data)
                *lines, begun[pipe] = (begun[pipe] + data).split(b"\n")
                begun[pipe] = begun[pipe][-MOST_BYTES:]
                yield from (line.decode(errors="replace") for line in lines)
    yield from (line.decode(errors="replace") for line in begun.values() if line)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _end(process: subprocess.Popen[bytes]) -> None:
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
