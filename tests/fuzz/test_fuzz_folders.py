"""Whatever lies in an experiment's folder: it is a row, its neighbours notice nothing, nothing elsewhere is read."""

import hypothesis.strategies as some
import pytest
import strategies
import world as worlds
from fuzzing import TIERS

from tuner.record.results import Following
from tuner.serve.reading import stream
from tuner.views import report, tables
from tuner.views.audit_record import result_of
from tuner.views.one_trial import one_trial

COSTLY = some.sampled_from(worlds.COSTLY)


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setattr("tuner.serve.app.event_frames", worlds.ends_soon(stream.event_frames))
    world = worlds.World(tmp_path)
    with world.client:
        yield world


def every_view(folder):
    """What the service and report.html show of a folder, asked in this process."""
    record = worlds.documented(Following(folder).load)
    if record is None:
        return
    tables.trial_rows(record), tables.rung_rows(record), tables.decision_rows(record), tables.best_row(record)
    worlds.documented(lambda: result_of(record))
    for trial in record.trials:
        assert strategies.SENTINEL not in str(one_trial(record, trial.id))
    if record.experiment.max_epochs <= 10_000:  # else its process ends it, which the routes show
        page = report.page(record)
        assert strategies.SENTINEL not in page and "<img" not in page


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    "part, folders", [("experiments", strategies.experiments), ("ray folders", strategies.ray_folders)]
)
def test_a_folder(world, tier, part, folders):
    def holds(example):
        files, costly = example
        with world.holding(files) as folder:
            world.look(folder, costly)
            every_view(folder)

    tier.check(part, some.tuples(folders(world.outside), COSTLY), holds)
