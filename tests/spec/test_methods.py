"""A new searcher or scheduler is a file of its own and a row; a search in a copy of the package uses both."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.spec.methods import PAIRS, SCHEDULERS, SEARCHERS

ROOT = Path(__file__).parents[2]
FILES = {
    "tuning/searchers/invented.py": """
from tuner.tuning.searchers.sampling import RandomSearcher

class Invented(RandomSearcher):
    def _next(self, trial_id):
        return {**super()._next(trial_id), "lr": 0.05}
""",
    "core/rules/patient.py": """
from tuner.core.rules.rule import Rule, RuleDecision

class Patient(Rule):
    def judge(self, trial, epoch, value, *, saved=True):
        late = epoch > self.in_force.grace_period
        return RuleDecision("stop", "was patient", rung=epoch) if late else RuleDecision(), []
""",
}
ROWS = {
    "SEARCHERS": '"invented": SearcherRow("invented.Invented", "tries 0.05", learns_past=True, draws_prior=True, '
    'several=True, needs_number=True, refuses=("normal",), in_ray=("AxSearch",)),',
    "SCHEDULERS": '"patient": SchedulerRow("patient.Patient", "has patience", "waits {e.grace_period} epochs", '
    'several=True, needs_number=True, uses=("grace_period",), in_ray=("PatientScheduler",)),',
}
CHECKS = """
import sys
from pathlib import Path

import pytest
from ray import tune
from ray.tune.schedulers import MedianStoppingRule

from tuner import run
from tuner.engine.moved import read_tuner
from tuner.errors import RequestError
from tuner.record.results import load
from tuner.serve.jobs.requests import Start
from tuner.spec.auto import SpaceTraits, choose
from tuner.spec.experiment import Experiment, Options
from tuner.spec.option_values import helps_of
from tuner.spec.space import Space
from tuner.tuning.searchers.named import check_searcher
from tuner.views.whatif import REPLAYED, what_if

PAIR, TWO = {"searcher": "invented", "scheduler": "patient"}, {"metric": ("loss", "time"), "mode": ("min", "min")}
assert Start(space="cifar", **PAIR).searcher == "invented" and Experiment(**PAIR, **TWO).aim.several
helps = helps_of(Options)
assert "invented also learn" in helps["start_from"] and "invented draw" in helps["prior"]
assert "patient may stop it" in helps["grace_period"] and "invented, pbt and patient." in helps["num_samples"]
for given in ({**PAIR, "num_samples": 0, "time_budget": "1h"}, {**PAIR, "scheduler": "pbt"}):
    with pytest.raises(RequestError):
        Experiment(**given)
assert choose(Options(scheduler="patient"), SpaceTraits(saves_checkpoints=True))[0].searcher == "random"
assert choose(Options(searcher="invented", num_samples=3), SpaceTraits(saves_checkpoints=True))[0].scheduler == "fifo"
with pytest.raises(RequestError, match="--searcher invented cannot propose parameter 'x', a normal"):
    check_searcher(Experiment(**PAIR), Space(params={"x": tune.randn()}, train=print))
check_searcher(Experiment(**PAIR), Space(params={"x": tune.sample_from(lambda config: 1)}, train=print))

class PatientScheduler(MedianStoppingRule):
    pass

scheduler = PatientScheduler("training_iteration", grace_period=3)
config = tune.TuneConfig(metric="loss", mode="min", scheduler=scheduler)
moved = read_tuner(tune.Tuner(print, param_space={"x": tune.uniform(0, 1)}, tune_config=config), {})
assert (moved.options["scheduler"], moved.space.grace_period) == ("patient", 3)

words = "--space", sys.argv[1], "--searcher", "invented", "--scheduler", "patient", "--grace-period", "2", "--name", "e"
words += "--num-samples", "2", "--wandb", "disabled", "--max-epochs", "4"
assert run.main([*words, "--dry-run"]) == 0
assert run.main([*words, "--no-preflight"]) == 0
record = load(Path("results/e"))
assert [trial.config["lr"] for trial in record.trials] == [0.05, 0.05]
assert [(trial.status, trial.last_epoch) for trial in record.trials] == [("pruned", 3)] * 2
assert what_if(record, "patient", 1, 2).epochs.most == 4 and REPLAYED["patient"] == ["grace_period"]
"""


def test_an_invented_searcher_and_rule_work_after_a_file_and_a_row_each(tmp_path):
    package = tmp_path / "tuner"
    shutil.copytree(ROOT / "tuner", package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in FILES.items():
        (package / name).write_text(text)
    methods = package / "spec" / "methods.py"
    text = methods.read_text()
    for table, row in ROWS.items():
        text, number = re.subn(rf"^({table} = {{\n.*?)^}}", rf"\1    {row}\n}}", text, flags=re.MULTILINE | re.DOTALL)
        assert number == 1
    methods.write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", CHECKS, str(ROOT / "tests" / "spaces" / "tiny.py")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "scheduler   patient: waits 2 epochs\n" in done.stdout


@pytest.mark.parametrize(("rows", "column"), [(SEARCHERS, "--searcher"), (SCHEDULERS, "--scheduler")])
def test_the_tables_of_the_docs_have_each_row(rows, column):
    _, _, page = (ROOT / "docs" / "searchers.md").read_text().partition(f"| `{column}` |")
    lines = [line.strip("| ").split(" | ") for line in page.partition("\n\n")[0].splitlines()[2:]]
    assert {cells[0].strip("`") for cells in lines} == rows.keys()
    if column == "--searcher":
        assert {cells[0].strip("`"): tuple(cells[2].split(", ")) for cells in lines} == PAIRS
