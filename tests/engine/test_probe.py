"""The check of a cluster's nodes, with one node."""

import pickle
import subprocess
import sys
import time
from functools import partial
from types import SimpleNamespace

import pytest
from ray import cloudpickle, tune

from tuner.engine.cluster import probe
from tuner.errors import RequestError
from tuner.space import Space
from tuner.spec import patience
from tuner.spec.experiment import Experiment
from tuner.spec.spaces import MAIN, LoadedSpace
from tuner.tuning import driver


class Slow:
    def __reduce__(self):
        return time.sleep, (2,)  # where it is loaded


@pytest.mark.parametrize("answers", [True, False])
def test_a_node_that_answers_late_is_waited_for_and_this_is_said(one_ray, tmp_path, monkeypatch, capsys, answers):
    monkeypatch.setattr(driver.ray, "init", lambda *args, **options: None)  # Ray runs already
    monkeypatch.setattr(driver.ray, "shutdown", lambda: None)
    monkeypatch.setattr(patience, "FIRST_S", 0.1)
    monkeypatch.setattr(probe, "PROBE_TIMEOUT_S", 60.0 if answers else 0.5)
    space = Space(params={"x": tune.uniform(0, 1)}, train=partial(print, Slow()))
    joined = driver.ray_at(Experiment(address="auto", results=str(tmp_path)), LoadedSpace(space, MAIN, None, "", MAIN))
    if answers:
        with joined:
            pass
    else:
        with pytest.raises(RequestError, match=r"--address auto: node \S+: has not answered in 0 s; see the Ray logs"):
            joined.__enter__()
    assert "still waiting until each node of the cluster has loaded the space after 0 s" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_function_that_sets_cudnns_flags_can_be_sent():
    import torch

    namespace = {"torch": torch, "__name__": "a_space"}
    exec("def seed():\n    torch.backends.cudnn.deterministic = True\ndef train():\n    seed()", namespace)
    probe.by_value(SimpleNamespace(module="a_space"))
    with torch.backends.cudnn.flags(deterministic=False):
        cloudpickle.loads(cloudpickle.dumps(namespace["train"]))()
        assert torch.backends.cudnn.deterministic
    assert pickle.loads(cloudpickle.dumps(torch.backends.cudnn)) is torch.backends.cudnn


def test_what_a_space_has_put_on_the_path_is_found_where_its_code_is_loaded(tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "on_the_path.py").write_text("def half(x): return x / 2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("lib")
    import on_the_path

    sent = cloudpickle.dumps(probe.OnPath({"f": on_the_path.half, "x": 3}))
    load = (
        "import pickle, sys; got = pickle.loads(sys.stdin.buffer.read()); import on_the_path as m; print(got['f'](3))"
    )
    done = subprocess.run([sys.executable, "-c", load], input=sent, capture_output=True, cwd="/")
    assert done.stdout == b"1.5\n", done.stderr
