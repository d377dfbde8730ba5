"""What people bring: class Trainables, their own callbacks, values to stop at, pbt with a start and a range apart."""

import json

import pytest
from tiers import further

HEAD = '"""Brought."""\nimport ray\nfrom pathlib import Path\nfrom ray import tune\nfrom tuner.space import Space\n'
COUNTING = """
class Counting(tune.Trainable):
    def setup(self, config):
        self.count = 0

    def step(self):
        self.count += 1
        if self.count == 3 and not Path(MARK).exists():
            Path(MARK).touch()
            raise ray.exceptions.RayActorError(error_msg="killed")
        return {"loss": self.config["x"] / self.count, "count": self.count, "done": self.count == self.config["steps"]}

    def save_checkpoint(self, folder):
        SAVE

    def load_checkpoint(self, saved):
        LOAD

space = Space(params={"x": tune.uniform(0, 1), "steps": 5}, train=Counting, max_epochs=9)
"""
WAYS = {
    "dict": ('return {"count": self.count}', 'self.count = saved["count"]'),
    "folder": (
        'Path(folder, "count").write_text(str(self.count))',
        'self.count = int(Path(saved, "count").read_text())',
    ),
    "nothing": ("raise NotImplementedError", "pass"),
}


@pytest.mark.parametrize("way", ["dict", *further(["folder", "nothing"], 2)])
def test_a_class_trainable_goes_on_from_its_checkpoint_in_this_process(search_here, tmp_path, way):
    """Its worker's end is only reported."""
    save, load = WAYS[way]
    text = HEAD + COUNTING.replace("MARK", repr(str(tmp_path / "mark"))).replace("SAVE", save).replace("LOAD", load)
    (tmp_path / "counting.py").write_text(text)
    ran = search_here(str(tmp_path / "counting.py"), "--num-samples", "2", "--scheduler", "fifo")
    assert ran.code == 0, ran.err
    for trial in ran.record.trials:
        assert [report.metrics["count"] for report in trial.reports] == [1, 2, 3, 4, 5]
        assert trial.status == "completed"
    resumed_at = [e["from_epoch"] for e in ran.events if e["event"] == "trial_failed"]
    assert resumed_at == [0 if way == "nothing" else 2], "the killed trial goes on after its last checkpoint"
    assert json.loads((ran.folder / "best" / "config.json").read_text())["config"]["steps"] == 5


def test_a_callback_is_called_and_a_broken_one_does_not_end_the_search(search_here, tmp_path, caplog):
    text = """
class Note(tune.Callback):
    def on_trial_result(self, iteration, trials, trial, result, **info):
        Path(FOLDER, f"{trial.trial_id}-{result['training_iteration']}.note").touch()

class Broken(tune.Callback):
    def on_trial_result(self, iteration, trials, trial, result, **info):
        raise OSError("no such server")

def train(config):
    for _ in range(3):
        tune.report({"loss": config["x"]})

space = Space(params={"x": tune.uniform(0, 1)}, train=train, callbacks=[Broken(), Note()], num_samples=2)
"""
    (tmp_path / "noted.py").write_text(HEAD + text.replace("FOLDER", repr(str(tmp_path))))
    ran = search_here(str(tmp_path / "noted.py"), "--scheduler", "fifo")
    assert ran.code == 0
    assert len(list(tmp_path.glob("*.note"))) == 6
    assert caplog.text.count("callback Broken.on_trial_result raises OSError: no such server") == 1
    assert str(tmp_path / "noted.py") in caplog.text, "the user's own file and line"


FALLING = """
def train(config):
    for epoch in range(1, 9):
        tune.report({"loss": 1 / epoch, "accuracy": epoch / 8})

space = Space(params={"x": tune.uniform(0, 1)}, train=train, num_samples=2, max_epochs=8, STOP)
"""


@pytest.mark.parametrize(
    ("given", "options", "epochs"),
    [
        ("", ["--stop", "loss=0.2"], 5),  # the searched metric in its mode: at most, with mode min
        pytest.param("stop={'training_iteration': 3}", ["--stop", "accuracy=1"], 3, marks=pytest.mark.slow),
    ],
)
def test_a_trial_ends_when_a_metric_reaches_the_value(search_here, tmp_path, given, options, epochs):
    (tmp_path / "falling.py").write_text(HEAD + FALLING.replace("STOP", given))
    ran = search_here(str(tmp_path / "falling.py"), "--scheduler", "fifo", *options)
    assert ran.code == 0, ran.err
    for trial in ran.record.trials:
        assert len(trial.reports) == epochs and trial.status == "completed" and "--stop" in trial.reason


@pytest.mark.slow  # half a minute
def test_pbt_starts_at_one_value_and_draws_from_a_range_at_its_own_interval(search_here, tmp_path):
    text = """
import json, tempfile

def train(config):
    epoch, checkpoint = 0, tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            epoch = json.loads(Path(folder, "epoch").read_text())
    while True:
        epoch += 1
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "epoch").write_text(json.dumps(epoch))
            tune.report({"loss": config["lr"] * config["x"]}, checkpoint=tune.Checkpoint.from_directory(folder))

params = {"lr": 0.1, "x": tune.uniform(0.5, 1)}
space = Space(params=params, train=train, mutable={"lr": tune.uniform(0.01, 0.2)}, num_samples=4, max_epochs=6)
"""
    (tmp_path / "changing.py").write_text(HEAD + text)
    space = str(tmp_path / "changing.py")
    ran = search_here(space, "--scheduler", "pbt", "--perturbation-interval", "2", "--max-concurrent-trials", "2")
    assert ran.code == 0, ran.err
    suggested = [event["config"]["lr"] for event in ran.events if event["event"] == "trial_suggested"]
    assert suggested == [0.1] * 4
    changes = [event for event in ran.events if event["event"] == "decision" and "lr" in event["reason"]]
    assert changes and all(event["epoch"] % 2 == 0 for event in changes)
