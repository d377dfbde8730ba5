"""What a cluster is, as far as it can be told without one."""

import pytest

from tuner import cluster
from tuner.errors import RequestError


@pytest.fixture
def head(monkeypatch, tmp_path):
    """A cluster of one head that takes no trials, and its home folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 2.0, "node:__internal_head__": 1.0})
    return tmp_path


def test_capacity_without_an_autoscaler_is_what_there_is(head):
    assert cluster.capacity() == {"CPU": 2.0, "node:__internal_head__": 1.0}


def test_capacity_counts_the_workers_that_the_autoscaler_may_start(head):
    (head / "ray_bootstrap_config.yaml").write_text(
        "available_node_types:\n"
        "  worker: {resources: {CPU: 4, GPU: 1}, max_workers: 3}\n"
        "  head: {resources: {CPU: 0}, max_workers: 0}\n"
    )
    assert cluster.capacity() == {"CPU": 12.0, "GPU": 3.0, "node:__internal_head__": 1.0}


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("ray://127.0.0.1:10001", "run it there: ray job submit"),
        ("127.0.0.1:1", "nothing answers there"),
        ("nowhere", "must be auto or host:port"),
    ],
)
def test_an_address_that_cannot_be_one_is_refused(address, said):
    with pytest.raises(RequestError, match=said):
        cluster.check_head(address)
