"""Whatever lies in an experiment's folder: it is a row, its neighbours notice nothing, nothing elsewhere is read."""

import itertools
import shutil

import hypothesis.strategies as some
import pytest
import strategies
from fastapi.testclient import TestClient
from fuzzing import TIERS, ends_soon
from holding import documented, holding

from tuner.record.results import Following
from tuner.serve.app import create_app
from tuner.views import report, tables
from tuner.views.audit_record import result_of
from tuner.views.one_trial import one_trial

HERE = "http://127.0.0.1:8800"
ALL = "/api/experiments"
ROUTES = (
    "", "/trials", "/trials?since=2", "/rungs", "/figures", "/audit", "/events", "/trials/00000", "/trials/a_0",
    "/trials/trial_0",
)  # fmt: skip
COSTLY = (
    "/what-if?scheduler=asha", "/what-if?scheduler=median", "/what-if?scheduler=hyperband", "/contour?x=lr&y=act",
    "/contour?x=lr&y=deep/k", "/importance",
)  # fmt: skip
UNFORESEEN = ("cannot be answered (", "the service failed (")


@pytest.fixture
def client(tmp_path, monkeypatch):
    """A service over a folder with a good experiment."""
    monkeypatch.setattr("tuner.serve.app.event_frames", ends_soon)
    strategies.elsewhere(tmp_path / "outside")
    good = strategies.elsewhere(tmp_path / "results" / "good")
    for path in ("ray", "best", "trial_0", "trial_1"):
        shutil.rmtree(good / path)
    with TestClient(create_app(tmp_path / "results"), base_url=HERE, raise_server_exceptions=True) as client:
        yield client


def rows(client):
    """The list of experiments by name."""
    answer = client.get(ALL)
    assert answer.status_code == 200, answer.text
    return {row["name"]: row for row in answer.json()["experiments"]}


def every_view(folder):
    """What the service and report.html show of a folder, asked in this process."""
    record = documented(Following(folder).load)
    if record is None:
        return
    tables.trial_rows(record), tables.rung_rows(record), tables.decision_rows(record), tables.best_row(record)
    documented(result_of, record)
    for trial in record.trials:
        assert strategies.SENTINEL not in str(one_trial(record, trial.id))
    if record.experiment.max_epochs <= 10_000:  # else its process ends it, which the routes show
        page = report.page(record)
        assert strategies.SENTINEL not in page and "<img" not in page


def every_route(client, name, costly):
    """Asks for everything about an experiment, of COSTLY for one; checks its row of the list."""
    statuses, row = {}, rows(client).get(name)
    for route in (*ROUTES, costly):
        answer = client.get(f"{ALL}/{name}{route}")
        assert answer.status_code < 500, (route, answer.status_code, answer.text)
        assert strategies.SENTINEL not in answer.text and not any(each in answer.text for each in UNFORESEEN), route
        assert answer.status_code == 200 or answer.json()["error"].isprintable()
        statuses[route] = answer.status_code
    assert row is None or (row["state"] and (statuses[""] == 200) == (not row["error"])), row
    assert row is not None or statuses[""] == 404
    assert strategies.SENTINEL not in str(row)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    "num, folders", [(35, strategies.experiments), (20, strategies.ray_folders)], ids=["own", "ray"]
)
def test_a_folder(client, tmp_path, tier, num, folders):
    good, numbers = rows(client)["good"], itertools.count()
    assert good["epochs"] == 5 and not good["error"]

    def holds(example):
        files, costly = example
        with holding(tmp_path, files, name=f"x{next(numbers)}") as folder:
            every_route(client, folder.name, costly)
            every_view(folder)
            assert rows(client)["good"] == good

    tier.check(num, some.tuples(folders(tmp_path / "outside"), some.sampled_from(COSTLY)), holds)
