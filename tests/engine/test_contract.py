"""Checks every private part of Ray that tuner/engine/ uses, and that no other folder uses private parts of Ray.

With another version of Ray these tests fail and list what differs. The table also has public parts of Ray if the
engine relies on their exact form.
"""

# ruff: noqa: E501
import ast
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import pytest
from ray._private.node import Node

TUNER = Path(__file__).parents[2] / "tuner"
ENGINE = TUNER / "engine"
# module:name -> a function's parameters without annotations, the value assigned to an attribute, or an object's type.
CONTRACT = {
    "ray._private.grpc_utils:init_grpc_channel": "(address, options=None, asynchronous=False, credentials=None)",
    "ray.core.generated.node_manager_pb2:PrestartWorkersRequest": "message job_id, keep_alive_duration_secs, language, num_workers, runtime_env_info",
    "ray.core.generated.node_manager_pb2_grpc:NodeManagerServiceStub": "class (channel)",
    "ray:init._temp_dir": "option",
    "ray:init._system_config": "option",
    "ray._private.node:Node": "class (ray_params, head=False, shutdown_at_exit=True, spawn_reaper=True, connect_only=False, default_worker=False, ray_init_cluster=False)",
    "ray._private.node:Node.start_api_server": "(self, *, include_dashboard, raise_on_failure)",
    "ray._private.node:Node.start_raylet": "(self, plasma_directory, fallback_directory, object_store_memory, use_valgrind=False, use_profiler=False)",
    "ray._private.node:Node.dead_processes": "(self)",
    "ray._private.node:Node.kill_all_processes": "(self, check_alive=True, allow_graceful=False, wait=False)",
    "ray._private.node:Node.get_gcs_client": "(self)",
    "ray._private.node:Node._node_id": "= ray_params.node_id",
    "ray._private.parameter:RayParams.include_log_monitor": "= include_log_monitor",
    "ray._private.parameter:RayParams.no_monitor": "= no_monitor",
    "ray._private.node:Node._session_dir": "= os.path.join(self.temp_dir, self._session_name)",
    "ray._raylet:persist_port": "(dir, node_id, port_name, port)",
    "ray._private.node:Node._webui_url": "= ray._private.services.start_api_server(include_dashboard, raise_on_failure, self._ray_params.dashboard_host, self.gcs_address, self.cluster_id.hex(), self._node_ip_address, self.temp_dir, self._logs_dir, self._session_dir, port=self._ray_params.dashboard_port, fate_share=self.kernel_fate_share, max_bytes=self.max_bytes, backup_count=self.backup_count, stdout_filepath=stdout_log_fname, stderr_filepath=stderr_log_fname, proxy_server_url=self._ray_params.proxy_server_url)",
    "ray._private.ray_constants:ENABLE_RAY_CLUSTER": "bool",
    "ray._private.ray_constants:RAY_ENABLE_UV_RUN_RUNTIME_ENV": "bool",
    "ray._private.utils:set_sigterm_handler": "(sigterm_handler)",
    "ray._private.state:state": "GlobalState",
    "ray._private.state:GlobalState.get_draining_nodes": "(self)",
    "ray._private.state:GlobalState.job_table": "(self)",
    "ray.experimental.internal_kv:_internal_kv_get": "(key, *, namespace=None)",
    "ray.experimental.internal_kv:_internal_kv_list": "(prefix, *, namespace=None)",
    "ray.experimental.internal_kv:_internal_kv_put": "(key, value, overwrite=True, *, namespace=None)",
    "ray._common.usage.usage_lib:get_cluster_metadata": "(gcs_client)",
    "ray._private.services:canonicalize_bootstrap_address_or_die": "(addr, temp_dir=None)",
    "ray._raylet:Config": "type",
    "ray._raylet:GcsClient": "type",
    "ray._private.worker:_global_node": "a node or None",
    "ray._private.worker:print_to_stdstream": "(data, ignore_prefix)",
    "ray._private.utils:get_num_cpus": "(override_docker_cpu_warning=False, truncate=True)",
    "ray._private.accelerators:get_accelerator_manager_for_resource": "(resource_name)",
    "ray._private.accelerators:AcceleratorManager.get_current_node_num_accelerators": "()",
    "ray._private.accelerators:AcceleratorManager.get_current_process_visible_accelerator_ids": "()",
    "ray.train._internal.session:get_session": "()",
    "ray.train._internal.storage:_get_ray_train_session_dir": "()",
    "ray.train._internal.session:_session": "a node or None",
    "ray.train._internal.session:_TrainSession": "class (training_func, world_rank, local_rank, node_rank, local_world_size, world_size, trial_info=None, dataset_shard=None, metadata=None, checkpoint=None, detailed_autofilled_metrics=False, storage=None, synchronous_result_reporting=False)",
    "ray.train._internal.session:TrialInfo": "class (name, id, resources, logdir, driver_ip, driver_node_id, experiment_name=None, run_id=None)",
    "ray.tune.registry:_ParameterRegistry": "class ()",
    "ray.tune.registry:_ParameterRegistry.references": "= {}",
    "ray.tune.registry:_ParameterRegistry.to_flush": "= {}",
    "ray.train._internal.session:_TrainSession.report": "(self, metrics, checkpoint=None)",
    "ray.train._internal.session:_TrainingResult": "class (checkpoint, metrics)",
    "ray.tune.trainable:Trainable._iteration": "= 0",
    "ray.train._internal.storage:StorageContext.current_checkpoint_index": "= current_checkpoint_index",
    "ray.train._internal.storage:StorageContext.persist_current_checkpoint": "(self, checkpoint)",
    "ray.train._internal.checkpoint_manager:_delete_fs_path": "(fs, fs_path)",
    "ray.tune.schedulers:AsyncHyperBandScheduler._brackets": "= [_Bracket(grace_period, max_t, reduction_factor, s, stop_last_trials=stop_last_trials) for s in range(brackets)]",
    "ray.tune.schedulers.async_hyperband:_Bracket._rungs": "= [(min_t * self.rf ** (k + s), {}) for k in reversed(range(MAX_RUNGS))]",
    "ray.tune:Tuner._local_tuner": ": Optional[TunerInternal]",
    "ray.tune.impl.tuner_internal:TunerInternal._is_restored": "= False",
    "ray.tune.impl.tuner_internal:TunerInternal._tune_config": "= tune_config or TuneConfig()",
    "ray.tune.impl.tuner_internal:TunerInternal._run_config": "= copy.copy(run_config) or RunConfig()",
    "ray.tune.schedulers:AsyncHyperBandScheduler._reduction_factor": "= reduction_factor",
    "ray.tune.schedulers:AsyncHyperBandScheduler._max_t": "= max_t",
    "ray.tune.schedulers:AsyncHyperBandScheduler._time_attr": "= time_attr",
    "ray.tune.schedulers:HyperBandScheduler._max_t_attr": "= max_t",
    "ray.tune.schedulers:HyperBandScheduler._eta": "= reduction_factor",
    "ray.tune.schedulers:PopulationBasedTraining._perturbation_interval": "= perturbation_interval",
    "ray.tune.schedulers:PopulationBasedTraining._hyperparam_mutations": "= hyperparam_mutations",
    "ray.tune.schedulers:PopulationBasedTraining._exploit": "(self, tune_controller, trial, trial_to_clone)",
    "ray.tune.schedulers:PopulationBasedTraining._trial_state": "= {}",
    "ray.tune.schedulers.pbt:_PBTTrialState.last_train_time": "= 0",
    "ray.tune.schedulers:MedianStoppingRule._grace_period": "= grace_period",
    "ray.tune.tune:TuneController": "class (*, search_alg=None, placeholder_resolvers=None, scheduler=None, stopper=None, resume_config=None, fail_fast=False, checkpoint_period=None, callbacks=None, metric=None, trial_checkpoint_config=None, storage=None, reuse_actors=False, resource_manager_factory=None, _trainer_api=False)",
    "ray.tune.tune:ExperimentAnalysis": "class (experiment_checkpoint_path, *, storage_filesystem=None, trials=None, default_metric=None, default_mode=None)",
    "ray.tune.execution.tune_controller:TuneController._actor_cache": "= _ObjectCache(may_keep_one=True)",
    "ray.tune.execution.tune_controller:TuneController._actor_failed": "(self, tracked_actor, exception)",
    "ray.tune.execution.tune_controller:TuneController._actor_force_cleanup_timeout": "= 10",
    "ray.tune.execution.tune_controller:TuneController._actor_manager": "= RayActorManager(resource_manager=resource_manager)",
    "ray.tune.execution.tune_controller:TuneController._cached_trial_decisions": "= {}",
    "ray.tune.execution.tune_controller:TuneController._class_cache": "= _ActorClassCache()",
    "ray.tune.execution.tune_controller:TuneController._maybe_reuse_cached_actor": "(self, trial)",
    "ray.tune.execution.tune_controller:TuneController._process_trial_failure": "(self, trial, exception)",
    "ray.tune.execution.tune_controller:TuneController._process_trial_result": "(self, trial, result)",
    "ray.tune.execution.tune_controller:TuneController._queue_decision": "(self, trial, decision)",
    "ray.tune.execution.tune_controller:TuneController._resetting_trials": "= set()",
    "ray.tune.execution.tune_controller:TuneController._schedule_trial_save": "(self, trial, result=None)",
    "ray.tune.execution.tune_controller:TuneController._set_trial_status": "(self, trial, status)",
    "ray.tune.execution.tune_controller:TuneController._trial_to_actor": "= {}",
    "ray.tune.execution.tune_controller:TuneController._trials_to_cache": "= set()",
    "ray.tune.execution.tune_controller:TuneController.stop_trial": "(self, trial)",
    "ray.air.execution._internal:RayActorManager._actor_task_failed": "(self, tracked_actor_task, exception)",
    "ray.air.execution._internal:RayActorManager._live_actors_to_ray_actors_resources": "= {}",
    "ray.air.execution._internal:RayActorManager.is_actor_started": "(self, tracked_actor)",
    "ray.tune.execution.class_cache:_ActorClassCache.get": "(self, trainable_cls)",
    "ray.tune.utils.object_cache:_ObjectCache": "class (may_keep_one=True)",
    "ray.tune.utils.object_cache:_ObjectCache.increase_max": "(self, key, by=1)",
    "ray.tune.utils.object_cache:_ObjectCache.num_cached_objects": "property",
    "ray.tune.experiment:Trial.handle_error": "(self, exc=None)",
    "ray.tune.experiment:Trial.on_checkpoint": "(self, checkpoint_result)",
    "ray.tune.experiment:Trial._default_result_or_future": "= None",
    "ray.tune.experiment:Trial.relative_logdir": "= None",
    "ray.train._internal.storage:StorageContext.trial_dir_name": "= trial_dir_name",
    "ray.tune.experiment.trial:_TrainingRunMetadata.last_result": "= {}",
    "ray.tune.experiment.trial:_TrainingRunMetadata.num_failures": "= 0",
    "ray.tune.experiment:Trial.max_failures": "= max_failures",
    "ray.tune.experiment.trial:_TemporaryTrialState.saving_to": "= None",
    "ray.tune.trainable:FunctionTrainable.cleanup": "(self)",
    "ray.tune.trainable:FunctionTrainable.reset_config": "(self, new_config)",
}
# The last part of each name, and of the module that has it.
NAMES = {part.split(".")[-1] for path in CONTRACT for part in path.split(":")}


def actual(path):
    """Describes in one line what the installed Ray has at a path; starts with `missing` if it has nothing there."""
    module, _, name = path.partition(":")
    try:
        member = importlib.import_module(module)
    except ImportError as error:
        return f"missing: {error}"
    *outer, last = name.split(".") if name else [""]
    for part in outer:
        if not hasattr(member, part):
            return f"missing: no {part} in {module}"
        member = getattr(member, part)
    if not last:
        return "module"
    if inspect.isfunction(member):  # module:function.option
        return "option" if f'"{last}"' in inspect.getsource(member) else "missing: no such option"
    if not hasattr(member, last):
        return assigned(member, last) if inspect.isclass(member) else f"missing: no {last} in {module}"
    return described(getattr(member, last))


def described(value):
    if value is None or isinstance(value, Node):
        return "a node or None"
    if hasattr(value, "DESCRIPTOR") and hasattr(value.DESCRIPTOR, "fields_by_name"):
        return "message " + ", ".join(sorted(value.DESCRIPTOR.fields_by_name))
    if isinstance(value, property):
        return "property"
    if inspect.isclass(value) or callable(value):
        try:
            signature = inspect.signature(value)
        except (TypeError, ValueError):
            return type(value).__name__
        bare = [
            each.replace(annotation=each.empty)
            for each in signature.parameters.values()
            if each.name != "_ray_trace_ctx"  # Ray adds it to a class's methods when one of them becomes an actor
        ]
        text = str(signature.replace(parameters=bare, return_annotation=signature.empty))
        return ("class " if inspect.isclass(value) else "") + text
    return type(value).__name__


def assigned(owner, name):
    """Returns the first value that the class's code assigns to `self.name`, or the attribute's annotation."""
    for node in (node for each in inspect.getmro(owner)[:-1] for node in ast.walk(parsed(each))):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            stored = [each for each in ast.walk(node) if isinstance(getattr(each, "ctx", None), ast.Store)]
            if name in [getattr(each, "attr", getattr(each, "id", None)) for each in stored]:
                return f"= {ast.unparse(node.value)}" if node.value else f": {ast.unparse(node.annotation)}"
    return f"missing: {owner.__name__} has no attribute {name}"


def parsed(owner):
    return ast.parse(textwrap.dedent(inspect.getsource(owner)))


def test_ray_is_as_expected():
    differences = [
        f"{path}\n    expected {expected}\n    found    {kind}"
        for path, expected in CONTRACT.items()
        if (kind := actual(path)) != expected
    ]
    assert not differences, "Ray differs from what tuner/engine/ relies on:\n" + "\n".join(differences)


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def is_private_module(name):
    return name.split(".")[0] == "ray" and (".generated" in name or any(map(is_private, name.split("."))))


def private_uses(source):
    """Returns the private parts of Ray that a source uses, and its assignments to Ray's trials: name -> line."""
    nodes = list(ast.walk(ast.parse(source)))
    uses, imported, own = {}, {}, set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom | ast.Import):
            module = getattr(node, "module", None)
            for alias in node.names:
                imported[alias.asname or alias.name] = (module, alias.name) if module else (alias.name, "")
                if is_private_module(name := f"{module}.{alias.name}" if module else alias.name):
                    uses[name] = node.lineno
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            own |= {node.id} if isinstance(node, ast.Name) else {node.attr} if is_own(node) else set()
    near_ray = any(module.split(".")[0] == "ray" or "tuner.engine" in module for module, _ in imported.values())
    bases = {ast.unparse(base) for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases}
    paths = [":".join(imported[base]) for base in bases & set(imported)]
    inherited = set(filter(is_private, names_of(path for path in paths if path.startswith(("ray", "tuner")))))
    for node in nodes:
        if is_own(node) or isinstance(node, ast.FunctionDef):
            name = node.attr if is_own(node) else node.name
            if name in inherited:
                uses[name] = node.lineno
        elif isinstance(node, ast.Attribute) and node.attr not in own:
            private = is_private(node.attr) and node.attr not in PYTHONS and (near_ray or node.attr in RAYS)
            if private or (isinstance(node.ctx, ast.Store) and node.attr in RAYS_PUBLIC):
                uses[node.attr] = node.lineno
        elif isinstance(node, ast.keyword) and is_private(node.arg or ""):
            uses[node.arg] = node.value.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_module = is_private_module(node.value) and re.fullmatch(r"[\w.]+", node.value)
            if is_module or node.value in RAYS:  # getattr(controller, "_trials"), {"_temp_dir": ...}
                uses[node.value] = node.lineno
    return uses


def is_own(node):
    """Whether a syntax node is `self.name` or `cls.name`."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


# CLASSES: Ray's classes that tuner/ subclasses or replaces parts of. HANDED: Ray passes objects of these to tuner/.
CLASSES = """
    ray.tune.execution.tune_controller:TuneController ray._private.node:Node
    ray.tune.schedulers:AsyncHyperBandScheduler ray.tune.schedulers:HyperBandScheduler
    ray.tune.schedulers:PopulationBasedTraining ray.tune.schedulers:FIFOScheduler ray.tune:CLIReporter
    ray.tune.search:Searcher ray.tune.search:SearchAlgorithm ray.tune:Callback ray.tune:Stopper
    ray.tune.trainable:FunctionTrainable ray.air.execution._internal:RayActorManager
""".split()
HANDED = """
    ray.tune.experiment:Trial ray.tune.experiment.trial:_TrainingRunMetadata ray.train._internal.storage:StorageContext
    ray.tune.experiment.trial:_TemporaryTrialState ray.train._internal.session:_TrainSession
""".split()


def names_of(paths):
    """Returns the names of methods and attributes of Ray's classes, including inherited ones."""
    names = set()
    for path in paths:
        module, _, name = path.partition(":")
        ours = getattr(importlib.import_module(module), name, object)  # a missing class fails test_ray_is_as_expected
        for each in inspect.getmro(ours)[:-1]:
            if each.__module__.split(".")[0] == "ray":
                names |= set(vars(each)) | {node.attr for node in ast.walk(parsed(each)) if is_own(node)}
    return names


RAYS = {"_temp_dir", "_system_config", *filter(is_private, names_of(CLASSES + HANDED))}
PYTHONS = {"_asdict", "_exit", "_fields", "_make", "_replace"}  # of NamedTuple and os
PYTHONS |= {"_registry", "_run_exitfuncs", "_shutdown", "_run_module_as_main"}  # of weakref, atexit, threading, runpy
RAYS_PUBLIC = {name for name in names_of(HANDED) if not name.startswith("_")}


def test_private_parts_are_used_in_engine_alone_and_the_contract_names_them():
    files = [(path, NAMES if ENGINE in path.parents else ()) for path in TUNER.rglob("*.py")]
    uses = [(path, name, line, named) for path, named in files for name, line in private_uses(path.read_text()).items()]
    unnamed = [f"{path}:{line} {name}" for path, name, line, named in uses if name.split(".")[-1] not in named]
    assert not unnamed, "use it in tuner/engine/ alone, and add to CONTRACT what Ray has there:\n" + "\n".join(unnamed)


SUBCLASS = "from ray.tune.execution.tune_controller import TuneController\nclass C(TuneController):\n"
EXTENSION_POINTS = {"Callback", "Stopper"}  # Ray's classes whose methods are made to be overridden


def overridden_methods():
    """Returns `Class.method` for each method of Ray's that a class of tuner/engine/ overrides."""
    from tuner.engine.workers.trainable import trainable_of

    trainable = trainable_of(lambda config: None, [{"CPU": 1.0}])
    classes = {each for each in inspect.getmro(trainable) if each.__module__ == "tuner.engine.workers.trainable"}
    for path in ENGINE.rglob("[!_]*.py"):
        module = importlib.import_module(".".join(path.relative_to(TUNER.parent).with_suffix("").parts))
        classes |= {
            each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == module.__name__
        }
    found = set()
    for ours in classes:
        rays = [base for base in inspect.getmro(ours)[1:] if base.__module__.split(".")[0] == "ray"]
        theirs = {name for base in rays if base.__name__ not in EXTENSION_POINTS for name in vars(base)}
        methods = {name for name, value in vars(ours).items() if inspect.isfunction(value)}
        found |= {f"{ours.__name__}.{name}" for name in methods & theirs - {"__init__"}}
    return found


def test_overridden_methods_of_rays_classes_are_in_the_contract_with_what_they_buy():
    """Ray may change any of it without notice. Whoever adds a part says why in `tuner/engine/__init__.py`."""
    import tuner.engine

    overridden = overridden_methods()
    assert {each.split(".")[1] for each in overridden} <= NAMES
    assert overridden == set(re.findall(r"\n\| `(\w+\.\w+)`", tuner.engine.__doc__))
    assert len(overridden) <= 11 and len(CONTRACT) <= 103


@pytest.mark.parametrize(
    ("source", "used"),
    [
        ("import ray._raylet", "ray._raylet"),
        ("from ray.core.generated.common_pb2 import PYTHON", "ray.core.generated.common_pb2.PYTHON"),
        ("def f(controller):\n    return controller._trials", "_trials"),
        (f"{SUBCLASS}    def _wrapped(self):\n        self._trials = []", "_wrapped"),
        (f"{SUBCLASS}    def f(self):\n        return self._trials", "_trials"),
        ("def f(trial):\n    trial.status = 'PAUSED'", "status"),
        ("options = {'_system_config': {}}", "_system_config"),
    ],
)
def test_the_scan_sees_every_kind_of_private_use(source, used):
    assert used in private_uses(source)
    assert not private_uses("class C:\n    _b = 1\n    def _f(self):\n        self._x = 1\n        return self._f()")
