"""Every file of examples/ is searched, killed and resumed; the search ends with the numbers of an unbroken one."""

import re
from pathlib import Path

import pytest
from killing import ONE_AT_A_TIME, repeated_and_lost, run_killed, run_whole
from tiers import further

from tuner.record.report_keys import USAGE
from tuner.record.results import load

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FRAMEWORKS = {"accelerate", "lightning", "peft", "transformers"}

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("path", further(EXAMPLES, 1), ids=lambda path: path.stem)
def test_an_example_is_killed_and_ends_as_the_unbroken_search(path, tmp_path):
    imported = set(re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.MULTILINE))
    for name in FRAMEWORKS & imported:
        pytest.importorskip(name, reason="of the group `frameworks`")
    options = ["--space", str(path), "--scheduler", "fifo", "--num-samples", "2", *ONE_AT_A_TIME]
    whole = run_whole(tmp_path, "whole", options)
    assert [len(curve) for curve in curves(whole)] == [4, 4]
    # With this seed, all its processes are killed after 5 events, 3 of which are reports.
    killed = run_killed(tmp_path, "killed", options, kills=1, most_s=0, seed=1, of_everything=1)
    assert killed.survived == 1 and curves(killed.folder) == curves(whole)
    assert repeated_and_lost(killed.folder) == (0, 0)


def curves(folder):
    """What each trial reported, without its use of the machine."""
    return [
        [{name: value for name, value in report.metrics.items() if name not in USAGE} for report in trial.reports]
        for trial in load(folder).trials
    ]
