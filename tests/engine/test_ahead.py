"""Processes started ahead of their trials. In a process of its own: they belong to the Ray that the driver starts."""

import json
import subprocess
import sys

import pytest

from tuner.engine.local.alone import importing, start_ahead

SCRIPT = """
import contextlib, json, os, sys, time, uuid
from pathlib import Path
os.environ["OURS"] = uuid.uuid4().hex  # another Ray may run beside this one
import tuner.tuning.driver
import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tuner.engine.local.alone import private_options, start_ahead

def idle():
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            ours = os.environ["OURS"].encode() in (process / "environ").read_bytes()
            found += ours and (process / "cmdline").read_bytes().startswith(b"ray::IDLE")
    return found

class Actor:
    def look(self):
        return os.getpid(), "colorsys" in sys.modules

options = private_options(None, 3, ["colorsys"])
ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, **options)
start_ahead(3)
end = time.monotonic() + 30
while (started := idle()) < 3 and time.monotonic() < end:
    time.sleep(0.1)
group = placement_group([{"CPU": 1}, {"CPU": 1}])
ray.get(group.ready())
time.sleep(3)  # Ray ends those that have been idle for a second
kept = idle()
actors = []
for index, cpus in ((0, 0), (0, 1), (1, 1)):
    place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
    actors.append(ray.remote(Actor).options(num_cpus=cpus, scheduling_strategy=place).remote())
seen = ray.get([actor.look.remote() for actor in actors])
print(json.dumps({"started": started, "kept": kept, "left": idle(), "imported": [said for _, said in seen]}))
ray.shutdown()
"""


@pytest.mark.slow  # a Ray of its own; by default `test_contract.py` has what is used of Ray here
def test_processes_wait_for_the_actors_of_a_placement_group_that_takes_all_cpus():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    assert printed == {"started": 3, "kept": 3, "left": 0, "imported": [True] * 3}


def test_a_raylet_that_does_not_answer_is_told_and_not_waited_for(one_ray, monkeypatch, caplog):
    monkeypatch.setattr(one_ray, "nodes", lambda: [{"NodeManagerAddress": "127.0.0.1", "NodeManagerPort": 1}])
    start_ahead(1)
    assert "no worker was started ahead" in caplog.text


def test_modules_that_import_each_other_are_whole_once_the_block_has_ended(tmp_path, monkeypatch):
    package = tmp_path / "circle"
    package.mkdir()
    (package / "__init__.py").write_text("from circle.first import Name")
    (package / "first.py").write_text("import time; time.sleep(0.5); import circle.second; Name = str")
    (package / "second.py").write_text("import time; time.sleep(0.5); import circle")
    monkeypatch.syspath_prepend(tmp_path)
    with importing(["circle"]):
        pass
    assert sys.modules["circle"].Name is str


def test_a_module_that_cannot_be_imported_is_an_error_of_the_block():
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), importing(["no_such_module"]):
        pass
