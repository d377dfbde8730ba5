"""A hyperparameter-search service on Ray Tune for PyTorch.

Importing any module of this package first sets the environment variables of `ENVIRONMENT`. They stay set, because Ray
reads them when it is imported or starts its processes. So import tuner before Ray. Otherwise,
`tuner.engine.local.alone` corrects a setting, and warns if Ray runs. All other variables are set only during a search,
by `tuner.engine.local.process_state`.
"""

import importlib
import os
import signal
import sys

TYPE_CHECKING = False  # as typing's, whose import would take as long as all others here

ENVIRONMENT = dict(
    RAY_ENABLE_UV_RUN_RUNTIME_ENV="0",  # else, under `uv run`, each start builds an environment, which takes 60 s
    RAY_DISABLE_FAILURE_SIGNAL_HANDLER="1",  # else Ray's C++ core prints 35 lines of native stacks at SIGTERM
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="1",  # else a trial that requests no GPU trains on GPU 0
    RAY_CHDIR_TO_TRIAL_DIR="0",  # else trials run in folders of Ray, where relative paths find no data
    RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS="0",  # workers read it, too
    # Limits for Ray's processes to reach each other: Ray's defaults are too short on a busy machine.
    RAY_gcs_rpc_server_connect_timeout_s="60",  # seconds (default 5) after which a raylet without the GCS aborts
    RAY_gcs_server_port_wait_time_s="300",  # attempts (default 20), one per second, to reach a running GCS
    RAY_raylet_client_num_connect_attempts="300",  # attempts (default 10), one per second, to reach the raylet
)
os.environ.update(ENVIRONMENT)

if "ray" in sys.modules:
    from tuner.engine.local.alone import correct_late_import

    correct_late_import()


def end_at_interrupt() -> None:
    """Make Ctrl-C end a command in one line and with exit code 130, from its first line on.

    Until a search handles signals itself, nothing has begun that must be ended. A KeyboardInterrupt would print a
    traceback if it interrupts an import, also as another error or as one that is ignored.
    """

    def end(number: int, frame: object) -> None:
        os.write(2, b"\ninterrupted; if a search had started, --resume latest continues it\n")
        os._exit(130)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may ignore it for a background job
        signal.signal(signal.SIGINT, end)


# Name in `from tuner import ...` -> the module that defines it. The module is imported at the first use, so that
# commands stay fast and a script's `import tuner` imports neither ray nor torch.
EXPORTS = {
    **dict.fromkeys(("search", "load", "load_best"), "tuner.tuning.api"),
    **dict.fromkeys(("Splits", "Arrays", "Files"), "tuner.training.data"),
    "Space": "tuner.spec.space",
    "Task": "tuner.training.task",
    "script": "tuner.spec.script",
    "RequestError": "tuner.errors",
}

if TYPE_CHECKING:
    from ray import tune as tune

    from tuner.errors import RequestError as RequestError
    from tuner.spec.script import script as script
    from tuner.spec.space import Space as Space
    from tuner.training.data import Arrays as Arrays
    from tuner.training.data import Files as Files
    from tuner.training.data import Splits as Splits
    from tuner.training.task import Task as Task
    from tuner.tuning.api import load as load
    from tuner.tuning.api import load_best as load_best
    from tuner.tuning.api import search as search
else:

    def __getattr__(name: str) -> object:
        if name == "tune":  # Ray Tune, so that `from tuner import script, tune` works
            return importlib.import_module("ray.tune")
        if name not in EXPORTS:
            from tuner.errors import nearest

            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{nearest(name, EXPORTS)}")
        return getattr(importlib.import_module(EXPORTS[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *EXPORTS})
