"""What the tests in a browser share: an experiment to look at, and the rows of the page's tables."""

import pytest

from tuner.record.journal import Journal
from tuner.record.saved_experiment import save_experiment
from tuner.spec.experiment import Experiment

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
expect.set_options(timeout=30_000)  # a state is waited for as long as a busy machine may need, never a time


def write_experiment(results, name="demo"):
    """Six trials of four epochs whose settings hold markup; gives the journal."""
    folder = results / name
    folder.mkdir()
    options = {"space": "quadratic", "num_samples": 9, "max_epochs": 4, "name": name, "results": str(results)}
    save_experiment(Experiment(**options), folder, {"created": 1000.0, "space": {"params": {}}, "data": {}})
    journal = Journal(folder / "journal.jsonl")
    journal.write("experiment_started", name=name)
    for trial in range(6):
        add_trial(journal, trial)
    return journal


def add_trial(journal, trial):
    config = {"x": trial / 10, "act": "<script>document.title='owned'</script><img src=x onerror=alert(1)>"}
    journal.write("trial_started", f"{trial:05}", config=config, resources={"CPU": 1}, node="n")
    for epoch in range(1, 5):
        journal.write("report", f"{trial:05}", epoch=epoch, metrics={"loss": 5.0 + trial - epoch})
    decision = {"rung": 1, "bracket": 0, "cutoff": 4.5, "recorded": trial, "value": 4.0 + trial}
    journal.write("decision", f"{trial:05}", epoch=1, action="continue", reason=f"arrived as {trial}", **decision)
    journal.write("trial_ended", f"{trial:05}", status="completed", reason="trained its 4 epochs")


def rows(page, table):
    return page.locator(f"#{table} tbody tr")
