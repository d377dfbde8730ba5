"""A cluster that runs already (`--address`): what would fail there is found before the first trial, and said in a line.

The code travels: each node gets the packages `tuner` and `search_spaces` and the space's own, as the driver has them.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import yaml
from ray import cloudpickle
from ray._common.usage.usage_lib import get_cluster_metadata
from ray._private.authentication.authentication_token_setup import (
    ensure_token_if_auth_enabled,
    maybe_enable_token_auth_if_token_available,
)
from ray._private.services import canonicalize_bootstrap_address_or_die
from ray._private.utils import compute_version_info
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # its stub leaves the class out
from ray.exceptions import AuthenticationError, GetTimeoutError, RayError, RuntimeEnvSetupError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tuner.errors import RequestError
from tuner.experiment import Experiment
from tuner.space import Found

SUBMIT = "ray job submit --address http://HEAD:8265 -- python -m tuner.run --address auto ..."
PATIENCE_S = 60.0  # a node's first worker: the code is fetched, Ray and the space imported; 3 to 10 s where all is well


def check_head(address: str) -> None:
    """RequestError where a driver on this machine could not join the cluster; asks its head and starts nothing.

    Ray itself retries a wrong token for 20 s and an address without an answer for minutes, and ends the process where
    the token's file is missing.
    """
    if address.startswith("ray://"):
        raise RequestError(
            f"--address {address}: a search runs inside the cluster, not through Ray's client, which cannot carry "
            f"Tune's callbacks; run it there: {SUBMIT}"
        )
    cluster, nodes = _asked(address, _listening(address))
    theirs, ours = (cluster["ray_version"], cluster["python_version"]), tuple(compute_version_info()[:2])
    if theirs != ours:
        raise RequestError(
            f"--address {address}: the cluster runs Ray {theirs[0]} on Python {theirs[1]}, this is Ray {ours[0]} on "
            f"Python {ours[1]}; install the same here, or start the search with the cluster's own: {SUBMIT}"
        )
    if not any(node.state == node.ALIVE and _is_here(node.node_manager_address) for node in nodes):
        raise RequestError(
            f"--address {address}: this machine is no node of that cluster; start the search on one: {SUBMIT}"
        )


def code_of(found: Found) -> dict[str, Any]:
    """The runtime environment of the search: its packages as this process has them."""
    import search_spaces
    import tuner

    modules = {"tuner": tuner, "search_spaces": search_spaces}
    if not _is_file(found):
        own = found.module.partition(".")[0]
        modules[own] = sys.modules[own]
    # As paths: Ray copies what a job already has together with this, and modules cannot be copied.
    paths = [str(next(iter(getattr(module, "__path__", [])), module.__file__)) for module in modules.values()]
    return {"py_modules": paths, "excludes": ["**/__pycache__"]}


def check_nodes(experiment: Experiment, found: Found) -> None:
    """A task on every node: the space loads there, and the results folder is the driver's. RequestError if not."""
    by_value(found)
    code = cloudpickle.dumps(found.space.task or found.space.train)
    with _mark(Path(experiment.results).absolute()) as mark:
        task = ray.remote(num_cpus=0, max_retries=0)(visit)
        asked = {
            task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
                code, str(mark)
            ): node["NodeManagerAddress"]
            for node in ray.nodes()
            if node["Alive"]
        }
        ray.wait(list(asked), num_returns=len(asked), timeout=PATIENCE_S)
        told: dict[str, list[str]] = {}
        for ref, host in asked.items():
            told.setdefault(_answer(ref), []).append(host)
    told.pop("", None)
    for said, hosts in told.items():
        others = f" (and {len(hosts) - 1} more)" if len(hosts) > 1 else ""
        raise RequestError(f"--address {experiment.address}: node {hosts[0]}{others}: {said}")


def visit(code: bytes, mark: str) -> str:
    """On a node: what is wrong there and what to do, or nothing."""
    try:
        cloudpickle.loads(code)
    except Exception as error:
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return f"the space does not load ({what}); install what it imports on every node, or keep it in its own package"
    results = os.path.dirname(mark)
    if not os.path.isdir(mark):
        return f"--results {results} is another folder there; give one that all nodes share"
    try:
        Path(mark, uuid.uuid4().hex).touch()
    except OSError as error:
        return f"--results {results} cannot be written to there ({error.strerror}); its user must be allowed to"
    return ""


def capacity() -> dict[str, float]:
    """Name -> amount of each resource: what the cluster has, or more where its autoscaler may add it.

    `ray up` leaves its file on the head, where the driver is; without it, what there is now.
    """
    cluster = {name: float(amount) for name, amount in ray.cluster_resources().items()}
    try:
        launched = yaml.safe_load(Path("~/ray_bootstrap_config.yaml").expanduser().read_text())
    except OSError:
        return cluster
    most: dict[str, float] = {}
    for kind in launched["available_node_types"].values():
        for name, amount in kind["resources"].items():
            most[name] = most.get(name, 0.0) + amount * kind.get("max_workers", 0)
    return {name: max(cluster.get(name, 0.0), most.get(name, 0.0)) for name in {**cluster, **most}}


def by_value(found: Found) -> None:
    """A space given as a file is no module that a worker could import: its functions travel themselves."""
    if _is_file(found):
        cloudpickle.register_pickle_by_value(sys.modules[found.module])


def _is_file(found: Found) -> bool:
    return found.module.startswith("tuner_space_")


def _listening(address: str) -> str:
    """The head's `host:port`; RequestError where nothing listens."""
    try:
        head: str = canonicalize_bootstrap_address_or_die(address)
    except ConnectionError:
        raise RequestError(
            f"--address {address}: no Ray runs on this machine; start it with `ray start --head`"
        ) from None
    except (ValueError, OSError):
        raise RequestError(f"--address {address}: must be auto or host:port") from None
    host, _, port = head.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise RequestError(f"--address {address}: nothing answers there ({error}); start it with `ray start`") from None
    return head


def _asked(address: str, head: str) -> tuple[dict[str, Any], list[Any]]:
    """The cluster's metadata and nodes; RequestError where the head does not answer to this token."""
    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    try:
        ensure_token_if_auth_enabled(create_token_if_missing=False)  # without one GcsClient ends the process
    except AuthenticationError:
        path = os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")
        raise RequestError(
            f"--address {address}: RAY_AUTH_MODE=token, and no token is here; copy what `ray get-auth-token` prints on "
            f"the cluster's head to {path}"
        ) from None
    try:
        client = GcsClient(address=head)
        return get_cluster_metadata(client), list(client.get_all_node_info(timeout=10).values())
    except AuthenticationError:
        raise RequestError(
            f"--address {address}: the cluster refuses this token (RAY_AUTH_MODE is "
            f"{os.environ.get('RAY_AUTH_MODE', 'unset')}); copy what `ray get-auth-token` prints on its head to "
            f"~/.ray/auth_token here, and set RAY_AUTH_MODE=token"
        ) from None
    except (RayError, RuntimeError) as error:
        raise RequestError(
            f"--address {address}: what listens there is no Ray head ({' '.join(str(error).split())[:100]}); give the "
            f"port of `ray start --head`, 6379 unless chosen otherwise"
        ) from None


def _is_here(host: str) -> bool:
    """Whether an address is one of this machine's: only those can be bound."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


@contextmanager
def _mark(results: Path) -> Iterator[Path]:
    """A folder in `results` that nobody else has, gone afterwards."""
    mark = results / f".tuner-{uuid.uuid4().hex}"
    mark.mkdir(parents=True)
    try:
        yield mark
    finally:
        shutil.rmtree(mark, ignore_errors=True)


def _answer(ref: Any) -> str:
    try:
        said: str = ray.get(ref, timeout=0)
        return said
    except GetTimeoutError:
        return f"has not answered in {PATIENCE_S:.0f} s; see the Ray logs there, /tmp/ray/session_latest/logs"
    except RuntimeEnvSetupError as error:
        return (
            f"cannot be given the code ({' '.join(str(error).split())[:200]}); it needs ray[default] (extra `cluster`)"
        )
    except RayError as error:
        return f"cannot run a task ({' '.join(str(error).split())[:200]})"
