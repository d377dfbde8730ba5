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
    ran = startup.search(tmp_path / "results", [])
    assert ran.printed[-1][1] == "folder      results/search"
    assert 0 < ran.first_trial <= ran.first_report <= ran.finished <= ran.ended and ran.answer <= ran.ended
