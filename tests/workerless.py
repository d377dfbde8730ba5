"""Searches by Ray's own controller whose workers train nothing: one takes 0.1 s, so that every cut can be tried."""

import contextlib
import json
import math
import os
import traceback
import zlib
from collections import deque
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import torch
from journals import read
from killing import SPACES, cut
from ray import cloudpickle
from ray.air.execution._internal.tracked_actor import TrackedActor
from ray.exceptions import RayActorError, RayTaskError
from ray.train._internal.session import _TrainingResult
from ray.tune import Checkpoint, CheckpointConfig
from ray.tune.result import STDERR_FILE, STDOUT_FILE, TRIAL_INFO

from tuner.engine.local.process_state import process_state
from tuner.record.reading import scan
from tuner.spec.experiment import Experiment
from tuner.spec.resources import Resources
from tuner.spec.spaces import find_space
from tuner.tuning.assembly import assemble
from tuner.tuning.call import Request
from tuner.tuning.resume.lost_checkpoints import with_checkpoints
from tuner.tuning.session import open_journal

MANAGER = "ray.tune.execution.tune_controller.RayActorManager"
CHOICES = {"num_samples": 9, "max_epochs": 4}
KEPT = "tuner.tuning.assembly.keeping", lambda num: CheckpointConfig()  # all checkpoints: a cut goes back in time


class Handle:
    """What the controller asks of an actor itself."""

    def __init__(self, ip="127.0.0.1"):
        self.get_auto_filled_metrics = SimpleNamespace(remote=lambda **options: ray.put({}))
        self.get_current_ip_pid = SimpleNamespace(remote=lambda: ray.put((ip, 1)))


def learn(trial, setting, epoch, way):
    """The new way and the loss of an epoch: a wrong setting or checkpoint shows in every later report."""
    way = zlib.crc32(json.dumps([trial, setting, epoch, way], sort_keys=True).encode())
    return way, (math.log10(setting["lr"]) + 2) ** 2 / epoch + way / 2**32


class Worker:
    """What a worker process holds: a trial, which it trains and saves."""

    def __init__(self, config, storage):
        self.reset(config, storage)

    def reset(self, config, storage):
        self.trial, self.storage = config[TRIAL_INFO].trial_id, storage
        self.setting = {name: value for name, value in config.items() if not name.startswith("__")}
        self.index = storage.current_checkpoint_index
        self.epoch, self.way, self.best = 0, 0, math.inf
        return True

    def restore(self, saved):
        self.epoch, self.way, self.best = json.loads((Path(saved.checkpoint.path) / "trained").read_text())

    def train(self):
        self.epoch, self.index = self.epoch + 1, self.index + 1
        self.way, loss = learn(self.trial, self.setting, self.epoch, self.way)
        improved, self.best = loss < self.best, min(self.best, loss)
        self.saved = Path(self.storage.trial_fs_path) / f"checkpoint_{self.index:06d}"
        self.write()
        self.report = {"loss": loss, "training_iteration": self.epoch, "improved": self.epoch if improved else 0}
        return {**self.report, "done": False, "should_checkpoint": True, "checkpoint_dir_name": self.saved.name}

    def write(self):
        self.saved.mkdir(parents=True, exist_ok=True)
        (self.saved / "trained").write_text(json.dumps([self.epoch, self.way, self.best]))

    def save(self):
        return self.saved_result()

    def saved_result(self):
        return _TrainingResult(Checkpoint.from_directory(self.saved), self.report)

    def stop(self):
        """Nothing to let go of."""


class Workerless:
    """Takes the place of Ray's actor manager: workers live in this process and answer when they are waited for."""

    num_cpus = 1
    worker = Worker
    handle = Handle()

    def __init__(self, resource_manager):
        self._pending, self._workers, self._num_made = {}, {}, 0
        self._tasks = deque()
        self._live_actors_to_ray_actors_resources = {}  # the controller looks into it
        self._actor_task_failed = None  # the controller puts its own there; no task fails here

    def add_actor(self, cls, resource_request, kwargs, on_start, on_stop, on_error):
        self._num_made += 1
        actor = TrackedActor(self._num_made, on_start, on_stop, on_error)
        self._pending[actor] = partial(self.started, cls, kwargs)
        return actor

    def started(self, cls, kwargs):
        return self.worker(**kwargs)

    def answer_of(self, worker, method, args, kwargs):
        """What the worker answers; RayActorError if it dies of the task, RayTaskError if only the task fails."""
        return getattr(worker, method)(*args, **kwargs)

    def saved_by(self, worker):
        return worker.saved_result()

    def schedule_actor_task(
        self, tracked_actor, method_name, args=(), kwargs=None, on_result=None, on_error=None, _return_future=False
    ):
        self._tasks.append((tracked_actor, method_name, args, kwargs or {}, on_result, on_error))
        if _return_future and method_name == "save":  # population based training waits for one that it takes over
            return ray.put(self.saved_by(self._workers[tracked_actor]))
        return None

    def next(self, timeout=None):
        if self._pending and len(self._workers) < self.num_cpus:
            actor = next(iter(self._pending))
            self._workers[actor] = self._pending.pop(actor)()
            self._live_actors_to_ray_actors_resources[actor] = (self.handle, None)
            actor._on_start(actor)
            return True
        while self._tasks:
            actor, method, args, kwargs, on_result, on_error = self._tasks.popleft()
            if actor in self._workers:
                try:
                    answer = self.answer_of(self._workers[actor], method, args, kwargs)
                except RayActorError as error:
                    self._died(actor, error, on_error)
                    return True
                except RayTaskError as error:
                    on_error(actor, error)
                    return True
                if on_result:
                    on_result(actor, answer)
                return True
        return False

    def _died(self, actor, error, on_error):
        del self._workers[actor], self._live_actors_to_ray_actors_resources[actor]
        for tell in (actor._on_error, on_error):
            if tell:
                tell(actor, error)

    def remove_actor(self, tracked_actor, kill=False, stop_future=None):
        self._pending.pop(tracked_actor, None)
        self._live_actors_to_ray_actors_resources.pop(tracked_actor, None)
        lived = self._workers.pop(tracked_actor, None) is not None
        if lived and tracked_actor._on_stop:
            tracked_actor._on_stop(tracked_actor)
        return lived

    def clear_actor_task_futures(self, tracked_actor):
        self._tasks = deque(task for task in self._tasks if task[0] != tracked_actor)

    def is_actor_started(self, tracked_actor):
        return tracked_actor in self._workers

    def is_actor_failed(self, tracked_actor):
        return False

    def get_live_actors_resources(self):
        return {}

    def cleanup(self):
        pass

    num_live_actors = property(lambda self: len(self._workers))
    num_pending_actors = property(lambda self: len(self._pending))
    num_total_actors = property(lambda self: len(self._workers) + len(self._pending))
    num_actor_tasks = property(lambda self: len(self._tasks))


class InThisProcess(Workerless):
    """Runs the space's own trainable in this process, one trial at a time, as Ray keeps one session a process.

    A trial changes into its own folder; the search does not, as if it were another process.
    """

    _folder = None  # the working folder of the trial

    handle = property(lambda self: Handle(ray.util.get_node_ip_address()))

    def started(self, cls, kwargs):
        kwargs = sent(kwargs)
        kwargs["config"] |= UNREDIRECTED
        return cls.__ray_metadata__.modified_class(**kwargs)

    def answer_of(self, worker, method, args, kwargs):
        args, kwargs = sent((args, kwargs))
        if method == "reset":
            args[0].update(UNREDIRECTED)
        try:
            with self.in_its_folder():
                return sent(super().answer_of(worker, method, args, kwargs))
        except Exception as error:  # as a worker process tells it
            raise RayTaskError(method, traceback.format_exc(), error).as_instanceof_cause() from None

    def saved_by(self, worker):
        return worker.save()

    def _died(self, actor, error, on_error):
        with self.in_its_folder():
            self._workers[actor].stop()  # the session that a worker's process would take with it
        super()._died(actor, error, on_error)

    def remove_actor(self, tracked_actor, kill=False, stop_future=None):
        worker = self._workers.get(tracked_actor)
        lived = super().remove_actor(tracked_actor, kill, stop_future)
        if worker:
            with self.in_its_folder():
                worker.stop()
        return lived

    @contextlib.contextmanager
    def in_its_folder(self):
        here = os.getcwd()
        os.chdir(self._folder or here)
        try:
            yield
        finally:
            self._folder = os.getcwd()
            os.chdir(here)


def sent(value):
    """A copy, as a worker process gets: it and the driver share no object."""
    return cloudpickle.loads(cloudpickle.dumps(value))


@contextlib.contextmanager
def in_this_process():
    """Searches inside it train their trials in this process: 1 s of a CPU each instead of 6, mostly imports."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MANAGER, InThisProcess)
        patch.setattr(ray, "kill", lambda actor: None)  # no process is there
        yield
    torch.set_num_threads(threads)  # a trial sets its own number


def now_and_then(chance, usual, instead):
    """A method that does something else in about one call of forty."""
    return lambda *args: (instead if chance.random() < 1 / 40 else usual)(*args)


def failing(chance, train):
    """The method `train` of a worker, except that an epoch fails now and then, as by an error of the user's code."""

    def fails(worker):
        raise RayTaskError("train", "a traceback", ValueError("fails")).as_instanceof_cause()

    return now_and_then(chance, train, fails)


# A trial's output would be the test's too: Ray's trainable redirects that of its whole process.
UNREDIRECTED = {STDOUT_FILE: None, STDERR_FILE: None}


def run(folder, *, concurrent=1, **choices):
    """A search without workers to its end, or the rest of it: `folder` may have a part of its journal."""
    loaded_space = find_space(str(SPACES / "tiny.py"))
    place = {"space": loaded_space.name, "results": str(folder.parent), "name": folder.name}
    experiment = Experiment(**place, max_concurrent_trials=concurrent, **choices)
    (folder / "ray").mkdir(parents=True, exist_ok=True)
    resources = Resources(1, 0, concurrent, 1)
    history = scan(folder / "journal.jsonl").events if (folder / "journal.jsonl").exists() else []
    history = with_checkpoints(folder, history, is_task=True) if experiment.scheduler == "pbt" else history
    request = Request(experiment, loaded_space, {}, history, resources, "disabled")
    journal = open_journal(request)
    with process_state(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "kill", lambda actor: None)  # no process is there
        assemble(request, journal, resources).run()
    journal.close()


def resumed(folder, num_events, **choices):
    """The search gone on from its first events, beside the folder."""
    target = folder.with_name(f"{folder.name}-{num_events}")
    cut(folder, target, num_events)
    run(target, **CHOICES | choices)
    return target


def outcome_of(folder):
    """Suggestions, reports (without checkpoints' numbers) and decisions in their order, and how each trial ended."""
    events = read(folder / "journal.jsonl")
    kept = [e for e in events if e["event"] in ("trial_suggested", "report", "decision")]
    ends = {}
    for event in events:
        if event["event"] == "trial_started":
            ends.pop(event["trial"], None)  # of a session before
        elif event["event"] == "trial_ended":
            ends[event["trial"]] = event["reason"]
    return [{name: event[name] for name in event.keys() - {"time", "checkpoint"}} for event in kept], ends
