"""Starts Ray and runs a search on it: the one file that starts Ray and its Tuner.

This module imports only `ray` itself, so that Ray starts while the rest, a second of imports, is still loading.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import ray

from tuner.engine import ahead, alone, probe
from tuner.engine.loopback import on_loopback
from tuner.engine.machine import local_cluster
from tuner.engine.nodes import launchable, present
from tuner.engine.signals import signals_to
from tuner.errors import RequestError
from tuner.record.journal import Journal
from tuner.spec.experiment import Experiment
from tuner.spec.resources import resources_of
from tuner.spec.spaces import Found

if TYPE_CHECKING:
    from tuner.drive.assembly import Assembly

# Of what `tuner/__init__.py` sets, what a worker reads: workers of other nodes do not inherit it.
SENT = ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_CHDIR_TO_TRIAL_DIR")
UNANSWERED = "its files and sockets lie below RAY_TMPDIR, or else /tmp; give it a short path that can be written to"


@dataclass(frozen=True)
class Outcome:
    """How a search ended: `state` is finished or interrupted, `reason` why before its last trial, if so."""

    state: str
    reason: str = ""


def search(assembly: Assembly, journal: Journal) -> Outcome:
    """Runs a search that was put together to its end, on the Ray that runs.

    Raises:
        RequestError: the first report shows the request to be wrong.
    """
    halt = assembly.halt
    with signals_to(halt.interrupt), assembly.controller:
        try:
            assembly.tuner.fit()
        except ValueError:
            if not journal.lost:  # Ray reads its last snapshot back, for which there was no folder
                raise
    state = "interrupted" if halt.interrupted else "finished"
    journal.write("experiment_finished", state=state, reason=halt.reason)
    if halt.error:
        raise halt.error
    return Outcome(state, halt.reason)


@contextmanager
def ray_here(experiment: Experiment, imports: Sequence[str]) -> Iterator[None]:
    """Starts Ray on this machine, with workers for the trials of the experiment; ends it afterwards.

    Called before the space is loaded: where the space itself asks for more workers than the command line does, Ray
    starts those when the trials ask for them.

    Args:
        imports: modules that this process and the workers import meanwhile.

    Raises:
        RequestError: the machine cannot hold a trial, or Ray does not start.
    """
    quiet()
    if ray.is_initialized():  # by a program that uses this module as a library: its Ray, its to end
        yield
        return
    here = local_cluster()
    num_processes = resources_of(experiment, [here]).num_processes()
    with ExitStack() as held:
        with ahead.importing(imports):
            try:
                folder = held.enter_context(alone.session_folder())
                with alone.no_cluster_services(), on_loopback():
                    ray.init(
                        "local",
                        num_cpus=here["CPU"],
                        num_gpus=here["GPU"],
                        include_dashboard=False,
                        logging_level=logging.ERROR,
                        log_to_driver=False,
                        **ahead.private_options(folder, num_processes, imports),
                    )
            except Exception as error:  # Ray raises a bare one where its processes take too long
                raise RequestError(f"Ray does not start ({error}); {UNANSWERED}") from error
            held.callback(ray.shutdown)
            ahead.start_ahead(num_processes)
        yield


@contextmanager
def ray_at(experiment: Experiment, found: Found) -> Iterator[None]:
    """Joins the cluster of `--address`; leaves it afterwards.

    Raises:
        RequestError: no cluster answers there, or a node of it cannot run the search.
    """
    quiet()
    runtime_env = {**probe.code_of(found), "env_vars": {name: os.environ[name] for name in SENT}}
    try:
        ray.init(experiment.address, logging_level=logging.ERROR, log_to_driver=False, runtime_env=runtime_env)
    except (OSError, ValueError, RuntimeError) as error:
        raise RequestError(f"--address {experiment.address}: no Ray cluster answers there ({error})") from error
    try:
        probe.check_nodes(experiment, found)
        yield
    finally:
        ray.shutdown()


def nodes() -> list[dict[str, float]]:
    """The resources of each node that there is, or that an autoscaler says that it may add."""
    return [*present()[0], *launchable()]


def quiet() -> None:
    """Ray's notices that a user of this program can do nothing about."""
    for name in ("ray", "ray.train", "ray.air"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # its errors are trials', told at the end
    warnings.filterwarnings("ignore", module=r"ray\..*")
