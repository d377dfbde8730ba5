"""The service that forks trials: what it may import for all of them, what it must not, and what its end costs."""

import contextlib
import importlib.util
import itertools
import os
import signal
import sys
import time

import psutil
import pytest
from killing import seen
from ray import cloudpickle

from tuner.engine.processes import launch
from tuner.engine.processes.child import Call, attributes_of
from tuner.engine.processes.client import Caller, EndedError, Shared, hold, hold_packed
from tuner.engine.processes.packed import in_memory
from tuner.engine.processes.service import Hold

NUMBERS = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def started():
    with launch.root(()), launch.started():
        yield


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """Make the shared value of a module with this source: all that its variable `value` has."""
    monkeypatch.syspath_prepend(tmp_path)

    def shared_by(source):
        name = f"helper_of_service_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(source)
        return Shared(launch.service_name(), in_memory([memoryview(f"c{name}\nvalue\n.".encode())]))

    return shared_by


def called(caller, function):
    """Run a function of the shared value in a process of its own."""
    environment = {**os.environ, "LOST": "1", "CUDA_VISIBLE_DEVICES": "1"}
    call = Call(tuple(caller.packed), cloudpickle.dumps(function), {}, environment, os.getcwd())
    return caller.call(call, (1, 2))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("", ""),
        ("import subprocess\nassert subprocess.run('exit 3', shell=True).returncode == 3", ""),
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()", "1 thread"),
        ("import subprocess\nsubprocess.Popen(['sleep', '1000'])", "1 process"),
        ("opened = open(__file__)", "helper_of_service"),
        ("import atexit\natexit.register(print)", "registers an exit handler ("),
        ("import atexit, shutil, logging.handlers\nlogging.shutdown()", ""),
        ("raise KeyError('lr')", "it raises KeyError: 'lr'"),
        ("import os\nos._exit(3)", "importing it ends Python"),
    ],
)
def test_an_import_that_cannot_be_forked_is_told_and_the_next_one_is_not_affected(shared, source, why):
    own = shared(f"import os\nvalue = [os.getpid()]\n{source}")
    told = hold_packed(own.name, own.packed)
    assert why in told and bool(why) == bool(told)
    after = shared("value = 7")
    assert hold_packed(after.name, after.packed) == ""
    with contextlib.closing(Caller(after)) as caller:
        assert called(caller, lambda _, value: value) == 7
    if not why:
        with contextlib.closing(Caller(own)) as caller:
            assert called(caller, lambda _, value: (value[0] != os.getpid(), os.getpid())[0])
    left = psutil.Process(launch._root.process.pid).children(recursive=True)
    assert not [each for each, words in seen(left, psutil.Process.cmdline) if "sleep" in words]


def test_variables_that_an_import_sets_arrive(shared):
    own = shared(
        "import os\nvalue = 1\nos.environ['SET_BY_HELPER'] = 'x'\nos.environ.pop('HOME')\n"
        "os.environ.setdefault('CUDA_VISIBLE_DEVICES', '0')"
    )
    with contextlib.closing(Caller(own)) as caller:
        found = called(caller, lambda _, value: (os.environ.get("SET_BY_HELPER"), os.environ.get("HOME"), value))
        assert found == ("x", None, 1)
        assert called(caller, lambda *_: os.environ["LOST"]) == "1"
        assert called(caller, lambda *_: os.environ["CUDA_VISIBLE_DEVICES"]) == "1"  # Ray's, of this trial


@pytest.mark.parametrize(("own", "is_told"), [({}, False), ({"OWN": "1"}, True), ({"SET": "y"}, True)])
def test_modules_are_imported_only_if_the_trial_has_changed_nothing_else(shared, tmp_path, own, is_told):
    name = f"installed_{next(NUMBERS)}"
    (tmp_path / f"{name}.py").write_text(f"import os\nos.environ['{name}'] = 'x'\n")
    changes = {name if variable == "SET" else variable: value for variable, value in {"SET": "x", **own}.items()}
    request = Hold(name, (), [name], [str(tmp_path), *sys.path], str(tmp_path), changes)
    assert bool(hold(launch.service_name(), request)) == is_told
    with contextlib.closing(Caller(shared("value = 1"))) as caller:
        assert called(caller, lambda *_: name in sys.modules) == (not is_told)


def test_a_killed_service_is_started_anew(shared):
    own = shared("value = 5")
    with contextlib.closing(Caller(own)) as caller:
        assert called(caller, lambda _, value: value) == 5
        caller.await_end(None)
        name, root = launch._root.name, launch._root.process.pid
        family = [each for each in psutil.process_iter(["cmdline"]) if name in (each.info["cmdline"] or ())]
        others = [each for each in family if each.pid != root]
        for each in others:
            with contextlib.suppress(psutil.NoSuchProcess):  # it ends as soon as the process that it serves has ended
                each.send_signal(signal.SIGKILL)
        psutil.wait_procs(others)
        assert [called(caller, lambda _, value: value + 1) for _ in range(2)] == [6, 6]


def test_each_call_has_a_process_of_its_own_whose_end_is_told(shared):
    own = shared("value = []")

    def grown(_, value):
        value.append(1)
        return len(value), os.getpid()

    with contextlib.closing(Caller(own)) as caller:
        (first, one), (second, other) = called(caller, grown), called(caller, grown)
        assert (first, second) == (1, 1) and one != other
        with pytest.raises(EndedError, match="exit code 3"):
            called(caller, lambda *_: os._exit(3))
        with pytest.raises(ZeroDivisionError):
            called(caller, lambda *_: 1 / 0)


def test_a_call_that_cannot_begin_or_whose_result_cannot_be_sent_is_told(shared, tmp_path):
    own = shared("value = 1")
    with contextlib.closing(Caller(own)) as caller:
        gone = Call(tuple(caller.packed), cloudpickle.dumps(lambda *_: 1), {}, dict(os.environ), str(tmp_path / "gone"))
        with pytest.raises(FileNotFoundError, match="gone"):
            caller.call(gone, (1, 2))
        with pytest.raises(TypeError, match="cannot pickle"):
            called(caller, lambda *_: sys._getframe())


def test_a_config_may_have_objects_that_only_the_trials_can_import(shared, tmp_path):
    refused = shared("import atexit\natexit.register(print)\nvalue = 1")
    assert hold_packed(refused.name, refused.packed)
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "models_of_config.py").write_text("class Model: pass\n")
    sys.path.insert(0, str(tmp_path / "deeper"))
    try:
        import models_of_config

        with contextlib.closing(Caller(refused)) as caller:
            call = caller.call_of(lambda config, _: config["model"].__name__, {"model": models_of_config.Model}, {})
            assert caller.call(call, (1, 2)) == "Model"
    finally:
        sys.path.remove(str(tmp_path / "deeper"))


def test_a_module_that_is_imported_when_it_is_first_used_is_not_executed(tmp_path):
    (tmp_path / "lazy.py").write_text("raise ImportError('executed')")
    spec = importlib.util.spec_from_file_location("lazy", tmp_path / "lazy.py")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert attributes_of(module)["__file__"] == str(tmp_path / "lazy.py")


def test_an_error_whose_class_only_the_process_can_import_is_told(shared, tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "own_errors.py").write_text("class OwnError(Exception):\n    pass\n")

    def raises(_, value):
        sys.path.insert(0, str(inner))
        import own_errors

        raise own_errors.OwnError("no data")

    with contextlib.closing(Caller(shared("value = 1"))) as caller, pytest.raises(RuntimeError, match="OwnError: no"):
        called(caller, raises)


def test_a_file_that_processes_may_share_stays_open_in_each(shared):
    own = shared("import os\nvalue = open(os.devnull, 'w')")
    with contextlib.closing(Caller(own)) as caller:
        assert called(caller, lambda _, null: (null.write("x"), null.flush())) == (1, None)


def test_a_waiting_process_that_is_killed_costs_no_call(shared):
    own = shared("import psutil\nvalue = psutil.Process")
    with contextlib.closing(Caller(own)) as caller:
        service = psutil.Process(called(caller, lambda _, process: process().parent().ppid()))
        deadline = time.monotonic() + 10  # the service forks the next keeper after it has handed over the call
        while not (keepers := [each for each, below in seen(service.children(), psutil.Process.children) if below]):
            assert time.monotonic() < deadline
        for each in keepers:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(keepers)
        assert called(caller, lambda _, process: 7) == 7
