"""The commands that continue, repeat or audit a search, or retrain its best trial; empty if a command would fail."""

from __future__ import annotations

import shlex

from tuner.record.results import ExperimentRecord
from tuner.record.storage.files import is_file_in
from tuner.record.texts import command
from tuner.spec.experiment import Experiment
from tuner.spec.spaces import is_in_main
from tuner.views.audit_record import prunable

MOST_AUDITED = 5  # maximum number of pruned trials that the offered audit command trains


def resume_command(record: ExperimentRecord, *options: str) -> str:
    """Returns the command or Python call that continues a search; empty for a refused search or a Ray Tune folder."""
    e = record.experiment
    if record.facts.get("foreign") or record.refused:
        return ""
    if is_in_main(e.space):
        named = [f"resume={e.name!r}"] + ([] if e.results == "results" else [f"results={e.results!r}"])
        for option in options:
            name, value = option.removeprefix("--").split(" ", 1)
            named.append(f"{name.replace('-', '_')}={value if value.isdigit() else repr(value)}")
        return f"tuner.search(space, {', '.join(named)})"
    return command("run", f"--resume {shlex.quote(e.name)}", *_results_of(e), *options)


def extend_command(record: ExperimentRecord) -> str:
    """Returns the command that continues a search, with twice its time or trials unless it runs or was interrupted."""
    return resume_command(record, *([] if record.state in ("interrupted", "running") else [twice(record)]))


def twice(record: ExperimentRecord) -> str:
    """Returns the option that doubles what ended the search: its time budget or its number of trials."""
    e = record.experiment
    if record.out_of_time and e.time_budget_s:
        return f"--time-budget {2 * e.time_budget_s:.0f}s"
    return f"--num-samples {e.num_samples * 2}"


def retrain_command(record: ExperimentRecord) -> str:
    """Returns the command that trains the best trial again; empty if not `retrainable`, or without best/config.json."""
    config = record.experiment.folder / "best" / "config.json"
    there = record.retrainable and is_file_in(record.experiment.folder, "best/config.json")
    return command("train", shlex.quote(str(config))) if there else ""


def audit_command(record: ExperimentRecord) -> str:
    """Returns the audit command; empty if the search runs, is not `retrainable`, or `num_audited` is 0."""
    e, number = record.experiment, num_audited(record)
    if not record.retrainable or record.state == "running" or not number:
        return ""
    return command("audit", f"{shlex.quote(e.name)} --trials {number} --results {shlex.quote(e.results)}")


def num_audited(record: ExperimentRecord) -> int:
    """Returns how many pruned trials the offered audit trains: at most MOST_AUDITED; 0 without a best trial."""
    return min(MOST_AUDITED, len(prunable(record))) if record.best() else 0


def start_again(record: ExperimentRecord, *options: str) -> str:
    """Returns a command for a new search over the same space with `options`; empty if no command can name the space."""
    e = record.experiment
    if not e.space or is_in_main(e.space):
        return ""
    return command("run", f"--space {shlex.quote(e.space)}", *_results_of(e), *options)


def _results_of(e: Experiment) -> list[str]:
    return [] if e.results == "results" else [f"--results {shlex.quote(e.results)}"]
