"""What a cluster's nodes are sent, and each asked before the first trial: does the space load, are the results shared?

The code travels: each node gets the packages `tuner` and `search_spaces` and the space's own, as the driver has them.
"""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayError, RuntimeEnvSetupError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tuner.errors import RequestError
from tuner.spec.experiment import Experiment
from tuner.spec.spaces import Found

PATIENCE_S = 60.0  # a node's first worker: the code is fetched, Ray and the space imported; 3 to 10 s where all is well


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


def by_value(found: Found) -> None:
    """A space given as a file is no module that a worker could import: its functions travel themselves."""
    if _is_file(found):
        cloudpickle.register_pickle_by_value(sys.modules[found.module])


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


def _is_file(found: Found) -> bool:
    return found.module.startswith("tuner_space_")


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
        said = " ".join(str(error).split())[:200]
        return f"cannot be given the code ({said}); see runtime_env_setup-*.log there, in /tmp/ray/session_latest/logs"
    except RayError as error:
        return f"cannot run a task ({' '.join(str(error).split())[:200]})"
