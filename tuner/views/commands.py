"""The commands that continue, repeat or audit a search, or retrain its best trial; empty if a command would fail."""

from __future__ import annotations

import shlex
from dataclasses import replace

from tuner.record.confirm import repeated
from tuner.record.results import ExperimentRecord
from tuner.record.storage.files import is_file_in
from tuner.record.texts import command, results_option, resume_call
from tuner.spec.option_values import option
from tuner.spec.spaces import is_in_main
from tuner.views.audit_record import prunable

MOST_CONFIRMED = 3  # maximum number of settings that the offered command confirms
MOST_AUDITED = 5  # maximum number of pruned trials that the offered audit command trains


def resume_command(record: ExperimentRecord, *options: str) -> str:
    """Returns the command or Python call that continues a search; empty for a refused search or a Ray Tune folder."""
    return "" if record.facts.get("foreign") or record.refused else resume_call(record.experiment, *options)


def extend_command(record: ExperimentRecord) -> str:
    """Returns the command that continues a search, with twice its time or trials unless it runs or was interrupted."""
    return resume_command(record, *([] if record.state in ("interrupted", "running") else [twice(record)]))


def twice(record: ExperimentRecord) -> str:
    """Returns the option that doubles what ended the search: a budget or its number of trials."""
    e, budgets = record.experiment, record.experiment.budgets
    if not record.out_of_time or not budgets:
        return f"--num-samples {2 * (e.num_samples or len(record.trials))}"
    words = {"time_budget": "time", "gpu_hours": "GPU", "cpu_hours": "CPU", "epoch_budget": "epoch"}
    name = next((name for name in budgets if words[name] in record.reason), next(iter(budgets)))
    return f"{option(name)} {2 * budgets[name]:.10g}{'s' if name == 'time_budget' else ''}"


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


def confirm_command(record: ExperimentRecord) -> str:
    """Returns the command that confirms the best settings; empty if the search did, has one setting, or goes on."""
    e = record.experiment
    if (
        e.confirm
        or e.aim.several
        or e.scheduler == "pbt"
        or record.state != "finished"
        or record.refused
        or not record.best()
        or record.facts.get("space", {}).get("seeded") is False  # a command that takes no seed
    ):
        return ""
    number = len(repeated(replace(e, confirm=MOST_CONFIRMED), record.stats))
    more = [] if e.num_samples else [f"--num-samples {len(record.searched)}"]
    more += [twice(record)] if record.out_of_time else []
    return resume_command(record, f"--confirm {number}", *more) if number > 1 else ""


def num_audited(record: ExperimentRecord) -> int:
    """Returns how many pruned trials the offered audit trains, at most MOST_AUDITED; 0 if it can compare none."""
    return min(MOST_AUDITED, len(prunable(record))) if record.best() and not record.experiment.aim.several else 0


def start_again(record: ExperimentRecord, *options: str) -> str:
    """Returns a command for a new search over the same space with `options`; empty if no command can name the space."""
    e = record.experiment
    if not e.space or is_in_main(e.space):
        return ""
    return command("run", f"--space {shlex.quote(e.space)}", *results_option(e), *options)
