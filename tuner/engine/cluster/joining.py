"""Checks whether a driver on this machine may join a cluster that already runs (`--address`)."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray._common.usage.usage_lib import get_cluster_metadata
from ray._private.services import canonicalize_bootstrap_address_or_die
from ray._raylet import Config, GcsClient  # type: ignore[attr-defined]  # Ray's type stub lacks both classes
from ray.exceptions import AuthenticationError, RayError

from tuner.errors import RequestError

SUBMIT = "ray job submit --address http://HEAD:8265 -- python -m tuner.run --address auto ..."


def check_head(address: str) -> None:
    """Raises RequestError if a driver on this machine cannot join the cluster; queries its head and starts nothing.

    Ray itself would retry for 20 s after a wrong token, and for minutes if the address does not answer.
    """
    if address.startswith("ray://"):
        raise RequestError(
            f"--address {address}: a search runs inside the cluster; Ray's client (ray://) does not support Ray Tune's "
            f"callbacks; start the search on a node: {SUBMIT}"
        )
    head = _listening(address)
    with _backend_silenced():
        cluster, nodes = _asked(address, head)
    theirs = f"Ray {cluster['ray_version']} on Python {cluster['python_version']}"
    ours = f"Ray {ray.__version__} on Python {platform.python_version()}"
    if theirs != ours:
        raise RequestError(
            f"--address {address}: the cluster runs {theirs}, but this process runs {ours}; install the cluster's "
            f"versions here, or start the search there: {SUBMIT}"
        )
    if not any(node.state == node.ALIVE and _is_here(node.node_manager_address) for node in nodes):
        raise RequestError(
            f"--address {address}: this machine is no node of that cluster; start the search on a node: {SUBMIT}"
        )


def _listening(address: str) -> str:
    """Returns the head's `host:port`; raises RequestError if the address is wrong or nothing listens there."""
    try:
        head: str = canonicalize_bootstrap_address_or_die(address)
    except ConnectionError as error:  # Ray finds no cluster on this machine, or more than one
        raise RequestError(f"--address {address}: {' '.join(str(error).split())}") from None
    except (ValueError, OSError):
        raise RequestError(f"--address {address}: must be auto or host:port") from None
    host, _, port = head.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise RequestError(
            f"--address {address}: nothing answers there ({error}); start a cluster with `ray start --head`"
        ) from None
    return head


def _asked(address: str, head: str) -> tuple[dict[str, Any], list[Any]]:
    """Returns the cluster's metadata (its versions) and nodes; RequestError if tokens differ or no Ray head answers."""
    path = os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")
    has_token = bool(os.environ.get("RAY_AUTH_TOKEN")) or Path(path).expanduser().is_file()
    if "RAY_AUTH_MODE" not in os.environ and has_token:  # as `ray.init` does
        _set_mode("token")
    by_token = os.environ.get("RAY_AUTH_MODE", "").lower() == "token"
    if by_token and not has_token:  # GcsClient would end the process
        raise RequestError(
            f"--address {address}: RAY_AUTH_MODE=token, but this machine has no token; copy what `ray get-auth-token` "
            f"prints on the cluster's head to {path}"
        )
    if by_token and _asks_for_no_token(head):
        raise RequestError(
            f"--address {address}: the cluster asks for no token, but this driver has one and would refuse its trials' "
            f"answers, which have none; set RAY_AUTH_MODE=disabled, or start the cluster with RAY_AUTH_MODE=token"
        )
    try:
        client = GcsClient(address=head)
        return get_cluster_metadata(client), list(client.get_all_node_info(timeout=10).values())
    except AuthenticationError:
        raise RequestError(
            f"--address {address}: the cluster requires its own token (here RAY_AUTH_MODE is "
            f"{os.environ.get('RAY_AUTH_MODE', 'unset')}); copy what `ray get-auth-token` prints on its head to "
            f"~/.ray/auth_token here, and set RAY_AUTH_MODE=token"
        ) from None
    except (RayError, RuntimeError) as error:
        raise RequestError(
            f"--address {address}: what listens there is no Ray head ({' '.join(str(error).split())[:100]}); give the "
            f"port of `ray start --head`, 6379 by default"
        ) from None


@contextmanager
def _backend_silenced() -> Iterator[None]:
    """Hides what Ray's C++ code writes to file descriptor 2: a warning per refused call."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _set_mode(mode: str) -> None:
    os.environ["RAY_AUTH_MODE"] = mode
    Config.initialize("")  # makes Ray read RAY_AUTH_MODE again


def _asks_for_no_token(head: str) -> bool:
    """Whether the cluster requires no token; queries it without one, as such a cluster would also accept any token."""
    try:
        _set_mode("disabled")
        get_cluster_metadata(GcsClient(address=head))
    except (RayError, RuntimeError):
        return False
    finally:
        _set_mode("token")
    return True


def _is_here(host: str) -> bool:
    """Whether an address belongs to this machine: a socket can only be bound to such an address."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True
