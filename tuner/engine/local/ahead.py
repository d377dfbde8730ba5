"""Starts imports in the driver and in new worker processes before the first trial needs them.

Ray's default of one process per CPU is too many for few trials at once, and too few for ddp, where each trial has one
more process. By default Ray also ends idle processes as soon as a trial's placement group has taken all CPUs. It would
then start new ones for the workers, whose imports take 5 s for two processes on two cores.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import ray
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated.node_manager_pb2 import PrestartWorkersRequest
from ray.core.generated.node_manager_pb2_grpc import NodeManagerServiceStub

logger = logging.getLogger(__name__)
KEEP_S = 600  # for which Ray keeps an idle process, even if all CPUs are taken; all are idle until the first trial
# Limits that Ray (2.60) would reach beside 20 processes that spin on two cores, where all takes 20 times as long.
PATIENT = {
    "agent_register_timeout_ms": 600_000,  # 30 s: then the raylet ends, since it cannot reach an agent
    "worker_register_timeout_seconds": 600,  # 60 s: then the raylet kills a worker that still imports torch
    "worker_niceness": 0,  # 15: beside 20 processes a worker then gets 1/570 of a core, and imports torch for hours
    "health_check_timeout_ms": 60_000,  # 10 s: after five of them the GCS declares the raylet dead
}


def private_options(folder: str, num_processes: int, imports: Sequence[str]) -> dict[str, Any]:
    """Returns options for `ray.init` with which only `start_ahead` starts workers before a trial needs them.

    Args:
        folder: where Ray puts its sockets and logs.
        num_processes: number of processes that `start_ahead` will request; Ray drops requests beyond this number.
        imports: modules that each worker process imports when it starts.
    """
    config = {
        "prestart_worker_first_driver": False,
        "worker_maximum_startup_concurrency": num_processes,
        "preload_python_modules": list(imports),
        **PATIENT,
    }
    return {"_temp_dir": folder, "_system_config": config}


@contextmanager
def importing(modules: Sequence[str]) -> Iterator[None]:
    """Imports modules in a second thread while the `with` block runs, and waits for the thread at its end.

    The driver is idle while Ray's processes start, so the imports cost no time. The block must not import Ray Tune:
    its modules import each other in circles, so two threads at once would get half-imported modules.
    """

    def load() -> None:
        for module in modules:
            importlib.import_module(module)

    with ThreadPoolExecutor(1, "imports") as pool:
        pool.submit(load)
        yield
    load()  # costs nothing after a success; if an import failed, repeats it, so that its error is raised here


def start_ahead(num_processes: int) -> None:
    """Makes this machine's Ray start `num_processes` worker processes, without waiting for them.

    Ray has no Python function for this, so this calls the raylet (ray 2.60, NodeManagerService.PrestartWorkers). If the
    call fails, this logs a warning, and Ray starts workers when trials need them.
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
