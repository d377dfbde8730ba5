"""The first signal asks, the second one ends everything; what was before comes back."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import termios
import threading
import time

import pytest
from journals import read
from killing import COMMAND, SPACES, left_of, num_lines, start
from tiers import further

from tuner import run
from tuner.engine.local import signals
from tuner.engine.local.signals import signals_to

WITH_A_FAMILY = """
import subprocess, sys, time
from tuner.engine.local.signals import signals_to
child = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'], "
child += "start_new_session=True); print('up', flush=True); time.sleep(99)"
with signals_to(lambda reason: print(reason, flush=True)):
    subprocess.Popen([sys.executable, "-c", child])
    while True:
        time.sleep(1)
"""


@pytest.mark.parametrize("number", signals.HANDLED)
def test_the_second_signal_ends_the_process_and_all_that_descend_from_it(number):
    process = start([sys.executable, "-c", WITH_A_FAMILY], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"
    wait_for(process, 3)
    os.kill(process.pid, number)
    assert process.stdout.readline() == f"interrupted by {number.name}\n"
    os.kill(process.pid, number)  # as `uv run` repeats it
    time.sleep(1.1 * signals.SAME_S)
    wait_for(process, 3)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(20) == 130
    wait_for(process, 0)


def wait_for(process, num_processes):
    """Until so many live; the test's time limit ends it."""
    while len(left_of(process)) != num_processes:
        time.sleep(0.05)


@pytest.fixture
def calls(monkeypatch):
    before = [signal.getsignal(number) for number in signals.HANDLED]
    calls = []
    monkeypatch.setattr(signals, "end_family", lambda: calls.append("family"))
    monkeypatch.setattr(os, "_exit", lambda code: calls.append(code))
    monkeypatch.setattr(signals, "SAME_S", -1)
    yield calls
    assert [signal.getsignal(number) for number in signals.HANDLED] == before


@pytest.mark.parametrize("inner", [True, False])
def test_the_inner_one_is_asked_and_after_it_the_next_signal_still_ends_everything(calls, inner):
    with signals_to(lambda reason: calls.append(f"outer: {reason}")):
        with signals_to(lambda reason: calls.append(f"inner: {reason}")):
            if inner:
                signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    expected = ["inner: interrupted by SIGTERM", "family", 130] if inner else ["outer: interrupted by SIGINT"]
    assert calls == expected


def test_a_signal_whose_exception_was_dropped_reaches_the_next_block(calls):
    with signals_to(signals.give_up):
        with contextlib.suppress(KeyboardInterrupt):  # as C code that calls PyErr_Clear
            signal.raise_signal(signal.SIGINT)
        with signals_to(calls.append):
            assert calls == ["interrupted by SIGINT"]
            signal.raise_signal(signal.SIGINT)
    assert calls == ["interrupted by SIGINT", "family", 130]


def test_where_no_search_has_begun_the_command_is_left_through_its_ends(calls):
    with pytest.raises(KeyboardInterrupt), signals_to(signals.give_up):
        signal.raise_signal(signal.SIGTERM)


def test_what_has_not_ended_some_time_after_the_first_signal_is_ended(calls, monkeypatch, capsys):
    left = threading.Event()
    monkeypatch.setattr(signals, "LATE_S", 0.05)
    monkeypatch.setattr(os, "_exit", lambda code: (calls.append(code), left.wait()))  # as it, never back to its caller
    with signals_to(calls.append):
        signal.raise_signal(signal.SIGTERM)
        while len(calls) < 3:
            time.sleep(0.01)
    left.set()
    assert calls == ["interrupted by SIGTERM", "family", 130]
    assert "if a search had started, --resume and its name continue it" in capsys.readouterr().err


def test_the_end_of_ray_is_told_and_ends_the_command_unless_a_signal_has_come_first(calls, capsys):
    with signals_to(calls.append):
        signals.lost("raylet")
        assert calls == ["family", 130] and capsys.readouterr().err == "\nraylet\n"
        signal.raise_signal(signal.SIGTERM)
        signals.lost("raylet")
    assert calls == ["family", 130, "interrupted by SIGTERM"] and not capsys.readouterr().err
    with signals.in_a_program(), pytest.raises(KeyboardInterrupt), signals_to(signals.give_up):
        signals.lost("raylet")
        time.sleep(1)
    assert len(calls) == 3 and capsys.readouterr().err == "\nraylet\n"


@pytest.mark.parametrize("ignored", [False, True])
def test_a_hang_up_is_a_signal_unless_it_is_ignored_and_is_never_a_second_one(calls, ignored):
    inner, before = [], signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        with signals_to(calls.append):
            for _ in range(3):
                signal.raise_signal(signal.SIGHUP)
            assert calls == ["interrupted by SIGHUP"][ignored:]
            with signals_to(inner.append):
                signal.raise_signal(signal.SIGHUP)
        assert calls == inner == ["interrupted by SIGHUP"][ignored:]
        assert (signal.getsignal(signal.SIGHUP) == signal.SIG_IGN) == ignored
    finally:
        signal.signal(signal.SIGHUP, before)


def in_terminal(command):
    """Starts a command as the first of a new terminal; closing the returned descriptor closes the terminal."""
    ours, theirs = os.openpty()
    takes = {"preexec_fn": lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)}
    process = start(command, **dict.fromkeys(("stdin", "stdout", "stderr"), theirs), **takes)
    os.close(theirs)
    return process, ours


@pytest.mark.parametrize("how", further([([],), (["nohup"],), (["bash", "-ic", '"$0" "$@" || exit'],)], 2))
def test_a_closed_terminal_stops_a_search_cleanly_unless_nohup_starts_it(tmp_path, monkeypatch, how):
    monkeypatch.chdir(tmp_path)  # nohup.out
    options = ["--space", f"{SPACES / 'tiny.py'}:slow", "--max-epochs", "99", "--scheduler", "fifo", "--name", "x"]
    process, terminal = in_terminal([*how, *COMMAND, *options, "--results", str(tmp_path)])
    journal, goes_on = tmp_path / "x" / "journal.jsonl", how == ["nohup"]
    while num_lines(journal) < 8:
        print(os.read(terminal, 1 << 16).decode()) if not goes_on else time.sleep(0.1)
    os.close(terminal)
    if goes_on:
        lines = num_lines(journal)
        while num_lines(journal) < lines + 4:
            assert process.poll() is None
        process.terminate()
    assert process.wait(60) == (130 if "bash" not in how else -signal.SIGHUP)
    wait_for(process, 0)
    ends, reason = read(journal)[-3:], f"interrupted by {'SIGTERM' if goes_on else 'SIGHUP'}"
    assert [each.get("status", each.get("state")) for each in ends] == ["interrupted"] * 3
    assert {each["reason"] for each in ends} == {reason} and ends[-1]["event"] == "experiment_finished"


TALKS = """
import signal, sys
from tuner.errors import say
signal.signal(signal.SIGHUP, signal.SIG_IGN)
say("begun")
try:
    sys.stdin.read()
except OSError:
    pass
say("lost", to=getattr(sys, sys.argv[1]))
for stream in (sys.stdout, sys.stderr):
    print("lost", file=stream, flush=True)
sys.exit(7)
"""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_what_is_said_to_a_closed_terminal_ends_nothing(stream):
    process, terminal = in_terminal([sys.executable, "-c", TALKS, stream])
    assert b"begun" in os.read(terminal, 100)
    os.close(terminal)
    assert process.wait(20) == 7


@pytest.mark.parametrize("numbers", [[], [signal.SIGINT]])
def test_what_has_ended_in_time_is_left_alone(calls, monkeypatch, numbers):
    monkeypatch.setattr(signals, "LATE_S", 0.05)
    with signals_to(calls.append):
        for number in numbers:
            signal.raise_signal(number)
    while any(thread.name == "deadline" for thread in threading.enumerate()):
        time.sleep(0.01)
    assert calls == ["interrupted by SIGINT"][: len(numbers)]


# Starts `python -m tuner.run` and sends it SIGINT when it first looks for a module.
AT_IMPORT = """
import os, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class At:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
            raise ImportError("the interrupt came too late")
sys.meta_path.insert(0, At())
sys.argv = ["tuner.run", "--space", "quadratic", "--name", "x", "--results", {results!r}]
runpy.run_module("tuner.run", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("name", ["tuner.errors", "tuner.tuning.session", "ray", "tuner.tuning.driver"])
def test_an_interrupt_of_an_import_is_one_line(tmp_path, name):
    program = AT_IMPORT.format(name=name, results=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 130 and "Traceback" not in done.stderr
    assert done.stderr.strip() == "interrupted; if a search had started, --resume latest continues it"


# Says when `main` is about to begin.
READY = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class At:
    def find_spec(self, name, path=None, target=None):
        if name == "tuner.errors":
            print("READY", flush=True)
sys.meta_path.insert(0, At())
sys.argv = ["tuner.run", *sys.argv[1:]]
runpy.run_module("tuner.run", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("after_s", [0.8, 2.4, *further([number / 25 for number in range(150)], 0)])
def test_ctrl_c_at_any_moment_is_one_line(tmp_path, sessions, after_s):
    environment = os.environ | {"TMPDIR": str(sessions)}
    options = ["--space", "quadratic", "--name", "x", "--results", str(tmp_path), "--wandb", "disabled"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = start([sys.executable, "-c", READY, *options], **pipes, env=environment | {"TUNER_TEST": str(tmp_path)})
    assert process.stdout.readline() == "READY\n"
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    out, error = process.communicate(timeout=60)
    assert time.monotonic() < sent + 15 and process.returncode == 130
    assert "Traceback" not in out + error and "Exception ignored" not in error
    lines = [line for line in error.splitlines() if line and not line.startswith("still ")]
    assert len(lines) == 1 or not lines and "resume      " in out
    process.mark = f"TUNER_TEST={tmp_path}".encode()
    wait_for(process, 0)
    assert not [*sessions.iterdir()]


DEAF = """
import ctypes, threading
from tuner.engine.local import signals
from tuner.engine.local.signals import give_up, ray_starts, removed_at_kill, signals_to
signals.DEAF_S = 0.1
library, lock = ctypes.CDLL(None), ctypes.create_string_buffer(64)
library.pthread_mutex_lock(lock)
with signals_to(give_up), ray_starts(), removed_at_kill(lambda: print("removed", flush=True)):
    print("up", flush=True)
    library.pthread_mutex_lock(lock)  # as C++ code that waits and returns for no signal
"""
IN_A_DESTRUCTOR = """
import signal, time
from tuner.engine.local.signals import give_up, signals_to
class Ends:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
with signals_to(give_up):
    print("up", flush=True)
    Ends()
    time.sleep(60)
"""


def test_ctrl_c_is_obeyed_while_the_main_thread_waits_in_c_code():
    process = start([sys.executable, "-c", DEAF], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"
    time.sleep(1)  # so that it waits in C code
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "removed\n")
    assert error == "\ntuner: interrupted while Ray started; no trial had started\n"


def test_an_interrupt_that_python_cannot_raise_ends_the_command():
    done = subprocess.run([sys.executable, "-c", IN_A_DESTRUCTOR], capture_output=True, text=True, timeout=30)
    assert done.returncode == 130 and done.stdout == "up\n"
    assert done.stderr == "\ninterrupted; if a search had started, --resume and its name continue it\n"


def test_an_interrupt_that_became_another_error_is_an_interrupt(monkeypatch, capsys):
    def search(call):
        with pytest.raises(KeyboardInterrupt), signals_to(signals.give_up):
            signal.raise_signal(signal.SIGINT)
        raise ImportError("numpy: the C extension could not be imported")

    monkeypatch.setattr(run, "run_search", search)
    monkeypatch.setattr(signals, "end_family", lambda: None)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # set back afterwards
    try:
        assert run.main(["--space", "quadratic"]) == 130
    finally:
        signals.abandoned.clear()
    assert "Traceback" not in (error := capsys.readouterr().err) and run.INTERRUPTED in error


FORKS = """
import os, signal, time
from tuner.engine.local import signals
signals.LATE_S = 0.2
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` ignores it
with signals.signals_to(print):
    for number in signals.HANDLED:
        if not (child := os.fork()):
            time.sleep(60)
        time.sleep(0.1)
        os.kill(child, number)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -number
    time.sleep(0.5)
print("whole")
"""


def test_signals_of_a_forked_child_are_its_own():
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "whole\n", "")


def test_a_signal_waits_while_ray_starts_and_a_programs_second_one_does_not():
    """An exception within Ray's C++ code would leave a destructor that waits for ever, with Python's lock."""
    steps = []
    with signals.signals_to(signals.give_up), pytest.raises(KeyboardInterrupt, match="interrupted by SIGINT"):
        with signals.ray_starts():
            signal.raise_signal(signal.SIGINT)
            steps.append("started")
        steps.append("not reached")
    assert steps == ["started"] and not signals.waiting
    with signals.in_a_program(), signals.signals_to(signals.give_up), pytest.raises(KeyboardInterrupt):
        with signals.ray_starts():
            signal.raise_signal(signal.SIGINT)
            steps.append("started")
            signal.raise_signal(signal.SIGINT)
            steps.append("not reached")
    assert steps == ["started", "started"] and not signals.waiting
