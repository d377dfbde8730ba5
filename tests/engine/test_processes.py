"""Each trial is a process of its own: it ends as Python's would, and inherits nothing from the trial before."""

import threading
from pathlib import Path

import pytest
import torch

from tuner.engine.processes import child
from tuner.training.task import trial_seed

HEAD = """
import ctypes, os, resource, signal, subprocess, sys, threading, time
from pathlib import Path
from ray import tune
from tuner.space import Space
"""
EXITS = {  # what the last line does -> status, a part of the reason
    "return": ("completed", ""),
    "raise KeyError('lr')": ("failed", "KeyError: 'lr' ("),
    "sys.exit()": ("completed", ""),
    "sys.exit(0)": ("completed", ""),
    "sys.exit(1)": ("failed", "called sys.exit(1) ("),
    "sys.exit('no data')": ("failed", "called sys.exit('no data') ("),
    "os._exit(0)": ("completed", ""),
    "os._exit(3)": ("failed", "exit code 3"),
    "os.kill(os.getpid(), signal.SIGKILL)": ("failed", "its worker was killed"),
    "os.kill(os.getpid(), signal.SIGSEGV)": ("failed", "SIGSEGV"),
    "os.kill(os.getpid(), signal.SIGTERM)": ("failed", "SIGTERM"),
    "ctypes.PyDLL(None).sleep(1000)": ("failed", "no report for"),  # stuck in C, with Python's lock
    "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30)) or bytearray(2**40)": ("failed", "MemoryError"),
    "threading.Thread(target=lambda: 1 / 0).start()": ("completed", ""),
    "threading.Thread(target=lambda: (time.sleep(0.5), Path('late').touch())).start()": ("completed", ""),
}
BEGINS = """
def train(config):
    left = subprocess.Popen(["sleep", "1000"], start_new_session=True, stdout=subprocess.DEVNULL)
    Path("left").write_text(f"{left.pid}")
    Path("name").write_bytes(Path("/proc/self/comm").read_bytes())
    print("begins", flush=True)
    tune.report({"loss": 1.0, "process": os.getpid()})
"""


def is_alive(pid):
    return Path(f"/proc/{pid}/stat").exists() and ") Z " not in Path(f"/proc/{pid}/stat").read_text()


def test_each_exit_is_told_as_it_was_with_its_files_and_leaves_no_process(search, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    params = f"params={{'exit': tune.grid_search({list(EXITS)})}}"
    lines = "".join(f"    if config['exit'] == {line!r}:\n        {line}\n" for line in EXITS)
    (tmp_path / "space.py").write_text(f"{HEAD}{BEGINS}{lines}\nspace = Space({params}, train=train, metric='loss')\n")
    limits = "--num-samples", "1", "--max-failures", "0", "--trial-timeout", "8s"
    ran = search(str(tmp_path / "space.py"), "--scheduler", "fifo", *limits)
    found = {trial.config["exit"]: (trial.status, trial.reason or "") for trial in ran.record.trials}
    wrong = {e: found[e] for e, (status, why) in EXITS.items() if found[e][0] != status or why not in found[e][1]}
    assert not wrong
    trial_pid = {event["trial"]: event["pid"] for event in ran.events if event["event"] == "trial_started"}
    for trial in ran.record.trials:
        folder = ran.folder / "ray" / trial.id
        files = {path.name: path.read_text() for path in (folder / "files").iterdir()}
        assert not is_alive(files["left"]) and not is_alive(int(trial.reports[0].metrics["process"])), trial.config
        assert files["name"] == f"tuner {trial_pid[trial.id]}\n"
        assert (folder / "stdout").read_text().startswith("begins\n")
        assert ("late" in files) == ("late" in trial.config["exit"])
    assert "ZeroDivisionError" in "".join(path.read_text() for path in ran.folder.glob("ray/*/stderr"))


def test_a_trial_that_calls_ray_joins_the_search_s_own(search, tmp_path):
    call = "ray.get(ray.put(7)) + len(ray.nodes())"
    lines = f"def train(config):\n    import ray\n    tune.report({{'loss': {call}}})\n"
    space = "space = Space(params={'x': tune.uniform(0, 1)}, train=train, metric='loss')"
    (tmp_path / "space.py").write_text(f"{HEAD}{lines}{space}\n")
    ran = search(str(tmp_path / "space.py"), "--num-samples", "1")
    assert [trial.reports[0].metrics["loss"] for trial in ran.record.trials] == [8]


SPAWNS = """
from tuner import script, tune
given = script({{"crop": tune.randint(8, 64), "scale": tune.randint(8, 64), "width": tune.randint(8, 64)}},
    metric="loss", max_epochs=1)
import argparse, multiprocessing, os, sys
from beside import scale
crop = 4
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=4)
width = parser.parse_args().width

class Values:
    def __init__(self): self.found = [crop, scale, width, given.get("width")]

def put(queue, values, deeper):
    queue.put([values.found, [crop, scale, width, given.get("width")], __name__, os.getcwd(), __file__])
    if deeper:
        process = multiprocessing.get_context("{method}").Process(target=put, args=(queue, values, False))
        process.start()
        process.join()

if __name__ == "__main__":
    context = multiprocessing.get_context("{method}")
    queue, values = context.Queue(), Values()
    process = context.Process(target=put, args=(queue, values, True))
    process.start()
    for _ in range(2):
        theirs, own, name, folder, file = queue.get()
        wanted = [given["crop"], given["scale"], given["width"], given["width"]]
        assert theirs == own == values.found == wanted, (theirs, own)
        assert (name, folder, file) == ("__mp_main__", os.getcwd(), __file__), (name, folder, file)
    process.join()
    tune.report({{"loss": process.exitcode}})
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_that_a_script_spawns_have_the_trial_s_parameters(search, tmp_path, method):
    (tmp_path / "beside.py").write_text("scale = 4\n")
    (tmp_path / "train.py").write_text(SPAWNS.format(method=method))
    ran = search(str(tmp_path / "train.py"), "--num-samples", "2", "--scheduler", "fifo")
    assert [(trial.status, trial.reason) for trial in ran.record.trials if trial.status != "completed"] == []
    assert [trial.reports[0].metrics["loss"] for trial in ran.record.trials] == [0, 0]


def test_torch_is_seeded_also_if_only_a_helper_imports_it(search, tmp_path):
    (tmp_path / "drawing.py").write_text("import torch\n\ndef drawn():\n    return torch.rand(()).item()\n")
    lines = "def train(config):\n    import drawing\n    tune.report({'loss': drawing.drawn()})\n"
    space = "space = Space(params={'x': tune.uniform(0, 1)}, train=train, metric='loss')"
    (tmp_path / "space.py").write_text(f"{HEAD}{lines}{space}\n")
    trials = search(str(tmp_path / "space.py"), "--num-samples", "3", "--seed", "5").record.trials
    generator = torch.Generator()
    for trial in trials:  # the first one imports torch itself, the service does for later ones
        generator.manual_seed(trial_seed(5, trial.id))
        assert trial.reports[0].metrics["loss"] == torch.rand((), generator=generator).item()
    assert len(trials) == 3


@pytest.mark.parametrize(("before", "had"), [("", [0, 1, 1]), ("os.environ['OWN'] = '1'", [0, 0, 0])])
def test_a_package_that_a_trial_imports_is_imported_once_unless_it_may_differ(search, tmp_path, before, had):
    train = f"def train(config):\n    {before or 'pass'}\n    had = 'sympy' in sys.modules\n    import sympy\n"
    report = "    tune.report({'loss': float(had)})\n"
    space = "space = Space(params={'x': tune.grid_search([1, 2, 3])}, train=train, metric='loss')"
    (tmp_path / "space.py").write_text(f"import os, sys\n{HEAD}{train}{report}{space}\n")
    trials = search(str(tmp_path / "space.py"), "--num-samples", "1", "--max-concurrent-trials", "1").record.trials
    assert [trial.reports[0].metrics["loss"] for trial in trials] == had


# What a trial may set in its process; the next one must find none of it.
SETS = """
import gc, logging, os, socket, sys, warnings
import numpy as np
import torch
import helper

def found():
    umask = os.umask(0)
    os.umask(umask)
    return [
        torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(),
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark,
        torch.is_anomaly_enabled(), len(torch.nn.modules.module._global_forward_hooks),
        torch.nn.Linear.forward.__name__, helper.seen, helper.Counter.seen, float(helper.layer.weight.sum()),
        logging.root.level, len(logging.root.handlers), umask, len(sys.path),
        ("error", None, Warning, None, 0) in warnings.filters,  # the imports of a trial may add others
        sys.getrecursionlimit(), socket.getdefaulttimeout(), gc.isenabled(),
        sys.excepthook.__name__, torch.get_num_threads(),
        sorted({*os.environ} - {"TORCHINDUCTOR_CACHE_DIR"}),  # an import of torch's sets it, as the filters
        sorted({*os.listdir(".")} - {"__pycache__"}),  # Python makes it meanwhile in the start folder
    ]

def codes():
    return {f"state_{number}": hash(str(each)) % 2**40 for number, each in enumerate(found())}

def set_all():
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.deterministic = torch.backends.cudnn.benchmark = True
    torch.autograd.set_detect_anomaly(True)
    torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    torch.nn.Linear.forward = lambda self, inputs: inputs @ self.weight.T * 2
    helper.seen.append(1)
    helper.Counter.seen.append(1)
    with torch.no_grad():
        helper.layer.weight.add_(1)
    logging.basicConfig(filename="log.txt", level=logging.DEBUG)
    warnings.simplefilter("error")
    os.umask(0o77)
    sys.path.insert(0, "/nowhere")
    sys.setrecursionlimit(5000)
    socket.setdefaulttimeout(7)
    gc.disable()
    sys.excepthook = lambda *_: None
    os.environ["SET"] = "1"
    torch.set_num_threads(1)

def curve():
    stream = torch.Generator().manual_seed(3)
    inputs = torch.randn(64, 8, generator=stream)
    optimizer = torch.optim.SGD(helper.layer.parameters(), lr=0.1)
    for epoch in range(3):
        loss = helper.layer(inputs).square().mean()
        optimizer.zero_grad(), loss.backward(), optimizer.step()
        yield loss.item()
"""
HELPER = """
import torch
torch.manual_seed(0)
layer, seen = torch.nn.Linear(8, 1), []

class Counter:
    seen = []
"""
TRAINED = """
    state = codes()
    for loss in curve():
        tune.report({"loss": loss, **state})
    if number == 1:
        set_all()
"""
KINDS = {
    "function": f"""
def train(config):
    number = config["number"]{TRAINED}
space = tuner.Space(params=PARAMS, train=train, metric="loss", max_epochs=4)
""",
    "class": """
class Trained(tune.Trainable):
    def setup(self, config):
        self.number, self.state, self.losses = config["number"], codes(), curve()

    def step(self):
        report = {"loss": next(self.losses), **self.state, "done": self.iteration == 2}
        if self.iteration == 2 and self.number == 1:
            set_all()
        return report

space = tuner.Space(params=PARAMS, train=Trained, metric="loss", max_epochs=4)
""",
    "script": f"""
tuner.script(PARAMS, metric="loss")
number = 0
if True:{TRAINED}
""",
    "task": """
def data(data_dir):
    inputs = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    one, others = tuner.Arrays(inputs[:1], inputs[:1, 0]), tuner.Arrays(inputs[1:], inputs[1:, 0])
    return tuner.Splits(train=one, validation=others)  # trials have seeds of their own, and shuffle what they train on

def loss(outputs, targets):
    return (outputs[:, 0] - targets).square().mean()

RUN = {}

def model(config):
    RUN.update(number=config["number"], state=sum(codes().values()), epochs=0)
    return helper.layer

def state(model):
    RUN["epochs"] += 1
    if RUN["epochs"] == 3 and RUN["number"] == 1:
        set_all()
    return RUN["state"]

space = tuner.Space(params=PARAMS, metric="loss", max_epochs=3, task=tuner.Task(
    data=data, model=model, optimizer=lambda p, c: torch.optim.SGD(p, lr=0.1), loss=loss,
    model_metrics={"state": state}))
""",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_trial_is_the_same_first_and_after_one_that_sets_everything(search, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helper.py").write_text(HELPER)
    params = 'PARAMS = {"number": tune.grid_search([0, 1, 2])}\n'
    (tmp_path / "space.py").write_text(f"import tuner\nfrom tuner import tune\n{params}{SETS}{KINDS[kind]}")
    options = "--max-concurrent-trials", "1", "--scheduler", "fifo", "--num-samples", "1"
    ran = search(str(tmp_path / "space.py"), *options, "--unchecked", "number")
    first, setting, after = (
        [
            {name: report.metrics[name] for name in report.metrics if name.startswith(("loss", "state"))}
            for report in trial.reports
        ]
        for trial in ran.record.trials
    )
    assert ran.code == 0 and len(first) == 3 and len({report["loss"] for report in first}) == 3
    assert first == after and first == setting


def test_threads_that_keep_a_program_running_are_named(monkeypatch, capsys):
    monkeypatch.setattr(child, "THREADS_S", 0.05)
    end = threading.Event()
    threads = [threading.Thread(target=end.wait, name="saver"), threading.Thread(target=end.wait, daemon=True)]
    for thread in threads:
        thread.start()
    child.tell_threads()
    end.set()
    assert capsys.readouterr().err == "the program has returned; waiting for its threads saver\n"
    child.tell_threads()
    assert capsys.readouterr().err == ""
