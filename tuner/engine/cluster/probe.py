"""Sends the search's code to a cluster's nodes; checks each node before the first trial.

Each node gets the driver's copies of the packages `tuner` and `search_spaces`, and of the space's own package, if any.
A node must load the space, share the results folder with the driver, and be able to write to that folder.
"""

from __future__ import annotations

import copyreg
import importlib
import os
import sys
import uuid
from pathlib import Path
from types import ModuleType
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayError, RuntimeEnvSetupError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tuner.errors import RequestError
from tuner.record.storage.made import temporary_folder
from tuner.spec.experiment import Experiment
from tuner.spec.spaces import MAIN, LoadedSpace

PROBE_TIMEOUT_S = 300.0  # for the answers of all nodes: up to 10 s, above 60 s on busy nodes (Ray's niceness: 15)


def runtime_env_of(loaded_space: LoadedSpace) -> dict[str, Any]:
    """Returns the search's runtime environment: the paths from which this process imported the packages to send."""
    names = ["tuner", "search_spaces"]
    if not _is_file(loaded_space) and loaded_space.module != MAIN:  # otherwise cloudpickle sends the space's code
        names.append(loaded_space.module.partition(".")[0])  # may be `search_spaces`
    modules = [importlib.import_module(name) for name in dict.fromkeys(names)]
    # Paths, not modules: under `ray job submit`, Ray deep-copies this runtime environment, and cannot copy modules.
    paths = [str(next(iter(getattr(module, "__path__", [])), module.__file__)) for module in modules]
    return {"py_modules": paths, "excludes": ["**/__pycache__"]}


def by_value(loaded_space: LoadedSpace) -> None:
    """Makes cloudpickle send a space file's functions by value, since workers cannot import that file as a module.

    Modules of a class of their own, such as `torch.backends.cudnn`, are sent by name, as all others.
    """
    for kind in {type(module) for module in [*sys.modules.values()]} - {ModuleType}:
        if issubclass(kind, ModuleType):
            copyreg.pickle(kind, _by_name)
    if _is_file(loaded_space):
        cloudpickle.register_pickle_by_value(sys.modules[loaded_space.module])


def _by_name(module: ModuleType) -> Any:
    is_known = sys.modules.get(module.__name__) is module
    return (importlib.import_module, (module.__name__,)) if is_known else ModuleType.__reduce_ex__(module, 4)


class OnPath:
    """A value that another process unpickles as itself, once it finds the modules that this process finds.

    A space may have extended `sys.path`, as by `sys.path.insert(0, "src")`, before it imported its modules.
    """

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce__(self) -> Any:
        return _value_of, (_Path(), self._value)  # unpickled in this order


class _Path:
    def __reduce__(self) -> Any:
        return _extend_path, ([os.path.abspath(each) for each in sys.path],)


def _extend_path(path: list[str]) -> None:
    sys.path[:0] = [each for each in path if each not in sys.path]


def _value_of(path: None, value: Any) -> Any:
    return value


def check_nodes(experiment: Experiment, loaded_space: LoadedSpace) -> None:
    """Runs a task on every living node; raises RequestError that names a node which cannot run the search."""
    by_value(loaded_space)
    code = cloudpickle.dumps(OnPath(loaded_space.space.task or loaded_space.space.train))
    results = Path(experiment.results).absolute()
    results.mkdir(parents=True, exist_ok=True)
    with temporary_folder(".tuner-", results) as mark:  # a folder that other nodes look for
        task = ray.remote(num_cpus=0, max_retries=0)(visit)
        asked = {
            task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
                code, str(mark.path)
            ): node["NodeManagerAddress"]
            for node in ray.nodes()
            if node["Alive"]
        }
        ray.wait(list(asked), num_returns=len(asked), timeout=PROBE_TIMEOUT_S)
        problems: dict[str, list[str]] = {}
        for ref, host in asked.items():
            problems.setdefault(_answer(ref), []).append(host)
    problems.pop("", None)
    for problem, hosts in problems.items():
        others = f" (and {len(hosts) - 1} more)" if len(hosts) > 1 else ""
        raise RequestError(f"--address {experiment.address}: node {hosts[0]}{others}: {problem}")


def visit(code: bytes, mark: str) -> str:
    """Checks the node on which it runs; returns what is wrong there and what to do, or an empty text."""
    try:
        cloudpickle.loads(code)
    except Exception as error:
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return f"the space does not load ({what}); install its imports on every node, or put them into its package"
    results = os.path.dirname(mark)
    if not os.path.isdir(mark):
        return f"--results {results} is another folder there; give one that all nodes share"
    try:
        Path(mark, uuid.uuid4().hex).touch()
    except OSError as error:
        return f"--results {results} is not writable there ({error.strerror}); allow Ray's user to write to it"
    return ""


def _is_file(loaded_space: LoadedSpace) -> bool:
    return loaded_space.module.startswith("tuner_space_")


def _answer(ref: Any) -> str:
    try:
        message: str = ray.get(ref, timeout=0)
        return message
    except GetTimeoutError:
        return f"has not answered in {PROBE_TIMEOUT_S:.0f} s; see the Ray logs there, /tmp/ray/session_latest/logs"
    except RuntimeEnvSetupError as error:
        why = " ".join(str(error).split())[:200]
        return f"cannot fetch the code ({why}); see runtime_env_setup-*.log there, in /tmp/ray/session_latest/logs"
    except RayError as error:
        return f"cannot run a task ({' '.join(str(error).split())[:200]})"
