"""What a trial gets, how many fit, and what is refused with what there is."""

import pytest

from tuner.errors import RequestError
from tuner.spec.experiment import Experiment
from tuner.spec.resources import resources_of

HERE = {"CPU": 8, "GPU": 2}


def resources(*nodes, cpus="auto", gpus="auto", **others):
    experiment = Experiment(cpus_per_trial=cpus, gpus_per_trial=gpus, **others)
    return resources_of(experiment, nodes or [HERE])


def workers(num, *nodes, **others):
    return resources(*nodes, strategy="ddp", workers_per_trial=num, **others)


@pytest.mark.parametrize(
    ("cpus", "gpus", "expected", "most"),
    [
        ("auto", "auto", (1, 1, 2), 0),
        ("auto", 0, (1, 0, 8), 0),
        (2, 0, (2, 0, 4), 0),
        (0.5, 0, (0.5, 0, 16), 0),
        (1, 0.5, (1, 0.5, 4), 0),
        (1, 0.6, (1, 0.6, 2), 0),
        (1, 2, (1, 2, 1), 0),
        (1, 0, (1, 0, 3), 3),
        (1, 0, (1, 0, 8), 100),
    ],
)
def test_as_many_trials_as_fit_or_were_asked_for_and_no_fraction_spans_two_gpus(cpus, gpus, expected, most):
    found = resources(cpus=cpus, gpus=gpus, max_concurrent_trials=most)
    assert (found.cpus, found.gpus, found.concurrent) == expected


def test_a_budget_of_gpu_hours_needs_trials_with_a_gpu():
    assert resources(gpu_hours=1.5).gpus == 1
    for others in ({"gpus": 0}, {"max_concurrent_trials": 2, "address": "auto"}):
        with pytest.raises(RequestError, match=r"--gpu-hours 1.5: a trial uses no GPU here.*\(and with --resume, --g"):
            resources({"CPU": 8}, gpu_hours=1.5, **others)


NODES = [{"CPU": 2}, {"CPU": 2}, {"CPU": 1, "GPU": 1}]
CLUSTER = {"address": "auto"}
DDP = {"strategy": "ddp", "workers_per_trial": 2}
WORKERS_4, SPREAD = DDP | {"workers_per_trial": 4}, CLUSTER | DDP | {"workers_per_trial": 3, "cpus": 6}
NO_NODE = "each of the 3 workers of a trial needs 2 CPU on one node; only 2 fit; ask for fewer"


@pytest.mark.parametrize(
    ("options", "nodes", "message"),
    [
        ({"cpus": 9, "gpus": 0}, [{"CPU": 8}], "--cpus-per-trial 9: there are 8 CPUs on this machine; ask for 8"),
        ({"gpus": 0.5}, [{"CPU": 1}], "--gpus-per-trial 0.5: there are 0 GPUs on this machine; leave it out"),
        ({"gpus": 2}, [{"CPU": 1, "GPU": 1}], "--gpus-per-trial 2: there is 1 GPU on this machine; ask for 1 or less"),
        (CLUSTER | {"cpus": 3}, NODES, "--cpus-per-trial 3: no node of the cluster has more than 2 CPUs; ask for that"),
        (CLUSTER | {"gpus": 2}, NODES, "--gpus-per-trial 2: no node of the cluster has more than 1 GPU; ask for that"),
        (CLUSTER | {"cpus": 2, "gpus": 1}, NODES, "--gpus-per-trial 1: no node with that many GPUs has 2 CPUs;"),
        (WORKERS_4, [{"CPU": 2}], "4 workers x 1 CPU per trial, there are 2; ask for fewer workers"),
        (DDP, [{"CPU": 2, "GPU": 1}], "2 workers x 1 GPU per trial, there is 1; ask for fewer workers, or for --gpus"),
        (DDP | {"cpus": 4}, [{"CPU": 2}], "2 workers x 2 CPU per trial, there are 2"),
        (SPREAD, [{"CPU": 3}] * 2, NO_NODE),
    ],
)
def test_more_than_there_is_is_refused_with_what_there_is(options, nodes, message):
    with pytest.raises(RequestError) as refused:
        resources(*nodes, **options)
    assert message in str(refused.value)
    assert ("--max-concurrent-trials N" in str(refused.value)) == ("address" in options)


def test_as_many_fit_as_on_each_node_alone_and_a_cluster_is_trusted_to_grow_to_what_was_asked_for():
    nodes = [{"CPU": 3}, {"CPU": 5, "GPU": 1}, {}]
    assert resources(*nodes, cpus=2, gpus=0, **CLUSTER).concurrent == 3
    assert resources(*nodes, gpus=0.5, **CLUSTER).concurrent == 2
    assert resources({"CPU": 2}, gpus=1, max_concurrent_trials=20, **CLUSTER).concurrent == 20
    with pytest.raises(RequestError, match="there are 0 GPUs on this machine"):
        resources({"CPU": 2}, gpus=1, max_concurrent_trials=20)


def test_a_trial_in_workers_has_a_bundle_each_and_none_for_its_own_process():
    four = {"CPU": 8, "GPU": 4}
    assert workers(2, {"CPU": 2}).bundles() == [{}, {"CPU": 1}, {"CPU": 1}]
    assert workers(2, four).bundles() == [{}, {"CPU": 1, "GPU": 1}, {"CPU": 1, "GPU": 1}]
    assert workers(2, {"CPU": 8}, cpus=4).bundles() == [{}, {"CPU": 2}, {"CPU": 2}]
    assert workers(2, four).concurrent == 2 and workers(1, {"CPU": 8}).bundles() == [{}, {"CPU": 1}]


def test_a_ddp_trial_may_be_on_several_nodes():
    nodes = [{"CPU": 3}, {"CPU": 2}, {"CPU": 1}, {}]
    spread = workers(4, *nodes, **CLUSTER)
    assert spread.concurrent == 1  # no node has four CPUs
    assert spread.fit([*nodes, {"CPU": 2}]) == 2 and spread.fit(nodes[:1]) == 0
    assert workers(2, *nodes, cpus=4, **CLUSTER).concurrent == 1


@pytest.mark.parametrize(("gpus", "expected"), [(0, 0), (1, 1), (2, 2), (8, 2)])
def test_strategies_of_one_process_take_two_gpus_where_there_are_two(gpus, expected):
    for strategy in ("dp", "model", "pipeline"):
        assert resources({"CPU": 8, "GPU": gpus}, strategy=strategy).gpus == expected
