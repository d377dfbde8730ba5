"""Starts Ray, or joins a cluster; only this file calls `ray.init`.

Importing Ray Tune and torch takes a second. So this module imports neither: another thread does, while Ray starts.
"""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import ray

from tuner.engine.cluster import probe
from tuner.engine.cluster.nodes import launchable, present
from tuner.engine.local import alone
from tuner.engine.local.node import OF_THE_FOLDER, cause_in_logs, local_node, start_watched, watched
from tuner.engine.local.signals import end_strays, kept_from_ray
from tuner.engine.processes import launch
from tuner.engine.workers.own_folder import save_all, save_stale
from tuner.errors import RequestError, say
from tuner.record.texts import resume_call
from tuner.spec.experiment import Experiment, Options
from tuner.spec.patience import busy, patience
from tuner.spec.resources import resources_of
from tuner.spec.spaces import LoadedSpace

# Variables of `tuner/__init__.py` that workers read. Ray sets them on a cluster's nodes, which do not inherit them.
SENT = ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_CHDIR_TO_TRIAL_DIR")
SHORT_OF_MEMORY = r"PlasmaAllocator|bad_alloc|annot allocate memory|MemoryError|failed to map segment"
REMEDIES = {  # cause of a failed start, in the text of its error or in a log of Ray -> what to do
    OF_THE_FOLDER: alone.ELSEWHERE,
    r"locale|codec can't": "the locale is not installed, or knows only ASCII; run: export LC_ALL=C.UTF-8",
    "PlasmaAllocator": "give /dev/shm more space: docker run --shm-size=2g, or mount -o remount,size=2G /dev/shm",
    SHORT_OF_MEMORY: "free memory, or use a machine with more",
    "Too many open files": "run: ulimit -n 65536",
    "can't start new thread|Resource temporarily unavailable": "allow more processes and threads, by `ulimit -u`",
}
TOO_SLOW = r"timed? ?out|deadline|has not registered"  # causes that a machine without load would not have
IMPORTS = "ray.tune", "tuner.engine.processes.client"  # of a worker whose trials run in processes of their own
TRY_RAY = "find out whether Ray starts without tuner: python -c 'import ray; ray.init()'"


@contextmanager
def ray_here(
    experiment: Options, imports: Sequence[str], begun: Callable[[], Experiment | None] = lambda: None
) -> Iterator[None]:
    """Starts Ray on this machine, with workers for the experiment's trials; ends it afterwards.

    If the calling program has already started Ray, uses that Ray and leaves it running. While Ray starts, this process
    imports the modules `imports`, as do the workers of ddp. If Ray ends earlier, this process ends and says how to
    continue the search that `begun` returns, once it has a folder. Raises RequestError if a trial does not fit, or Ray
    does not start.
    """
    save_stale()
    with ExitStack() as stack:
        stack.enter_context(launch.root(imports))
        stack.enter_context(launch.started())
        stack.callback(lambda: save_all(experiment.folder) if (experiment := begun()) else None)
        if not ray.is_initialized():
            here, stage = alone.local_cluster(), "starting Ray"
            num_processes = resources_of(experiment, [here]).num_processes()
            with patience(lambda: stage), alone.importing(imports):
                with start_watched(address_space() or "start the search again"):
                    of_workers = imports if experiment.strategy == "ddp" else IMPORTS
                    stack.enter_context(started(here, num_processes, of_workers))
                stack.enter_context(watched(lambda: how_to_continue(begun())))
                alone.start_ahead(num_processes)
                stage = f"importing {' and '.join(imports)}"
        stack.enter_context(alone.no_reports_of_the_dead())
        yield


def how_to_continue(experiment: Experiment | None) -> str:
    if experiment and experiment.folder.exists():
        return f"all that is in the journal is kept; continue with: {resume_call(experiment)}"
    return "no trial had started; start the search again"


def started(here: dict[str, float], num_processes: int, imports: Sequence[str]) -> ExitStack:
    """Starts Ray, with a second try unless `remedy` knows the cause. Closing the returned stack ends Ray."""
    reasons: list[str] = []
    while len(reasons) < 2:
        folder = ""
        with ExitStack() as stack:
            try:
                folder = stack.enter_context(alone.session_folder())
                alone.keep_token_private()
                guard = stack.enter_context(local_node())
                stack.callback(ray.shutdown)
                with kept_from_ray():
                    ray.init(
                        "local",
                        num_cpus=here["CPU"],
                        num_gpus=here["GPU"],
                        include_dashboard=False,
                        log_to_driver=False,
                        **alone.private_options(folder, num_processes, imports),
                    )
                guard.close()
                return stack.pop_all()
            except RequestError:
                raise
            except BaseException as error:  # Ray also raises plain `Exception`
                if isinstance(error, Exception):
                    reasons.append("; ".join(filter(None, [str(error), folder and cause_in_logs(folder)])))
                if folder:
                    end_strays(folder)  # else they write into the folder while it is removed, or stay for ever
                if not isinstance(error, Exception):  # an interrupt
                    raise
        if advice := remedy(reasons[-1]):
            raise RequestError(f"Ray does not start ({reasons[-1]}); {advice}")
        load = busy() if re.search(TOO_SLOW, reasons[-1], re.IGNORECASE) else ""
        if len(reasons) == 1:
            say(f"Ray did not start ({reasons[0]}){load}; starting it a second time", to=sys.stderr)
    advice = "try again when less runs here" if load else TRY_RAY
    raise RequestError(f"Ray did not start twice ({reasons[-1]}){load}; {advice}")


def remedy(reason: str) -> str:
    """Returns what to do about a start of Ray that failed for this reason; empty if the cause is unknown."""
    if re.search(SHORT_OF_MEMORY, reason) and (advice := address_space()):
        return advice
    return next((advice for cause, advice in REMEDIES.items() if re.search(cause, reason)), "")


def address_space() -> str:
    """Returns what to do about this process's limit of the address space; empty if it has none."""
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most == resource.RLIM_INFINITY:
        return ""
    return f"Ray reserves more address space than the {most >> 20:,} MiB of `ulimit -v`; run: ulimit -v unlimited"


@contextmanager
def ray_at(experiment: Experiment, loaded_space: LoadedSpace) -> Iterator[None]:
    """Joins the cluster of --address for a `with` block; RequestError if no cluster answers or a node is unfit."""
    runtime_env = {**probe.runtime_env_of(loaded_space), "env_vars": {name: os.environ[name] for name in SENT}}
    try:
        with kept_from_ray():
            ray.init(experiment.address, log_to_driver=False, runtime_env=runtime_env)
    except (OSError, ValueError, RuntimeError) as error:
        raise RequestError(
            f"--address {experiment.address}: cannot join Ray there ({error}); start a cluster, or correct the address"
        ) from error
    try:
        with patience("waiting until each node of the cluster has loaded the space"):
            probe.check_nodes(experiment, loaded_space)
        with alone.no_reports_of_the_dead():
            yield
    finally:
        ray.shutdown()


def nodes() -> list[dict[str, float]]:
    """Returns the resources of each live node that is not being drained, and of each node the autoscaler may add."""
    return [*present()[0], *launchable()]
