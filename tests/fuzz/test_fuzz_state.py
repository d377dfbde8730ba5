"""Whatever lies in the service's state: a torn entry is left out with a line, and nothing there starts or ends more."""

import json
import os
import tempfile
from pathlib import Path

import pytest
import strategies
import world as worlds
from fuzzing import TIERS

from tuner.serve.jobs import cluster as clusters
from tuner.serve.jobs.cluster import find
from tuner.serve.jobs.queue import read_queue
from tuner.spec.experiment import Experiment


@pytest.mark.parametrize("tier", TIERS)
def test_a_queue(tmp_path, tier, capsys):
    good = strategies.text_of(strategies.entry("good"))

    def holds(files):
        folder = strategies.put(tmp_path / "queue", {**files, "good.json": good})
        try:
            with worlds.little_memory():
                searches = {search.name: search for search in read_queue(folder)}
            left_out = [line for line in capsys.readouterr().err.splitlines() if "is left out" in line]
            assert len(searches) + len(left_out) == len(files) + 1 and "good" in searches
            assert all(line.isprintable() for line in left_out)
            for search in searches.values():
                may_be_started(search)
        finally:
            strategies.remove(folder)

    tier.check("queues", strategies.queues(), holds)


def may_be_started(search):
    """Whether the search is one of the queue's file, with an experiment's options."""
    assert f"{search.name}.json".isprintable() and "/" not in search.name
    assert isinstance(search.experiment, Experiment) and isinstance(search.priority, int)


@pytest.mark.parametrize("tier", TIERS)
def test_a_cluster(tmp_path, tier, capsys, monkeypatch):
    def refused(*arguments):
        raise AssertionError(f"ended or removed: {arguments}")

    monkeypatch.setattr(clusters.os, "kill", refused)
    monkeypatch.setattr(clusters.shutil, "rmtree", refused)

    def holds(content):
        path = tmp_path / "cluster.json"
        path.write_bytes(content)
        with worlds.little_memory():
            assert find(tmp_path) is None  # no process that it may name is a head which the service started
        output = capsys.readouterr().err
        assert not output or ("is damaged" in output and output.strip().isprintable())

    tier.check("clusters", strategies.clusters(), holds)


@pytest.mark.parametrize("folder", ["tuner-\0", "tuner-nothing"])
def test_a_folder_that_is_none_is_not_removed(folder):
    head = clusters.Cluster(2**40, 5.0, 9, f"{Path(tempfile.gettempdir())}/{folder}", json.dumps(os.getpid()))
    head.end()
