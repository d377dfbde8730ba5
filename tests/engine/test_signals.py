"""The first signal asks, the second one ends everything; what was before comes back."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from killing import left_of, start

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
    assert "--resume continues it" in capsys.readouterr().err


@pytest.mark.parametrize("numbers", [[], [signal.SIGINT]])
def test_what_has_ended_in_time_is_left_alone(calls, monkeypatch, numbers):
    monkeypatch.setattr(signals, "LATE_S", 0.05)
    with signals_to(calls.append):
        for number in numbers:
            signal.raise_signal(number)
    while any(thread.name == "deadline" for thread in threading.enumerate()):
        time.sleep(0.01)
    assert calls == ["interrupted by SIGINT"][: len(numbers)]
