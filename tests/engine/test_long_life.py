"""What a search with many trials keeps open, and what it keeps of trials that have ended."""

import contextlib
import os

import pytest
from workerless import MANAGER, Worker, Workerless, run

from tuner.engine.controller.changes import Controller, Watch


class Talkative(Worker):
    """Its reports have a metric that nobody names."""

    def train(self):
        return super().train() | {"other": 1.0, "config": self.setting}


@pytest.fixture
def search(one_ray, tmp_path, monkeypatch):
    """`search(look, ...)` runs a search and calls `look` with the controller after each of its steps."""

    def searched(look, **choices):
        ends = Watch.on_step_end

        def looked(self, *args, **info):
            ends(self, *args, **info)
            look(self.host)

        monkeypatch.setattr(MANAGER, Workerless)
        monkeypatch.setattr(Workerless, "worker", Talkative)
        monkeypatch.setattr(Watch, "on_step_end", looked)
        run(tmp_path / "search", max_epochs=4, num_samples=12, searcher="random", **choices)

    return searched


def test_an_ended_trial_keeps_its_setting_and_its_metrics_that_the_table_shows(search):
    controllers: set[Controller] = set()
    search(controllers.add, scheduler="asha")
    (controller,) = controllers
    assert len(controller.get_trials()) == 12
    for trial in controller.get_trials():
        kept = {"loss", "training_iteration", "checkpoint_dir_name"}
        assert trial.config.keys() == {"width", "lr", "batch_size"} and trial.last_result.keys() - {"trial_id"} == kept
        assert trial.checkpoint is None and not trial.metric_analysis
    assert len(controller._get_trial_checkpoints()) <= 1  # of the snapshot that Ray writes in its first step
    assert len({id(trial.temporary_state) for trial in controller.get_trials()}) == 1


def test_a_paused_trial_holds_no_file_open(search):
    paused, held = [], []

    def look(controller):
        paused.append(sum(trial.status == "PAUSED" for trial in controller.get_trials()))
        names = []
        for file in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # another thread of the process has just closed it
                names.append(os.readlink(f"/proc/self/fd/{file}"))
        own = {f"{trial.local_path}/result.json" for trial in controller.get_trials()}
        held.append(sum(name in own for name in names))

    search(look, scheduler="asha-promotion")
    assert max(paused) >= 4 and max(held) == 1
