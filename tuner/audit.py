"""Checks whether a search pruned trials that would have won: trains a random sample of the pruned trials to the end.

`python -m tuner.audit NAME --trials 5` trains 5 pruned trials, without Ray, each from its last undamaged checkpoint, or
from the start if it has none. It compares the metric of each repeated epoch with the search's. It writes the result to
audit.json, which the dashboard shows. If an audit is interrupted, the same command continues it.
"""

from __future__ import annotations

import contextlib
import json
import random
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from tuner.core.events import Report
from tuner.errors import Parser, RequestError, blamed, failed, say
from tuner.record.checkpoints import STATE, damage, load_state, within
from tuner.record.records import TrialRecord
from tuner.record.results import ExperimentRecord, load_named
from tuner.record.saved_experiment import COPY
from tuner.record.saved_experiment import FILE as EXPERIMENT
from tuner.record.storage.files import write_atomically
from tuner.record.storage.lock import AUDIT, only_driver
from tuner.record.storage.made import remove_made
from tuner.record.texts import command, figures, formatted
from tuner.train import training_of, trial_config
from tuner.tuning.resume.trust import HELP, OPTION, code_of, refuse_data_folder, refuse_links, results_of
from tuner.views.audit_record import FILE, Audit, AuditedTrial, AuditResult, prunable, read_audit, result_of

STATES = "audit"  # subfolder with the training states of trials that the audit has not finished; removed once empty


def main(argv: list[str]) -> int:
    """Runs the command line; returns 0 if done, 2 for a wrong request, 130 if interrupted."""
    parser = Parser(prog="python -m tuner.audit", description=__doc__)
    parser.add_argument("name", help="the experiment's folder, or its name under --results")
    parser.add_argument("--trials", type=int, default=5, help="number of pruned trials to train (default: 5)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random sample of trials (default: 0)")
    parser.add_argument("--results", default="results", help="folder of the experiments (default: results)")
    parser.add_argument(OPTION, action="store_true", help=HELP)
    try:
        args = parser.parse_args(argv)
        if args.trials < 1:
            raise RequestError(f"--trials {args.trials}: must be 1 or more")
        record = load_named(args.name, args.results)
        own, sha256 = record.experiment, record.facts.get("space", {}).get("sha256")
        if not args.trust:
            refuse_links(own.folder)
            refuse_data_folder(own.folder / EXPERIMENT, own.data_dir, results_of(own.folder), f"give {OPTION}")
        space, code = code_of(own.folder, (EXPERIMENT, COPY), own.space, sha256, trusted=args.trust)
        say(*code)
        facts = {**record.facts, "data": {}} if args.trust else record.facts  # without checksums, any data is taken
        record = replace(record, experiment=replace(own, space=space), facts=facts)
        with only_driver(own.folder, AUDIT):
            say(*lines(audit(record, args.trials, args.seed), limited=bool(own.constraint)))
        return 0
    except (RequestError, ValueError, OSError) as error:
        return failed(error)
    except KeyboardInterrupt:
        say(f"interrupted; continue with: {command('audit', shlex.join(argv))}", to=sys.stderr)
        return 130


def audit(record: ExperimentRecord, num_trials: int, seed: int) -> AuditResult:
    """Trains each sampled trial that audit.json lacks, and adds it there; RequestError if no audit is possible."""
    winner, pruned = record.best(), prunable(record)
    name, folder = record.experiment.name, record.experiment.folder
    if record.state == "running":
        raise RequestError(f"{name} has not ended: stop it, or finish it with --resume if it was killed")
    if record.experiment.aim.several:
        several = record.experiment.aim.named
        raise RequestError(f"{name} has several metrics, {several}: an audit compares trials by one, so it is refused")
    if winner is None or not pruned:
        raise RequestError(f"{name} has no {'best' if pruned else 'pruned'} trial: nothing to audit")
    saved = read_audit(folder) or Audit(winner[0].id, seed, [], [])
    if saved.seed != seed:
        raise RequestError(f"--seed {seed}: {folder / FILE} has seed {saved.seed}; give that, or delete the file")
    sample = drawn_trials([trial.id for trial in pruned], num_trials, seed)
    done = {trial.trial: trial for trial in saved.trials}
    for number, trial in enumerate((t for name in sample for t in pruned if t.id == name), 1):
        if trial.id not in done:
            say(f"trial {trial.id} ({number} of {len(sample)})")
            done[trial.id] = trained(record, trial)
        saved = Audit(winner[0].id, seed, sample, [done[name] for name in sample if name in done])
        write_atomically(folder / FILE, json.dumps(asdict(saved), indent=2) + "\n")
    result = result_of(record)
    assert result is not None  # audit.json is written, and the search has a best trial
    return result


def drawn_trials(trials: list[str], count: int, seed: int) -> list[str]:
    """Draws `count` trials, or all if there are fewer; with the same seed, a larger count only adds trials."""
    drawn = sorted(trials)
    random.Random(seed).shuffle(drawn)
    return drawn[:count]


def trained(record: ExperimentRecord, trial: TrialRecord) -> AuditedTrial:
    """Trains a pruned trial to the last epoch; compares its metric with the search's at epochs that both trained."""
    wanted, aim, began, differs = record.experiment.wanted, record.experiment.aim, time.monotonic(), ""
    reports = {r.epoch: r.metrics for r in trial.reports}
    for epoch, metrics in epochs_of(record, trial):
        known = reports.get(epoch, {})
        # A raised --max-epochs puts off a task's final metrics, which the search computed at the earlier last epoch.
        metrics = known | {name: value for name, value in metrics.items() if value is not None}
        before, repeated = (wanted.value(each) for each in (known or metrics, metrics))
        if repr(before) != repr(repeated) and not differs:  # NaN is not equal to itself
            differs = f"epoch {epoch}: {repeated!r} here, {before!r} in the search"
        reports[epoch] = metrics
    whole = replace(trial, reports=tuple(Report(*each, None, 0.0) for each in sorted(reports.items())))
    best = None if whole.violation(aim) else whole.best(aim)
    return AuditedTrial(
        trial=trial.id,
        stopped=trial.last_epoch,
        epochs=max(reports),
        best=best.metrics[wanted.metric] if best else None,
        best_epoch=best.epoch if best else None,
        beats=False,
        differs=differs,
        seconds=round(time.monotonic() - began, 3),
    )


def epochs_of(record: ExperimentRecord, trial: TrialRecord) -> Iterator[tuple[int, dict[str, float | None]]]:
    """Trains the remaining epochs; yields (epoch, metrics), first those that an interrupted audit has saved.

    The metrics are those that decide which trial is better; None if a report lacks one.
    """
    folder, experiment = record.experiment.folder, record.experiment
    kept = folder / STATES / f"{trial.id}.pt"
    kept.parent.mkdir(exist_ok=True)
    metrics: dict[int, dict[str, float | None]] = {}
    if kept.is_file():
        advice = "remove it to train the trial from its checkpoint again"
        with blamed(str(kept)):
            metrics = dict(load_state(kept.parent, kept.name, advice)["extra"])
        source: Path | None = kept
    else:
        saved = (within(folder, r.checkpoint) for r in reversed(trial.reports) if r.checkpoint)
        source = next((path / STATE for path in saved if (path / STATE).is_file() and _is_whole(path)), None)
    with training_of(trial_config(record, trial.id), source) as (training, *_):
        yield from metrics.items()
        wanted = experiment.wanted.metric
        names = wanted, *(each.metric for each in experiment.aim.constraints)
        while training.epoch < experiment.max_epochs:
            report = training.run_epoch()
            metrics[training.epoch] = {name: report.get(name) for name in names}
            found = figures({wanted: report.get(wanted)}, wanted) or "done"
            say(f"  epoch {training.epoch}/{experiment.max_epochs}: {found}")
            write_atomically(kept, training.state(metrics))
            yield training.epoch, metrics[training.epoch]
    with contextlib.suppress(OSError):  # no epoch was left to train; or another trial's state is in the folder
        remove_made(folder, f"{STATES}/{kept.name}")
    with contextlib.suppress(OSError):
        remove_made(folder, STATES)


def _is_whole(checkpoint: Path) -> bool:
    if why := damage(checkpoint, plain=True):
        say(f"NOTE: {checkpoint} is damaged ({why}); the trial trains from an earlier checkpoint or from the start")
    return not why


def lines(result: AuditResult, *, limited: bool = False) -> list[str]:
    metric, each = result.metric, []
    for t in result.trials:
        found = f"its best {metric} is {formatted(t.best)}, at epoch {t.best_epoch}"
        found = f"it has no finite {metric}{', or breaks a constraint' * limited}" if t.best is None else found
        more = f"{', better than the best trial' if t.beats else ''}{f' (NOTE: {t.differs})' if t.differs else ''}"
        each += [f"trial {t.trial}: stopped at epoch {t.stopped}; {found}{more}"]
    return [
        *each,
        f"{result.beat} of {result.done} trials would have beaten the best trial {result.winner} "
        f"({formatted(result.winner_value)}). {result.estimate}",
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
