"""The real command on machines with pretended GPUs: what each trial sees, and failures that stay with their trial."""

from collections import defaultdict

import pytest
from fastapi.testclient import TestClient
from journals import read
from machines import ROOT, Gpu
from raylets import nodes
from tiers import further

from tuner.record.results import load
from tuner.serve.app import create_app

pytestmark = pytest.mark.slow  # each starts a Ray of its own

SPACES = ROOT / "tests" / "spaces"


def search(machine, space, *options):
    where = ["--results", machine.folder / "r", "--name", "test", "--wandb", "disabled"]
    done = machine.python("-m", "tuner.run", "--space", SPACES / space, *where, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def trials_of(machine):
    return {trial.id: trial for trial in load(machine.folder / "r" / "test").trials}


def seen(trial):
    """The indices of the GPUs that a trial of `functions.py:visible` saw."""
    (code,) = {int(report.metrics["visible"]) for report in trial.reports}
    return [index for index in range(8) if code >> index & 1]


def most_at_once(trials, share):
    """For each node and device, the largest sum of the shares that trials held of it at one time."""
    spans = [(t.reports[0].metrics, t.reports[-1].metrics, seen(t)) for t in trials.values()]
    most = defaultdict(float)
    for first, _, _ in spans:
        held = defaultdict(float)
        for other, last, ids in spans:
            if other["begun"] <= first["begun"] < last["ended"]:
                for index in ids:
                    held[int(other["on_node"]), index] += min(1.0, share)
        for place, sum_of_shares in held.items():
            most[place] = max(most[place], sum_of_shares)
    return dict(most)


@pytest.mark.parametrize(
    ("num", "gpus", "num_seen", "concurrent"),
    [(2, "0.5", 1, 4), (4, "auto", 1, 4), *further([(4, "2", 2, 2)])],
)
def test_each_worker_sees_its_own_gpus_and_no_gpu_is_given_twice(machine, num, gpus, num_seen, concurrent):
    here = machine(num)
    options = ["--gpus-per-trial", gpus, "--cpus-per-trial", "0.1", "--num-samples", str(2 * concurrent)]
    done = search(here, "functions.py:visible", *options, "--scheduler", "fifo")
    trials, share = trials_of(here), float(gpus) if gpus != "auto" else 1.0
    assert f"{concurrent} trials at once" in done.stdout
    assert {len(seen(trial)) for trial in trials.values()} == {num_seen}
    assert all(max(seen(trial)) < num for trial in trials.values())
    most = most_at_once(trials, share)
    assert max(most.values()) <= 1.0 + 1e-9
    if share < 1:  # fractions share a device
        assert max(most.values()) > share


def test_on_a_mixed_cluster_no_gpu_is_given_twice(machine):
    here = machine(4)
    (here.folder / "token").write_text("0123456789abcdef0123456789abcdef")
    here.more = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(here.folder / "token")}
    options = ["--gpus-per-trial", "1", "--cpus-per-trial", "0.1", "--num-samples", "10", "--scheduler", "fifo"]
    with nodes(here.env, here.folder, *({"num_cpus": 1, "num_gpus": number} for number in (0, 1, 4))) as address:
        search(here, "functions.py:visible", "--address", address, *options)
    trials = trials_of(here)
    assert {trial.status for trial in trials.values()} == {"completed"} and len(trials) == 10
    assert {len(seen(trial)) for trial in trials.values()} == {1}
    assert max(most_at_once(trials, 1).values()) <= 1.0
    assert len({trial.reports[0].metrics["on_node"] for trial in trials.values()}) == 2


def test_a_trial_without_a_gpu_sees_none(machine):
    here = machine(2)
    search(here, "functions.py:visible", "--gpus-per-trial", "0", "--num-samples", "2")
    assert [seen(trial) for trial in trials_of(here).values()] == [[], []]


def test_failures_stay_with_their_trial(machine, tmp_path):
    cases = ["fits", "beyond", "shrinks", "fits", "fits"]
    space = tmp_path / "cases.py"
    text, usual = (SPACES / "on_gpus.py").read_text(), 'CASES = ["fits"] * 4'
    assert usual in text
    space.write_text(text.replace(usual, f"CASES = {cases}"))
    here = machine(1)
    options = ["--scheduler", "fifo", "--searcher", "grid", "--gpus-per-trial", "0.5", "--cpus-per-trial", "0.5"]
    search(here, space, *options, "--no-preflight")
    by_case = defaultdict(list)
    for trial in trials_of(here).values():
        by_case[cases[trial.config["number"]]].append(trial)
    failed = defaultdict(list)
    for event in read(here.folder / "r" / "test" / "journal.jsonl"):
        if event["event"] == "trial_failed":
            failed[event["trial"]].append((event["kind"], event["will_retry"]))
    (beyond,), (shrinks,) = by_case["beyond"], by_case["shrinks"]
    assert failed == {beyond.id: [("oom", False)]} and beyond.status == "failed"
    assert [trial.status for trial in by_case["fits"]] == ["completed"] * 3 and shrinks.status == "completed"
    assert shrinks.reports[-1].metrics["micro_batch_size"] < 1000
    said = here.log
    for pid in {line["pid"] for line in said}:
        first = [line for line in said if line["pid"] == pid][0]
        assert (first["what"], first["share"]) == ("limit", 0.5)


def test_each_worker_of_a_ddp_trial_has_its_own_device_also_in_the_command_that_trains_it_again(machine):
    here = machine(2)
    options = ["--searcher", "grid", "--scheduler", "fifo", "--strategy", "ddp", "--workers-per-trial", "2"]
    search(here, "on_gpus.py", *options, "--gpus-per-trial", "2", "--max-epochs", "2")
    trials = trials_of(here)
    assert {trial.status for trial in trials.values()} == {"completed"}
    assert sorted(device for _, device in firsts(here.log)) == ["0"] * len(trials) + ["1"] * len(trials)
    assert {tuple(line["visible"]) for line in here.log} == {("0",), ("1",)}
    assert {line["what"] for line in here.log} == {"use", "first"}  # a whole device has no limit
    num_lines = len(here.log)
    done = here.python("-m", "tuner.train", here.folder / "r" / "test" / "best" / "config.json")
    assert done.returncode == 0, done.stdout + done.stderr
    again = firsts(here.log[num_lines:])
    assert sorted(device for _, device in again) == ["0", "1"] and len(dict(again)) == 2


def firsts(log):
    """Each process with each device that it has used."""
    return {(line["pid"], line["device"]) for line in log if line["what"] == "first"}


def test_the_page_and_the_report_have_the_figures_of_the_gpu(machine):
    here = machine([Gpu(percent=83)])
    search(here, "tiny.py", "--gpus-per-trial", "0.5", "--num-samples", "4", "--cpus-per-trial", "0.5")
    metrics = [report.metrics for trial in trials_of(here).values() for report in trial.reports]
    assert {each["gpu_percent"] for each in metrics} == {83} and all(each["gpu_memory_bytes"] for each in metrics)
    page = TestClient(create_app(here.folder / "r"), base_url="http://127.0.0.1:8800")
    shown = page.get("/api/experiments/test/figures").text
    assert "gpu_memory_peak_bytes" in shown  # the page leaves out a column whose values are all the same
    assert all(row["resources"]["GPU"] == 0.5 for row in page.get("/api/experiments/test/trials").json()["trials"])
    assert "gpu_memory_peak_bytes" in (here.folder / "r" / "test" / "report.html").read_text()
