"""Ray on one machine for one search, without the processes that serve clusters and people who watch them.

`ray.init` starts three of them beside what runs trials, and offers no option against it (ray 2.60): the autoscaler's
monitor, a reduced dashboard, and the log monitor, which prints workers' output in the driver and is not wanted here.
Each imports Ray. Without them Ray starts in 1.4 s where it takes 2.2 s, uses 1.3 s less of CPU time while workers
import torch, and ends in 0.1 s where it takes 1.4 s (two cores, AMD EPYC).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray._private.node import Node

SERVICES = ("start_monitor", "start_log_monitor", "start_api_server")


@contextmanager
def no_cluster_services() -> Iterator[None]:
    """Inside, `ray.init` starts a node that has only a GCS, a raylet with its agents, and workers."""

    def skipped(self: Node, **options: Any) -> None:
        self._webui_url = ""

    before = {name: getattr(Node, name) for name in SERVICES}
    try:
        for name in SERVICES:
            setattr(Node, name, skipped)
        yield
    finally:
        for name, method in before.items():
            setattr(Node, name, method)


@contextmanager
def session_folder() -> Iterator[str]:
    """Makes the folder for Ray's sockets and logs, which only this user may enter; removes it afterwards.

    Ray's own, /tmp/ray/session_*, can be written to by every user of the machine: Ray opens whatever it makes to all,
    so a folder around it has to keep them out.
    """
    base = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")  # as Ray does
    if not base.exists():
        base.mkdir(parents=True)
    folder = tempfile.mkdtemp(prefix="tuner", dir=base)
    try:
        yield f"{folder}/ray"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
