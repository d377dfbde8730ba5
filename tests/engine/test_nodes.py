"""Nodes that come and go. `tests/raylets.py` has the searches with real nodes."""

import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import yaml
from raylets import FAULTS, figures, places, raylets

from tuner.engine.cluster import joining, nodes
from tuner.engine.cluster.joining import check_head
from tuner.engine.cluster.nodes import Nodes, Want, agreed, division, launchable
from tuner.errors import RequestError
from tuner.spec.resources import Resources


@pytest.fixture
def cluster(monkeypatch):
    """A cluster whose nodes the test sets: `cluster.present`, `cluster.leaving`, `cluster.launchable`."""

    state = SimpleNamespace(present=[], leaving=frozenset(), launchable=[], agreed=lambda want: None)
    monkeypatch.setattr(nodes, "QUERY_INTERVAL_S", 0.0)
    monkeypatch.setattr(nodes, "present", lambda: (state.present, state.leaving))
    monkeypatch.setattr(nodes, "launchable", lambda: state.launchable)
    monkeypatch.setattr(nodes, "agreed", lambda want: state.agreed(want))
    return state


def test_trials_at_a_time_follow_the_nodes_and_keep_to_the_share_or_stay_on_this_machine(cluster):
    followed, here = Nodes(Resources(1, 0, 4), follow=True), Nodes(Resources(1, 0, 2))
    cluster.leaving = frozenset("a")
    for present, expected in (([{"CPU": 4}], 4), ([{"CPU": 4}, {"CPU": 2}], 6), ([], 1), ([{"CPU": 1}], 1)):
        cluster.present = present
        assert followed.concurrent() == expected and followed.leaving == frozenset("a")
        assert here.concurrent() == 2 and not here.leaving and here.notice(3, 0) == ""
    cluster.present = [{"CPU": 4}]
    assert followed.concurrent() == 4 and not followed.too_many(9)
    cluster.agreed = lambda want: 2
    assert followed.concurrent() == 2 and followed.too_many(3) and not followed.too_many(2)


def test_an_autoscaler_sees_the_trials_that_were_asked_for_or_that_it_may_add_nodes_for(cluster):
    cluster.present, cluster.launchable = [{"CPU": 2}], [{"CPU": 4, "GPU": 1}] * 5
    for most, expected in ((0, 5), (3, 3), (20, 20)):
        assert Nodes(Resources(1, 1, 5), most=most, follow=True).concurrent() == expected


@pytest.mark.parametrize(
    ("wants", "expected"),
    [
        ([(10, 4)], [4]),
        ([(10, 3), (10, 3)], [2, 1]),
        ([(10, 4), (1, 4)], [3, 1]),  # what one cannot use is the other's
        ([(10, 8), (10, 2)], [4, 1]),  # trials of different sizes: halves of the cluster
        ([(10, 2), (10, 2), (10, 2)], [1, 1, 1]),  # more searches than places: taken in turn
        ([(0, 4), (10, 4)], [1, 4]),
        ([(10, 4), (10, 4, 1)], [1, 3]),  # the higher priority, but for one trial of each
        ([(10, 4), (2, 4, 1)], [2, 2]),  # and what it cannot use is the other's
        ([(10, 8), (10, 8), (4, 8, 9), (10, 8, -9)], [2, 1, 4, 1]),
    ],
)
def test_searches_divide_a_cluster(wants, expected):
    assert list(division({str(i): Want(*want) for i, want in enumerate(wants)}).values()) == expected


ONE, DDP = Resources(1, 1, 2), Resources(2, 0, 1, workers=2, split=True)


@pytest.mark.parametrize(
    ("trial", "present", "waiting", "notice"),
    [
        (ONE, [{"CPU": 8}], 2, "2 trials wait for a node with 1 CPU and 1 GPU: none of 1 node has that"),
        (ONE, [], 1, "1 trial waits for a node with 1 CPU and 1 GPU: none of 0 nodes has that"),
        (ONE, [{"CPU": 8, "GPU": 1}], 1, "1 trial waits for 1 CPU and 1 GPU: all nodes with enough resources are busy"),
        (DDP, [{"CPU": 1}], 1, "1 trial waits for 2 workers with 1 CPU each: 1 node has room for 1 of them"),
        (DDP, [{"CPU": 1}] * 2, 1, "1 trial waits for 2 workers with 1 CPU each: all nodes with enough"),
    ],
)
def test_why_trials_wait_is_said_while_none_runs(cluster, trial, present, waiting, notice):
    cluster.present = present
    waits = Nodes(trial, follow=True)
    assert waits.notice(waiting, 0).startswith(notice)
    assert waits.notice(waiting, 1) == waits.notice(0, 0) == ""


def test_the_launchers_file_says_how_far_it_goes(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert launchable() == []
    kinds = {
        "head": {"resources": {"CPU": 2}, "max_workers": 0},
        "gpu": {"resources": {"CPU": 8, "GPU": 1}, "max_workers": 3},
        "unsaid": {"max_workers": 1},
    }
    (tmp_path / "ray_bootstrap_config.yaml").write_text(yaml.safe_dump({"available_node_types": kinds}))
    assert launchable() == [{"CPU": 8, "GPU": 1}] * 3 + [{}]


OTHER = """
import json, sys
import tuner, ray
from tuner.engine.cluster.nodes import Want, agreed
ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
for line in sys.stdin:
    print(json.dumps(agreed(Want(*json.loads(line)))), flush=True)
"""


@pytest.fixture
def other(one_ray):
    """`other(10, 4)` has a second driver want ten trials of which the cluster holds four; gives its part."""
    address = one_ray.get_runtime_context().gcs_address
    command = [sys.executable, "-c", OTHER, address]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wants(*want):
        print(json.dumps(want), file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())

    yield wants, process
    process.kill()
    process.wait()


def test_two_drivers_come_to_the_same_division(other):
    wants, process = other
    assert agreed(Want(10, 4)) is None  # nobody else wants anything
    assert (wants(10, 4), agreed(Want(10, 4))) == (2, 2)
    assert (wants(1, 4), agreed(Want(10, 4))) == (1, 3)  # what one cannot use is the other's
    assert (wants(10, 4, 1), agreed(Want(10, 4))) == (3, 1)  # the higher priority
    assert (agreed(Want(10, 4, 2)), wants(10, 4, 1)) == (3, 1)
    process.stdin.close()
    process.wait(60)
    until = time.monotonic() + 60
    while (part := agreed(Want(10, 4))) is not None and time.monotonic() < until:
        time.sleep(0.1)  # Ray notes a driver's end a moment later
    assert part is None


@pytest.mark.parametrize("theirs", [{"ray_version": "2.9.0"}, {"python_version": "3.9.1"}])
def test_another_version_is_refused(monkeypatch, theirs):
    ours = {"ray_version": ray.__version__, "python_version": platform.python_version()}
    monkeypatch.setattr(joining, "_listening", str)
    monkeypatch.setattr(joining, "_asked", lambda *_: (ours | theirs, []))
    with pytest.raises(RequestError, match=r"the cluster runs Ray [\d.]+ on Python [\d.]+, but this process runs Ray"):
        check_head("h:1")
    monkeypatch.setattr(joining, "_asked", lambda *_: (ours, []))
    with pytest.raises(RequestError, match="this machine is no node of that cluster; start the search on a node"):
        check_head("h:1")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The figures of the search on one node that nothing happens to."""
    with raylets(tmp_path_factory.mktemp("alone"), 1) as bed:
        search = bed.search("alone")
        assert search.end() == 0, search.output
    return figures(search)


@pytest.mark.chaos
@pytest.mark.parametrize("name", FAULTS)
def test_a_search_has_the_same_figures_whatever_happens_to_its_nodes(alone, tmp_path, name):
    with raylets(tmp_path, FAULTS[name].num_nodes) as bed:
        search = FAULTS[name].search(bed, name)
    assert search.process.returncode == 0, search.output
    assert figures(search) == alone
    assert [event["status"] for event in search.named("trial_ended")] == ["completed"] * 6
    assert {event["kind"] for event in search.named("trial_failed")} == ({"worker_lost"} if "killed" in name else set())
    assert FAULTS[name].holds(search)


@pytest.mark.chaos
def test_a_ddp_trial_on_two_nodes_moves_when_one_is_drained(tmp_path):
    options = ["--strategy", "ddp", "--workers-per-trial", "2", "--num-samples", "2", "--max-epochs", "6"]
    with raylets(tmp_path, 0) as bed:
        bed.add(num_cpus=2)
        together = bed.search("together", *options)
        assert together.end() == 0, together.output
    with raylets(tmp_path, 2) as bed:
        apart = bed.search("apart", *options)
        apart.wait_for_reports(2)
        (other,) = {node.node_ip_address for node in bed.nodes} - {apart.named("trial_started")[0]["node"]}
        bed.drain(other)  # where the trial has a worker, and no more
        apart.wait_for(lambda: "2 nodes have room for 1 of them" in apart.output)
        bed.add()
        assert apart.end() == 0, apart.output
    assert figures(apart) == figures(together)
    assert [event["trial"] for event in apart.named("trial_started")] == ["00000", "00000", "00001"]
    assert not apart.named("trial_failed")


@pytest.mark.chaos
def test_gpus_that_are_not_there_yet_are_waited_for(tmp_path):
    from ray.autoscaler.v2.sdk import get_cluster_status

    with raylets(tmp_path, 1) as bed:
        options = ["--gpus-per-trial", "1", "--num-samples", "3"]
        space = Path(__file__).parents[1] / "spaces" / "functions.py"
        refused = bed.search("refused", *options, space=space)
        assert refused.end() == 2 and "no node of the cluster has more than 0 GPUs" in refused.output
        search = bed.search("waits", *options, "--max-concurrent-trials", "3", space=space)
        search.wait_for(lambda: "3 trials wait for a node with 1 CPU and 1 GPU" in search.output)
        seen = get_cluster_status(bed.address).resource_demands.placement_group_demand
        assert sum(bundles.count for each in seen for bundles in each.bundles_by_count) == 3
        gpus = bed.add(num_cpus=3, num_gpus=3)
        search.end()  # with 0 where there is a CUDA driver: these GPUs are so by name alone
        assert {node: sorted(trials) for node, trials in places(search).items()} == {gpus: ["00000", "00001", "00002"]}
