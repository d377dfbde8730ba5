"""Every file of examples/ is searched, killed and resumed; the search ends with the numbers of an unbroken one."""

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from killing import COMMAND, ONE_AT_A_TIME, left_of, num_lines, repeated_and_lost, run_whole, start
from tiers import further

from tuner.record.reading import read
from tuner.record.report_keys import USAGE
from tuner.record.results import load

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FRAMEWORKS = ("accelerate", "lightning", "peft", "transformers")

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("path", further(EXAMPLES, 1), ids=lambda path: path.stem)
def test_an_example_is_killed_and_ends_as_the_unbroken_search(path, tmp_path):
    imported = set(re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.MULTILINE))
    missing = [name for name in FRAMEWORKS if name in imported and importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}, of the group `frameworks`")
    options = ["--space", str(path), "--scheduler", "fifo", "--num-samples", "2", *ONE_AT_A_TIME]
    whole = run_whole(tmp_path, "whole", options)
    assert [len(curve) for curve in curves(whole)] == [4, 4]
    killed = kill_and_resume(tmp_path, options)
    assert curves(killed) == curves(whole)
    assert repeated_and_lost(killed) == (0, 0)


def kill_and_resume(results, options, reports=2):
    """A search all of whose processes are killed after some reports of its first trial, and then resumed."""
    journal = results / "killed" / "journal.jsonl"
    process = start([*COMMAND, *options, "--results", str(results), "--name", "killed"])
    end = time.monotonic() + 300
    while num_reports(journal) < reports:
        assert process.poll() is None and time.monotonic() < end, "the search has not reported"
        time.sleep(0.01)
    for pid in left_of(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    before = num_reports(journal)
    assert before < 8, "the search ended before it was killed"
    resume = [*COMMAND, "--resume", "killed", "--results", str(results)]
    done = subprocess.run(resume, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return results / "killed"


def num_reports(journal):
    return sum(event["event"] == "report" for event in read(journal)) if num_lines(journal) else 0


def curves(folder):
    """What each trial reported, without its use of the machine."""
    return [
        [{name: value for name, value in report.metrics.items() if name not in USAGE} for report in trial.reports]
        for trial in load(folder).trials
    ]
