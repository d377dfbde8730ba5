"""Searches by Ray's own controller in a simulated world: one seed chooses the search and all that happens to it.

The world has a clock that jumps, nodes that go and come, a disk that is full for a while, and workers (`workerless.py`)
that are slow, crash, hang or fail. A loss of power removes only unsynced lines of the journal; `test_power.py` has the
rest. The driver is killed at any step, with or without a loss of power, or gets a signal; then the search is resumed as
`--resume` does it. Nothing waits: an hour of the world takes no time.
"""

import contextlib
import errno
import io
import json
import math
import random
import shutil
import sys
import time
import uuid
import zlib
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from journals import read
from ray.exceptions import RayActorError, RayTaskError
from ray.tune.execution.tune_controller import TuneController
from ray.tune.logger import LoggerCallback
from simulated_world import FUNCTION, NAME, SPACE, Killed, SimulatedNodes, World, plan_of
from workerless import MANAGER, Handle, Worker, Workerless

from tuner.engine.controller.changes import Controller
from tuner.engine.local.process_state import process_state
from tuner.errors import RequestError
from tuner.record import clock
from tuner.record.journal import Journal
from tuner.record.report_keys import WAITS
from tuner.record.storage.lock import only_driver
from tuner.spec.experiment import Experiment
from tuner.spec.facts import space_facts
from tuner.spec.resources import Resources
from tuner.tuning.assembly import assemble
from tuner.tuning.call import Request, SearchCall
from tuner.tuning.resume.loading import continued, load_resumed
from tuner.tuning.searchers import forest
from tuner.tuning.session import make_folder, open_journal

__all__ = ["NAME", "metrics_of", "plan_of", "simulate"]


def metrics_of(plan, trial, setting, epoch, way):
    """The new way and the metrics of an epoch: a wrong setting or checkpoint shows in every later report."""
    way = zlib.crc32(json.dumps([plan.seed, trial, setting, epoch, way], sort_keys=True).encode())
    chance = random.Random(way)
    loss = chance.uniform(-1, 1) + 3 / epoch
    if plan.values == "ties":
        loss = float(chance.randint(0, 2))
    elif plan.values == "huge":
        loss = chance.choice([loss, 0.0, -0.0, 1e300, -1e300, 5e-324, 10**18])
    elif plan.values == "rising":
        loss = epoch + chance.random()
    if chance.random() < plan.odds.get("nan", 0):
        loss = chance.choice([math.nan, math.inf, -math.inf])
    metrics = {"loss": loss, "accuracy": round(chance.random(), 1)}
    if epoch > 1 and chance.random() < plan.odds.get("missing", 0):
        del metrics[chance.choice(["loss", "accuracy"])]
    return way, metrics


class SimulatedWorker(Worker):
    world = None

    def train(self):
        plan = self.world.plan
        way, metrics = metrics_of(plan, self.trial, self.setting, self.epoch + 1, self.way)
        if random.Random(way + 1).random() < plan.odds.get("error", 0):
            raise RayTaskError("train", "a traceback", ValueError("fails")).as_instanceof_cause()
        if self.epoch and random.Random(way + 2).random() < plan.odds.get("returns", 0):
            return {"done": True, "__duplicate__": True, "training_iteration": self.epoch}
        if self.world.happens("waits"):
            return {WAITS: "the disk is full", "training_iteration": self.epoch + 1, "done": False}
        self.epoch, self.index, self.way = self.epoch + 1, self.index + plan.saves, way
        improved, self.best = plan.aim.improved(self.best, metrics)
        self.report = {**metrics, "training_iteration": self.epoch, "improved": self.epoch if improved else 0}
        if not plan.saves:
            return {**self.report, "done": False}
        self.saved = Path(self.storage.trial_fs_path) / f"checkpoint_{self.index:06d}"
        self.saved.mkdir(parents=True, exist_ok=True)
        (self.saved / "trained").write_text(json.dumps([self.epoch, self.way, self.best]))
        return {**self.report, "done": False, "should_checkpoint": True, "checkpoint_dir_name": self.saved.name}


class Simulated(Workerless):
    """Ray's actor manager whose tasks end in the order of the world's clock, unless their workers die."""

    world = None
    handle = Handle()
    handle.get_auto_filled_metrics.remote = lambda **options: {}

    def __init__(self, resource_manager):
        super().__init__(resource_manager)
        self._tasks = []  # (time, number, task)
        self.places, self._num_tasks, self._dead = {}, 0, set()

    def schedule_actor_task(self, tracked_actor, method_name, *args, **options):
        super_tasks, self._tasks = self._tasks, []
        future = super().schedule_actor_task(tracked_actor, method_name, *args, **options)
        (task,), self._tasks = self._tasks, super_tasks
        world, took = self.world, 0.01
        if method_name == "train":
            took = 60 * world.chance.lognormvariate(0, 0.2) * (20 if world.happens("late") else 1)
            took = math.inf if world.happens("hang") else took
        self._num_tasks += 1
        self._tasks.append((world.clock.now + took, self._num_tasks, task))
        training = sum(task[1] == "train" and task[0] in self._workers for _, _, task in self._tasks)
        world.most_training = max(world.most_training, training)
        return future

    def next(self, timeout=None):
        world = self.world
        world.step()
        world.check_synced()
        if world.happens("node"):
            world.change_nodes(self)
        if self._pending and (free := self._free()):
            actor = next(iter(self._pending))
            self.places[actor] = free
            self._workers[actor] = self._pending.pop(actor)()
            self._live_actors_to_ray_actors_resources[actor] = (self.handle, SimpleNamespace(placement_group=actor))
            actor._on_start(actor)
            return True
        self._tasks = [each for each in self._tasks if each[2][0] in self._workers]
        due = min(self._tasks, default=None, key=lambda each: each[:2])
        if due is None or due[0] == math.inf:
            world.clock.now += 600 if due else 1
            return False
        self._tasks.remove(due)
        world.clock.now = max(world.clock.now, due[0])
        actor, method, args, kwargs, on_result, on_error = due[2]
        is_early = world.chance.random() < 0.5
        crashes = world.happens("crash")
        try:
            if actor in self._dead or crashes and is_early:
                raise RayActorError(error_msg="its worker was killed")
            if method == "reset" and world.happens("reset"):
                raise RayTaskError("reset", "a traceback", ValueError("still busy")).as_instanceof_cause()
            answer = self.answer_of(self._workers[actor], method, args, kwargs)
            if crashes:
                raise RayActorError(error_msg="its worker was killed")
        except RayActorError as error:
            world.note(f"a worker dies in {method}")
            self._died(actor, error, on_error)
        except RayTaskError as error:
            on_error(actor, error)
        else:
            if on_result:
                on_result(actor, answer)
        return True

    def _free(self):
        used = list(self.places.values())
        free = [n for n, slots in self.world.slots.items() if n not in self.world.leaving and used.count(n) < slots]
        return free[0] if free else None

    def dies(self, actor):
        """As Ray tells it: the tasks of a dead worker fail; that of an idle one is noticed at its next task."""
        self._dead.add(actor)
        self._tasks = [(self.world.clock.now, *each[1:]) if each[2][0] == actor else each for each in self._tasks]

    def _died(self, actor, error, on_error):
        self.places.pop(actor, None)
        self._tasks = [each for each in self._tasks if each[2][0] != actor]
        super()._died(actor, error, on_error)

    def remove_actor(self, tracked_actor, kill=False, stop_future=None):
        self.places.pop(tracked_actor, None)
        self.world.check_synced()
        return super().remove_actor(tracked_actor, kill, stop_future)

    def clear_actor_task_futures(self, tracked_actor):
        self._tasks = [each for each in self._tasks if each[2][0] != tracked_actor]


@contextlib.contextmanager
def patched(world):
    """All through which the driver sees the world."""
    modules = [
        each for name, each in sys.modules.items() if name.startswith("tuner.") and vars(each).get("time") is time
    ]
    ids = random.Random(f"ids {world.plan.seed}")
    with pytest.MonkeyPatch.context() as patch:
        for module in [*modules, sys.modules[TuneController.__module__]]:
            patch.setattr(module, "time", world.clock)
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=ids.getrandbits(128), version=4))
        patch.setattr("os.urandom", ids.randbytes)
        for name in ("os.fsync", "os.fdatasync"):
            patch.setattr(name, lambda fd: None)
        # Without Ray's processes, which would take most of the time.
        no_ray = {"kill": lambda actor: None, "is_initialized": lambda: True, "put": lambda value: [value],
                  "get": lambda kept, **options: kept[0], "cluster_resources": lambda: {"CPU": 64.0}}  # fmt: skip
        for name, function in no_ray.items():
            patch.setattr(ray, name, function)
        patch.setattr(
            "ray.train._internal.storage._get_ray_train_session_dir", lambda: str(world.folder.parent / "ray")
        )
        patch.setattr("tuner.tuning.assembly.JsonLoggerCallback", LoggerCallback)  # files that nobody reads
        patch.setattr(forest, "NUM_RANDOM", 3)
        patch.setattr(TuneController, "checkpoint", lambda *args, **options: None)  # Ray's snapshots: half of the time
        worker = type("Worker", (SimulatedWorker,), {"world": world})
        patch.setattr(MANAGER, type("Manager", (Simulated,), {"world": world, "worker": worker}))
        patch.setattr("tuner.tuning.assembly.Nodes", lambda *args, **options: SimulatedNodes(world, *args, **options))
        patch.setattr(
            Controller, "nodes_of", lambda own, trial: {own._actor_manager.places[own._trial_to_actor[trial]]}
        )
        append = Journal._append
        patch.setattr(Journal, "_append", lambda own, line: world.append(append, own, line))
        patch.setattr("tuner.record.journal.sync_open", lambda fd: world.sync())
        patch.setattr(sys, "stdout", io.StringIO())
        patch.setattr(sys, "stderr", io.StringIO())
        yield


def run_session(world, given, resume):
    """One session, as `tuner.tuning.session.run_search` runs it; returns the state in which it left the search."""
    space = SPACE if world.plan.is_task else FUNCTION
    with ExitStack() as stack:
        stack.enter_context(process_state())
        call = SearchCall({"results": str(world.folder.parent), **given}, resume=NAME * resume, space=space)
        if resume:
            experiment, loaded, facts, history = continued(call, load_resumed(call, stack))
        else:
            experiment, loaded, history = Experiment(space=space.name, name=NAME, **call.given), space, []
            facts = {"space": space_facts(space), "created": 1.0, "id": NAME}
            make_folder(experiment)
            stack.enter_context(only_driver(experiment.folder))
        concurrent = experiment.max_concurrent_trials or world.plan.concurrent
        resources = Resources(1, 0, concurrent, 1)
        request = Request(experiment, loaded, facts, history, resources, "disabled")
        (experiment.folder / "ray").mkdir(exist_ok=True)
        assert len(history) == world.written.count(b"\n") or (experiment.scheduler == "pbt" and world.has_lost)
        world.written = b"".join(world.written.splitlines(keepends=True)[: len(history)])
        clock._offset = world.clock.jumped  # as in a new process
        journal = open_journal(request)
        try:
            assembly = assemble(request, journal, resources, "off")
            world.stopper = assembly.stopper
            assembly.run()
        except RequestError as error:
            world.note(f"refused: {error}")
            if journal.lost or not world.stopper.error:
                raise
        journal.close()
        world.durable = len(world.written)
    return "lost" if journal.lost else read(world.folder / "journal.jsonl")[-1]["state"]


def simulate(plan, folder, troubled=True):
    """Runs the plan's search in a new folder, to its end; without `troubled`, nothing stops or troubles a session."""
    shutil.rmtree(folder, ignore_errors=True)
    world = World(plan, folder / NAME)
    world.troubled = troubled
    stops = list(plan.stops) if troubled else []
    with patched(world):
        for number, given in enumerate(plan.phases):
            resume, num_failed = number > 0, 0
            while True:
                world.how, world.last = stops.pop(0) if stops else ("", math.inf)
                world.tick, world.dead, world.stopper = 0, False, None
                try:
                    state = run_session(world, given, resume)
                except OSError as error:  # while the journal was opened
                    assert error.errno == errno.ENOSPC and not world.stopper, error
                    state = "no room"
                except Killed:
                    state = "killed"
                    world.clock.now += 100
                    if world.how == "power" and world.written:
                        world.lose_power()
                world.note(state)
                resume = (world.folder / "experiment.json").exists()
                given = given if not resume or number else {}
                num_failed += state == "failed"
                if state == "finished" or num_failed > 2:
                    break
    return world
