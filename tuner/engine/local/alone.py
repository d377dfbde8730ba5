"""Ray for one search of one user on this machine: resources, settings, early imports, folder, token and messages."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import ray
from ray._private import ray_constants, worker
from ray._private.accelerators import get_accelerator_manager_for_resource
from ray._private.grpc_utils import init_grpc_channel
from ray._private.utils import get_num_cpus
from ray.core.generated.node_manager_pb2 import PrestartWorkersRequest
from ray.core.generated.node_manager_pb2_grpc import NodeManagerServiceStub

from tuner.engine.local.signals import end_strays, removed_at_kill
from tuner.errors import RequestError
from tuner.record.storage.made import stale_folders, temporary_folder

logger = logging.getLogger(__name__)
# Parts of Ray's lines about a worker (1,000 characters), a raylet (20 lines of its log) and a node.
DEAD = "A worker died or was killed while executing", "Raylet is terminated", "has been marked dead because"
PREFIX = "tuner_"  # begins the name of a session's folder
ELSEWHERE = "Ray keeps files and sockets in RAY_TMPDIR, TMPDIR or /tmp; set RAY_TMPDIR to a short writable path"
KEEP_S = 600  # seconds that Ray keeps an idle process, even if no CPU is free; before the first trial, each is idle
# Settings for a busy machine: 20 processes that spin on two cores. Each comment begins with Ray's own value (2.60).
PATIENT = {
    "agent_register_timeout_ms": 600_000,  # 30 s: then the raylet ends, since it cannot reach an agent
    "worker_register_timeout_seconds": 600,  # 60 s: then the raylet kills a worker that still imports torch
    "worker_niceness": 0,  # 15: beside 20 processes a worker then gets 1/570 of a core, and imports torch for hours
    "health_check_timeout_ms": 60_000,  # 10 s: after five timeouts the GCS declares the raylet dead
}


def visible_gpus() -> list[str]:
    """Return the ids of the GPUs that this process may use; CUDA_VISIBLE_DEVICES and similar variables select them."""
    manager = get_accelerator_manager_for_resource("GPU")
    if manager is None:
        return []
    on_machine = manager.get_current_node_num_accelerators()
    visible = manager.get_current_process_visible_accelerator_ids()
    return [str(index) for index in range(on_machine)] if visible is None else visible[:on_machine]


def num_gpus() -> int:
    return len(visible_gpus())


def local_cluster() -> dict[str, float]:
    """Returns the CPUs and GPUs that a search on this machine may use, as Ray's resources; Ray need not run."""
    if ray.is_initialized():  # by tuner, or by the program that calls tuner and chose its resources
        here = ray.cluster_resources()
        return {name: float(here.get(name, 0)) for name in ("CPU", "GPU")}
    # Ray's count respects a container's CPU quota; the affinity mask respects taskset and batch systems.
    return {"CPU": float(min(int(get_num_cpus()), len(os.sched_getaffinity(0)))), "GPU": float(num_gpus())}


def correct_late_import() -> None:
    """Corrects a constant if Ray was imported before tuner; warns in one line if this process has started Ray."""
    # While this constant is True, Ray builds an environment per session under `uv run`, which takes 60 s.
    ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False
    if ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.SCRIPT_MODE:
        logger.warning(
            "Ray was started before tuner was imported: a trial without a GPU may train on GPU 0, and the working "
            "directory of a trial may differ from this one; import tuner before ray.init(), or call ray.shutdown()"
        )


def private_options(folder: str, num_processes: int, imports: Sequence[str]) -> dict[str, Any]:
    """Returns options of `ray.init`: folder, preloaded modules, longer limits, no early workers but `start_ahead`'s."""
    config = {
        "prestart_worker_first_driver": False,
        "worker_maximum_startup_concurrency": num_processes,  # Ray drops requests beyond this number
        "preload_python_modules": list(imports),
        "enable_metrics_collection": False,  # its figures go to the agent that `LocalNode` replaces
        "enable_pipe_based_agent_to_parent_health_check": True,  # the raylet's agents end as soon as it has ended
    }
    return {"_temp_dir": folder, "_system_config": config | PATIENT}


@contextmanager
def importing(modules: Sequence[str]) -> Iterator[None]:
    """Imports modules in a second thread while the `with` block starts Ray's processes.

    The block must not import Ray Tune: its modules import each other in circles, so two threads at once would get
    half-imported modules.
    """
    pool = ThreadPoolExecutor(1, "imports")
    try:
        pool.map(importlib.import_module, modules)
        yield
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)  # after Ctrl-C, torch's import may take long
        raise
    pool.shutdown()
    for module in modules:  # costs nothing after a success; an import that failed is repeated, and raises its error
        importlib.import_module(module)


def start_ahead(num_processes: int) -> None:
    """Makes this machine's Ray start `num_processes` worker processes, without waiting; logs a warning if it fails.

    Ray's own number, one per CPU, suits neither few trials at once nor ddp. Ray also ends idle processes as soon as
    trials have taken all CPUs, and then starts new ones, whose imports take 5 s on two cores. Ray has no Python
    function to start processes, so this one calls the raylet (ray 2.60).
    """
    context, (node,) = ray.get_runtime_context(), ray.nodes()
    request = PrestartWorkersRequest(  # `language` keeps its default, 0 = Python
        job_id=bytes.fromhex(context.get_job_id()),
        num_workers=num_processes,
        keep_alive_duration_secs=KEEP_S,
    )
    request.runtime_env_info.serialized_runtime_env = "{}"  # as for actors that declare no runtime environment
    raylet = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
    try:
        with init_grpc_channel(raylet, options=[("grpc.enable_http_proxy", 0)]) as channel:
            NodeManagerServiceStub(channel).PrestartWorkers(request, timeout=60)
    except grpc.RpcError as error:
        logger.warning("no worker was started ahead (%s): the first trials wait for theirs", error.details())


def no_reports_of_the_dead() -> AbstractContextManager[Any]:
    """Drops Ray's own lines about each dead worker, raylet or node; tuner's lines name the trial and the cause."""
    theirs = worker.print_to_stdstream

    def shown(data: dict[str, Any], ignore_prefix: bool) -> None:
        if data.get("pid") != "raylet" or not any(dead in line for dead in DEAD for line in data["lines"]):
            theirs(data, ignore_prefix)

    return mock.patch.object(worker, "print_to_stdstream", shown)


@contextmanager
def session_folder() -> Iterator[str]:
    """Creates a folder that only this user may enter, since Ray's files there are writable by all; then removes it.

    First removes the folders of searches that were killed.
    """
    base = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")  # in the order in which Ray chooses
    with ExitStack() as stack:
        try:
            base.mkdir(parents=True, exist_ok=True)
            for stale in stale_folders(base, PREFIX):
                end_strays(str(stale.path))
                stale.remove()
            made = stack.enter_context(temporary_folder(PREFIX, base))
        except OSError as error:
            raise RequestError(
                f"Ray does not start: no folder can be made in {base} ({error.strerror}); {ELSEWHERE}"
            ) from None

        def remove() -> None:
            end_strays(str(made.path))
            made.remove()

        stack.enter_context(removed_at_kill(remove))
        yield str(made.path / "ray")


def keep_token_private() -> None:
    """Creates Ray's authentication token with mode 0600, unless the environment names one or turns tokens off.

    An existing token is kept; if its file is this user's and everybody can read it, its mode becomes 0600. Raises
    RequestError if the token cannot be made.
    """
    named = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ)
    is_needed = os.environ.get("RAY_AUTH_MODE", "token") == "token" and not named
    try:
        _make_token(Path.home() / ".ray" / "auth_token", is_needed)  # the path that Ray documents
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no HOME, and the user has no entry in /etc/passwd
        if not is_needed:
            return
        home = os.environ.get("HOME", "which is not set")
        why = f"its token cannot be made in HOME, {home} ({getattr(error, 'strerror', None) or error})"
        raise RequestError(f"Ray does not start: {why}; set HOME to a folder that can be written") from None


def _make_token(path: Path, is_needed: bool) -> None:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid == os.getuid() and stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IROTH:
                os.fchmod(file.fileno(), 0o600)
    except FileNotFoundError:
        if not is_needed:
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (
            suppress(FileExistsError),  # another search has created the token in the meantime
            open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file,
        ):
            file.write(secrets.token_hex(32))
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.EACCES) and not path.exists():
            raise
        # Else it is a link, or a file that this user cannot read: it must not be changed.
