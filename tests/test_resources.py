"""What a trial gets, how many fit, and what is refused with what there is."""

import pytest

from tuner.errors import RequestError
from tuner.spec.experiment import Experiment
from tuner.spec.resources import resources_of


def figures(cpus, gpus, most=0, cluster=None, **others):
    experiment = Experiment(cpus_per_trial=cpus, gpus_per_trial=gpus, max_concurrent_trials=most, **others)
    resources = resources_of(experiment, [cluster or {"CPU": 8, "GPU": 2}])
    return resources.cpus, resources.gpus, resources.concurrent


@pytest.mark.parametrize(
    ("cpus", "gpus", "expected"),
    [
        ("auto", "auto", (1, 1, 2)),
        ("auto", 0, (1, 0, 8)),
        (2, 0, (2, 0, 4)),
        (0.5, 0, (0.5, 0, 16)),
        (1, 0.5, (1, 0.5, 4)),
        (1, 0.25, (1, 0.25, 8)),
        (1, 0.6, (1, 0.6, 2)),
        (1, 2, (1, 2, 1)),
    ],
)
def test_as_many_trials_as_fit_and_no_fraction_spans_two_gpus(cpus, gpus, expected):
    assert figures(cpus, gpus) == expected


@pytest.mark.parametrize(("most", "expected"), [(0, 8), (3, 3), (100, 8)])
def test_trials_at_a_time_are_bounded_by_what_was_asked_and_by_what_fits(most, expected):
    assert figures(1, 0, most)[2] == expected


@pytest.mark.parametrize(
    ("cpus", "gpus", "cluster", "message"),
    [
        (9, 0, {"CPU": 8}, "--cpus-per-trial 9: there are 8 CPUs on this machine; ask for 8 or less"),
        (2, 0, {"CPU": 1}, "--cpus-per-trial 2: there is 1 CPU on this machine; ask for 1 or less"),
        (1, 0.5, {"CPU": 1}, "--gpus-per-trial 0.5: there are 0 GPUs on this machine; leave it out"),
        (1, 2, {"CPU": 1, "GPU": 1}, "--gpus-per-trial 2: there is 1 GPU on this machine; ask for 1 or less"),
    ],
)
def test_more_than_there_is_is_refused_with_what_there_is(cpus, gpus, cluster, message):
    with pytest.raises(RequestError) as refused:
        figures(cpus, gpus, cluster=cluster)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("cpus", "gpus", "message"),
    [
        (3, 0, "--cpus-per-trial 3: no node of the cluster has more than 2 CPUs; ask for that or less; if"),
        (1, 2, "--gpus-per-trial 2: no node of the cluster has more than 1 GPU; ask for that or less; if"),
        (2, 1, "--gpus-per-trial 1: no node of the cluster has 2 CPUs beside it; ask for fewer of either; if"),
    ],
)
def test_a_trial_spans_no_two_nodes(cpus, gpus, message):
    experiment = Experiment(cpus_per_trial=cpus, gpus_per_trial=gpus, address="auto")
    with pytest.raises(RequestError) as refused:
        resources_of(experiment, [{"CPU": 2}, {"CPU": 2}, {"CPU": 1, "GPU": 1}])
    assert str(refused.value).startswith(message) and "--max-concurrent-trials N" in str(refused.value)


def test_as_many_fit_as_on_each_node_alone():
    nodes = [{"CPU": 3}, {"CPU": 5, "GPU": 1}, {}]
    assert resources_of(Experiment(cpus_per_trial=2, gpus_per_trial=0, address="auto"), nodes).concurrent == 3
    assert resources_of(Experiment(gpus_per_trial=0.5, address="auto"), nodes).concurrent == 2


def test_a_cluster_is_trusted_to_grow_to_the_trials_that_were_asked_for():
    experiment = Experiment(gpus_per_trial=1, max_concurrent_trials=20, address="auto")
    assert resources_of(experiment, [{"CPU": 2}]).concurrent == 20
    with pytest.raises(RequestError, match="there are 0 GPUs on this machine"):
        resources_of(Experiment(gpus_per_trial=1, max_concurrent_trials=20), [{"CPU": 2}])


def workers(num, cluster, **others):
    return resources_of(Experiment(strategy="ddp", workers_per_trial=num, **others), [cluster])


def test_a_trial_in_workers_has_a_bundle_each_and_none_for_its_own_process():
    assert workers(2, {"CPU": 2}).bundles() == [{}, {"CPU": 1}, {"CPU": 1}]
    assert workers(2, {"CPU": 8, "GPU": 4}).bundles() == [{}, {"CPU": 1, "GPU": 1}, {"CPU": 1, "GPU": 1}]
    assert workers(2, {"CPU": 8}, cpus_per_trial=4).bundles() == [{}, {"CPU": 2}, {"CPU": 2}]
    assert workers(2, {"CPU": 8, "GPU": 4}).concurrent == 2
    assert workers(1, {"CPU": 8}).bundles() == [{}, {"CPU": 1}]


@pytest.mark.parametrize(
    ("num", "cluster", "others", "message"),
    [
        (4, {"CPU": 2}, {}, "--workers-per-trial 4: 4 workers x 1 CPU per trial, there are 2; ask for fewer workers"),
        (2, {"CPU": 2, "GPU": 1}, {}, "2 workers x 1 GPU per trial, there is 1; ask for fewer workers, or for --gpus"),
        (2, {"CPU": 2}, {"cpus_per_trial": 4}, "2 workers x 2 CPU per trial, there are 2"),
    ],
)
def test_more_workers_than_there_is_room_for_are_refused(num, cluster, others, message):
    with pytest.raises(RequestError) as refused:
        workers(num, cluster, **others)
    assert message in str(refused.value)


def test_a_ddp_trial_may_be_on_several_nodes():
    nodes = [{"CPU": 3}, {"CPU": 2}, {"CPU": 1}, {}]
    spread = resources_of(Experiment(strategy="ddp", workers_per_trial=4, address="auto"), nodes)
    assert spread.concurrent == 1  # no node has four CPUs
    assert spread.fit([*nodes, {"CPU": 2}]) == 2 and spread.fit(nodes[:1]) == 0
    two_cpus_each = Experiment(strategy="ddp", workers_per_trial=2, cpus_per_trial=4, address="auto")
    assert resources_of(two_cpus_each, nodes).concurrent == 1


def test_a_worker_spans_no_two_nodes():
    nodes = [{"CPU": 3}, {"CPU": 3}]
    with pytest.raises(RequestError) as refused:
        resources_of(Experiment(strategy="ddp", workers_per_trial=3, cpus_per_trial=6, address="auto"), nodes)
    message = "each of the 3 workers of a trial needs 2 CPU on one node; only 2 fit; ask for fewer workers, or for less"
    assert message in str(refused.value) and "--max-concurrent-trials N" in str(refused.value)


@pytest.mark.parametrize(("gpus", "expected"), [(0, 0), (1, 1), (2, 2), (8, 2)])
def test_strategies_of_one_process_take_two_gpus_where_there_are_two(gpus, expected):
    for strategy in ("dp", "model", "pipeline"):
        assert resources_of(Experiment(strategy=strategy), [{"CPU": 8, "GPU": gpus}]).gpus == expected
