"""Runs a search: the one file that starts Ray and its Tuner. Everything before and after is plain Python."""

from __future__ import annotations

import os

# Read when ray is imported or started, so set before that, here and nowhere else.
os.environ.update(
    RAY_AIR_NEW_OUTPUT="0",  # Ray's new console ignores CLIReporter without a word
    RAY_ENABLE_UV_RUN_RUNTIME_ENV="0",  # under `uv run` Ray would build an environment a session
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="1",  # else a trial that asked for no GPU trains on GPU 0
    RAY_CHDIR_TO_TRIAL_DIR="0",  # relative paths in a user's function stay what they are
    RAY_DEDUP_LOGS="0",
    TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1",  # JSON alone: CSV and TensorBoard double the driver's cost of a report
    TUNE_DISABLE_SIGINT_HANDLER="1",  # signals go through `Halt`, SIGTERM too
    TUNE_DISABLE_STRICT_METRIC_CHECKING="1",  # one report without the metric would end the whole experiment
    TUNE_PRINT_ALL_TRIAL_ERRORS="0",  # they are in the journal, trials.csv and the end's summary
    TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S="0",
    RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS="0",
)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # workers inherit it, and recompile torch at each start

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray import tune
from ray.tune import CheckpointConfig
from ray.tune.experiment import Trial
from ray.tune.logger import JsonLoggerCallback, TBXLoggerCallback

from tuner import trial as trials
from tuner.callbacks import JournalCallback
from tuner.decisions import JournalingScheduler
from tuner.engine import ahead, probe
from tuner.engine.controller import installed
from tuner.engine.halt import Halt
from tuner.engine.loopback import on_loopback
from tuner.engine.nodes import Nodes, launchable, present
from tuner.engine.retries import Retries
from tuner.engine.signals import signals_to
from tuner.errors import RequestError
from tuner.experiment import Experiment
from tuner.journal import Event, Journal
from tuner.progress import ProgressTable
from tuner.proposals import KEEP_BEST_AND_LATEST, Proposals
from tuner.resources import Resources, local_cluster
from tuner.resume.ledger import Ledger
from tuner.resume.replay import Replay
from tuner.schedulers import build_scheduler
from tuner.searchers import build_searcher
from tuner.space import Found

logger = logging.getLogger(__name__)
# Of what is set above, what a worker reads: another node's does not inherit it.
SENT = ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_CHDIR_TO_TRIAL_DIR")


@dataclass(frozen=True)
class Outcome:
    """How a search ended: `state` is finished or interrupted, `reason` why before its last trial, if so."""

    state: str
    reason: str = ""


def search(
    experiment: Experiment,
    found: Found,
    splits: Any,
    journal: Journal,
    history: list[Event],
    resources: Resources,
) -> Outcome:
    """Runs the experiment, or the rest of it, to its end, on the Ray that `ray_started` started.

    Args:
        splits: the data with its validation part, or None for a function space.
        history: the journal's events so far; empty for a new search.

    Raises:
        RequestError: the first report shows the request to be wrong.
    """
    halt = Halt(experiment.time_budget, left_s(experiment, history))
    journal.blocked = halt.blocked
    nodes = Nodes(
        resources,
        experiment.max_concurrent_trials,
        follow=bool(experiment.address),
        priority=experiment.priority,
    )
    searcher, num_settings = build_searcher(experiment, found.space)
    scheduler = build_scheduler(experiment, found.space)
    pbt = experiment.scheduler == "pbt"  # needs its whole population at once, and any of its checkpoints
    ledger = Ledger(journal)
    judge = JournalingScheduler(
        scheduler,
        experiment,
        ledger,
        halt,
        found.space.mutable,
        resumed=bool(history),
        concurrent=None if pbt else nodes.concurrent,
    )

    def replayed(source: Proposals) -> list[Trial]:
        replay = Replay(source, judge, ledger, experiment, history)
        trials = replay.run()
        judge.restored(trials, replay.started())
        return trials

    keep = KEEP_BEST_AND_LATEST if found.space.task and not pbt else CheckpointConfig()
    proposals = Proposals(
        searcher,
        num_settings,
        experiment,
        ledger,
        concurrent=(lambda: num_settings) if pbt else nodes.concurrent,
        keep=keep,
        replayed=replayed,
    )
    retries = Retries(experiment.max_failures, history)
    # A cluster may grow, and a population is there at once: then the proposals alone bound how many trials wait.
    all_may_wait = pbt or experiment.address
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(num_settings if all_may_wait else resources.concurrent + 1)
    loggers = [JsonLoggerCallback(), *([TBXLoggerCallback()] if experiment.tensorboard else [])]
    tuner = tune.Tuner(
        trainable(experiment, found, splits, resources),
        tune_config=tune.TuneConfig(
            metric=experiment.metric,
            mode=experiment.mode,
            search_alg=proposals,
            scheduler=judge,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="ray",
            storage_path=str(experiment.folder.absolute()),
            stop=halt,
            callbacks=[JournalCallback(journal, judge, halt, retries), *loggers],
            progress_reporter=ProgressTable(experiment, num_settings, halt.left_s, nodes.notice),
            verbose=1,
        ),
    )
    controller = installed(nodes, not experiment.address, retries, experiment.trial_timeout_s, halt.waiting)
    with signals_to(halt.interrupt), controller:
        try:
            tuner.fit()
        except ValueError:
            if not journal.lost:  # Ray reads its last snapshot back, for which there was no folder
                raise
    state = "interrupted" if halt.interrupted else "finished"
    journal.write("experiment_finished", state=state, reason=halt.reason)
    if halt.error:
        raise halt.error
    return Outcome(state, halt.reason)


def trainable(experiment: Experiment, found: Found, splits: Any, resources: Resources) -> Any:
    """The space's task or function as Ray runs it, with the resources of one trial."""
    space = found.space
    goal = trials.Goal(
        experiment.metric,
        experiment.mode,
        experiment.max_epochs,
        experiment.seed,
        resources.cpus,
        resources.gpus,
        experiment.precision,
        experiment.on_oom,
        space.mutable,
        experiment.strategy,
        resources.workers,
    )
    probe.by_value(found)
    if space.train is not None:
        function = partial(trials.train_function, function=space.train, goal=goal)
    elif experiment.strategy == "ddp":
        function = tune.with_parameters(trials.train_in_workers, shared=(ray.put((space.task, splits)),), goal=goal)
    else:
        # Once into the object store; every worker of a node maps the same arrays.
        function = tune.with_parameters(trials.train_task, task=space.task, splits=splits, goal=goal)
    return tune.with_resources(function, tune.PlacementGroupFactory(resources.bundles()))


@contextmanager
def ray_started(
    experiment: Experiment, found: Found, resources: Resources | None, imports: tuple[str, ...] = ()
) -> Iterator[list[dict[str, float]]]:
    """Ray on this machine, or the cluster of `--address`; leaves it afterwards.

    Yields the resources of each node that there is, or that an autoscaler says that it may add.

    Args:
        resources: of a trial on this machine; None where the nodes of `--address` are to be asked.
        imports: modules that this machine's workers import while the driver still prepares.

    Raises:
        RequestError: a node of the cluster cannot run the search.
    """
    quiet()
    if ray.is_initialized():  # by a program that uses this module as a library: its Ray, its to end
        yield [*present()[0], *launchable()]
        return
    options: dict[str, Any]
    if experiment.address:
        options = {"runtime_env": {**probe.code_of(found), "env_vars": {name: os.environ[name] for name in SENT}}}
    else:
        here, num_processes = local_cluster(), resources.num_processes() if resources else 0
        options = {
            "num_cpus": here["CPU"],
            "num_gpus": here["GPU"],
            "include_dashboard": False,
            "_system_config": ahead.system_config(num_processes, imports),
        }
    try:
        with nullcontext() if experiment.address else on_loopback():
            ray.init(experiment.address or "local", logging_level=logging.ERROR, log_to_driver=False, **options)
    except (OSError, ValueError, RuntimeError) as error:
        if experiment.address:
            raise RequestError(f"--address {experiment.address}: no Ray cluster answers there ({error})") from error
        lies = "its files and sockets lie below RAY_TMPDIR, or else /tmp; give it a short path that can be written to"
        raise RequestError(f"Ray does not start ({error}); {lies}, then --resume {experiment.name}") from error
    try:
        if experiment.address:
            probe.check_nodes(experiment, found)
        else:
            ahead.start_ahead(num_processes)
        yield [*present()[0], *launchable()]
    finally:
        ray.shutdown()


def left_s(experiment: Experiment, history: list[Event]) -> float | None:
    """Seconds left of the time budget after what earlier sessions used; None = no limit."""
    if experiment.time_budget_s is None:
        return None
    used = since = 0.0
    for event in history:
        if event["event"] in ("experiment_started", "experiment_resumed"):
            since = event["time"]
        used += event["time"] - since
        since = event["time"]
    return max(0.0, experiment.time_budget_s - used)


def quiet() -> None:
    """Ray's notices that a user of this program can do nothing about."""
    for name in ("ray", "ray.train", "ray.air"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # its errors are trials', told at the end
    warnings.filterwarnings("ignore", module=r"ray\..*")
