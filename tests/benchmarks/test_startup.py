"""`benchmarks.startup`: the times of a search are read from its journal and its output."""

import sys

from benchmarks import startup
from benchmarks.peers import measure

PROGRAM = """
import sys
from pathlib import Path
from tuner.record.journal import Journal
folder = Path(sys.argv[sys.argv.index("--results") + 1]) / "search"
folder.mkdir(parents=True)
journal = Journal(folder / "journal.jsonl")
journal.write("experiment_started", name="search")
journal.write("trial_started", "00000", config={}, resources={}, node="")
journal.write("report", "00000", epoch=1, metrics={"loss": 1.0})
journal.write("experiment_finished", state="finished")
journal.close()
print("folder      results/search")
"""


def test_the_times_of_a_search_are_in_order(tmp_path, monkeypatch):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.setattr(measure, "README_PYTHON", [sys.executable, str(program)])
    times = startup.search(tmp_path / "results")
    assert 0 < times["trial_started"] <= times["report"] <= times["experiment_finished"]
    assert 0 < times["answer"] and 0 <= times["prompt"]
