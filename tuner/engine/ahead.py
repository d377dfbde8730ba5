"""What is started before it is needed: imports of the driver, and worker processes that have torch imported.

By itself Ray starts a process a CPU, whatever is going to run: too many where trials are few (each imports torch), too
few for ddp, where each trial has a process that waits beside its workers. And it ends idle ones as soon as a trial's
placement group has taken all CPUs, to start the workers' processes anew: 5 s of imports, for two on two cores.
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
KEEP_S = 600  # how long an idle one is kept, taken CPUs or not: the driver has data to send before its first trial


def private_options(folder: str, num_processes: int, imports: Sequence[str]) -> dict[str, Any]:
    """Returns options for `ray.init`: the folder of Ray's files, no processes by Ray's own count, and their imports.

    Args:
        num_processes: processes that `start_ahead` will ask for; Ray drops requests beyond this number.
    """
    config = {
        "prestart_worker_first_driver": False,
        "worker_maximum_startup_concurrency": num_processes,
        "preload_python_modules": list(imports),
    }
    return {"_temp_dir": folder, "_system_config": config}


@contextmanager
def importing(modules: Sequence[str]) -> Iterator[None]:
    """Imports modules in a second thread while the block runs, and waits for them at its end.

    The driver has nothing to do while Ray's processes start. It must not import Ray Tune itself before the thread has:
    Ray Tune's modules import each other in circles, and Python gives a half-imported one to the second thread.
    """

    def load() -> None:
        for module in modules:
            importlib.import_module(module)

    with ThreadPoolExecutor(1, "imports") as pool:
        pool.submit(load)
        yield
    load()  # nothing to do where the thread succeeded; else its error is raised here, if it is one


def start_ahead(num_processes: int) -> None:
    """Has the Ray of this machine start that many worker processes, without waiting for them.

    Ray's own call for it has no Python function, only the raylet's end (ray 2.60, NodeManagerService.PrestartWorkers).
    """
    context, (node,) = ray.get_runtime_context(), ray.nodes()
    request = PrestartWorkersRequest(  # of the language 0, Python
        job_id=bytes.fromhex(context.get_job_id()),
        num_workers=num_processes,
        keep_alive_duration_secs=KEEP_S,
    )
    request.runtime_env_info.serialized_runtime_env = "{}"  # that of actors without one of their own
    raylet = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
    try:
        with init_grpc_channel(raylet, options=[("grpc.enable_http_proxy", 0)]) as channel:
            NodeManagerServiceStub(channel).PrestartWorkers(request, timeout=10)
    except grpc.RpcError as error:
        logger.warning("no worker was started ahead (%s): the first trials wait for theirs", error.details())
