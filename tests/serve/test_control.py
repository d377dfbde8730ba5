"""Starting, stopping and resuming by the API: what is refused, what waits, what a restart finds again."""

import dataclasses
import os
import re
import shutil
import time
import tomllib
from pathlib import Path

import pytest

from tests.serve.conftest import ended, serving
from tuner.errors import RequestError
from tuner.record.saved_experiment import save_experiment
from tuner.record.storage.lock import only_driver
from tuner.serve.access.state import state_folder
from tuner.serve.client import Client, ServiceError
from tuner.serve.jobs import ray_jobs
from tuner.serve.jobs.local_jobs import JobState
from tuner.serve.jobs.requests import SETTABLE
from tuner.serve.jobs.searches import Search, Searches, startable
from tuner.spec.experiment import Experiment, Options
from tuner.spec.spaces import find_space, list_spaces

ALL = "/api/experiments"


def jobs(service):
    """The names of the searches that were submitted, in that order."""
    return [job.partition("-")[0] for job in service.jobs.submitted]


def state(service, name):
    row = service.owner.get(f"{ALL}/{name}").json()
    return row["state"], row["actions"]


def test_a_search_is_queued_then_submitted_as_the_command_line_would_be(service):
    row = service.start(name="a", num_samples=4, searcher="grid", grace_period=2)
    assert (row["state"], row["actions"], row["num_samples"], row["max_epochs"]) == ("queued", ["stop"], 4, 27)
    assert (row["grace_period"], row["reduction_factor"]) == (2, 3)
    assert service.searches.step()
    (arguments,) = service.jobs.submitted.values()
    wanted = ["--num-samples=4", "--searcher=grid", "--grace-period=2", "--name=a"]
    wanted += [f"--results={service.results}", "--wandb=disabled", "--data-dir="]
    assert arguments == ["--space=quadratic", *wanted]
    assert state(service, "a") == ("starting", ["stop"])
    service.begin("a").close()
    assert state(service, "a") == ("running", ["stop"])


def test_the_pair_of_a_request_that_names_none_is_chosen_as_by_the_command(service):
    first, second = service.start()["name"], service.start()["name"]
    assert first.startswith("quadratic-") and first != second
    options = service.searches.get(first).options
    assert (options["searcher"], options["scheduler"], options["reduction_factor"]) == ("random", "asha", 3)
    properties = service.anyone.get("/api/openapi.json").json()["components"]["schemas"]["Start"]["properties"]
    assert {properties[name]["anyOf"][0]["enum"][0] for name in ("searcher", "scheduler")} == {"auto"}


def test_a_wrong_request_is_refused_in_the_command_lines_words(service):
    cases = [
        ({"space": "quadratik"}, "did you mean 'quadratic'?"),
        ({"space": "/etc/passwd.py"}, "must be one of cifar, "),
        ({"num_samples": 0}, "--num-samples 0: must be 1 or more"),
        ({"grace_period": 99}, "--grace-period 99 is above --max-epochs"),
        ({"searcher": "bohb", "scheduler": "asha"}, "--searcher bohb does not work with --scheduler asha"),
        ({"searcher": "magic"}, "searcher magic: must be 'auto', 'random'"),
        ({"num_samples": "10"}, "num_samples 10: must be a valid integer"),
        ({"time_budget": "soon"}, "--time-budget soon"),
        ({"cpus_per_trial": 64}, "--cpus-per-trial 64"),
        ({"name": "../up"}, "letters, digits"),
        ({"sampels": 3}, "sampels: is unknown here; leave it out"),
        ({"metric": "x" * 201}, ": must have at most 200 characters"),
    ]
    for asked, says in cases:
        assert says in service.start(422, **asked)["error"]
    assert not service.searches.all()


def test_without_rays_dashboard_the_refusal_names_the_extra_that_brings_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None if module == "aiohttp" else module)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    said = re.search(r"\(aiohttp missing\): begin .* `uv run .* --extra (\w+)`, or without uv: pip", ray_jobs.missing())
    assert any(each.startswith("ray[default]") for each in project["optional-dependencies"][said[1]])


def test_a_cluster_that_does_not_answer_is_said_in_one_line():
    with pytest.raises(RequestError, match="^the cluster of --address http://127.0.0.1:1 could not list its nodes"):
        ray_jobs.RayJobs("http://127.0.0.1:1").nodes()


def test_every_option_is_withheld_or_reaches_the_command_line(service):
    withheld = {"results", "data_dir", "address", "wandb", "wandb_project"}
    withheld |= {"point", "stop", "constraint", "start_from", "prior", "unchecked"}
    assert {field.name for field in dataclasses.fields(Options)} - {"space", *SETTABLE} == withheld
    chosen = {"num_samples": 3, "max_epochs": 8, "grace_period": 2, "reduction_factor": 3.0, "searcher": "grid",
             "perturbation_interval": 3, "brackets": 2,
             "scheduler": "asha-promotion", "metric": "loss", "mode": "max", "cpus_per_trial": 1, "gpus_per_trial": 0.0,
             "workers_per_trial": 1, "strategy": "single", "precision": "fp32", "on_oom": "fail", "seed": 7,
             "max_concurrent_trials": 1, "time_budget": "30m", "gpu_hours": 0.0, "cpu_hours": 8.0,
             "epoch_budget": 100, "max_failures": 1, "priority": -3, "keep_checkpoints": 1,
             "confirm": 2, "confirm_seeds": 4, "prune_by": "cost", "prune_mode": "max",
             "trial_timeout": "5m", "name": "all", "tensorboard": True}  # fmt: skip
    assert set(chosen) == set(SETTABLE), "say here what a new option is given"
    service.start(**chosen)
    options = service.searches.get("all").options
    assert {name: options[name] for name in SETTABLE} == chosen


@pytest.mark.parametrize(
    "name", ["quadratic", *(pytest.param(each, marks=pytest.mark.slow) for each in ("cifar", "resnet50_pipeline"))]
)
def test_the_form_shows_the_defaults_that_a_search_gets(service, name):
    """They are read from the space's text; a search gets them from the imported space."""
    shown = {each["name"]: each["defaults"] for each in service.anyone.get("/api/spaces").json()["spaces"]}
    assert list(shown) == list(list_spaces())
    whole = vars(find_space(name).options)
    assert shown[name] == {each: whole[each] for each in SETTABLE}


def test_what_waits_is_in_the_list_and_says_for_what_and_since_when(service):
    service.start(name="a")
    assert service.owner.get(f"{ALL}/a/trials").json() == {"total": 0, "trials": [], "left_out": 0}
    assert service.owner.get(f"{ALL}/a/figures").json() == {}
    (row,) = service.owner.get(ALL).json()["experiments"]
    assert (row["name"], row["state"], row["message"]) == ("a", "queued", "waiting for free resources")
    assert row["waits_for"] == row["message"] and row["waits_since"] > 1e9
    service.jobs.down = "the cluster is away"
    with pytest.raises(RequestError):
        service.searches.step()
    assert service.owner.get(f"{ALL}/a").json()["waits_for"] == "the cluster is away"
    service.jobs.down = ""
    service.searches.step()
    row = service.reopened().owner.get(f"{ALL}/a").json()
    assert (row["state"], row["waits_for"]) == ("starting", "waiting for the search to load its space and data")
    service.begin("a").close()
    row = service.owner.get(f"{ALL}/a").json()
    assert (row["state"], row["waits_for"], row["waits_since"]) == ("running", "", None)


def test_a_queued_search_says_what_it_will_train_and_gives_no_advice(service):
    service.start(name="a", num_samples=4, max_epochs=9, confirm=2, confirm_seeds=3)
    for row in (service.owner.get(f"{ALL}/a").json(), *service.owner.get(ALL).json()["experiments"]):
        assert (row["ended"], row["asked"], row["length"], row["epochs"]) == (0, 4 + 2 * 3, 9, 0)
        assert (row["resume"], row["rate"], row["left_s"]) == ("", None, None)
    assert service.owner.get(f"{ALL}/a/changes").json()["verdict"]["steps"] == []
    ended(service, "b")  # one that is to be extended gives the advice again that it gave, once that has ended
    assert service.owner.get(f"{ALL}/b/changes").json()["verdict"]["steps"]
    assert service.owner.post(f"{ALL}/b/resume", json={"num_samples": 40}).status_code == 202
    loaded = service.owner.get(f"{ALL}/b/changes").json()
    assert (loaded["summary"]["state"], loaded["summary"]["resume"], loaded["verdict"]["steps"]) == ("queued", "", [])


def test_a_search_that_was_stopped_before_it_had_a_folder_leaves_nothing(service):
    """Nor does one whose folder somebody deleted; one that failed says why."""
    for name in ("a", "b", "c"):
        service.start(name=name)
    for name in ("a", "b", "c"):
        service.searches.step()
        if name != "a":
            service.begin(name).close()
        service.owner.post(f"{ALL}/{name}/stop")
        service.end_jobs("stopped")
    assert service.owner.get(f"{ALL}/a").status_code == service.owner.post(f"{ALL}/a/resume").status_code == 404
    assert [search.name for search in service.searches.all()] == ["b", "c"]
    shutil.rmtree(service.results / "b")
    assert service.owner.get(f"{ALL}/b").status_code == 404
    again = service.reopened()
    assert [row["name"] for row in again.owner.get(ALL).json()["experiments"]] == ["c"]
    assert state(again, "c") == ("interrupted", ["resume"])


def test_searches_wait_for_room_in_order_and_small_ones_run_side_by_side(service):
    for name, most in {"whole": 0, "one": 1, "two": 1, "three": 1}.items():
        service.start(name=name, max_concurrent_trials=most)
    service.searches.step()
    assert jobs(service) == ["whole"]
    service.end_jobs("ended", 0)
    assert jobs(service) == ["whole", "one", "two"]
    assert state(service, "three") == ("queued", ["stop"])


def test_the_highest_priority_goes_first_and_on_this_machine_waits_for_what_runs(service):
    for name, priority in {"low": -1, "normal": 0, "other": 0, "urgent": 5}.items():
        service.start(name=name, priority=priority)
    service.searches.step()
    assert jobs(service) == ["urgent"]
    service.end_jobs("ended", 0)
    service.start(name="urgent2", priority=5)
    service.searches.step()
    assert jobs(service) == ["urgent", "normal"]
    service.end_jobs("ended", 0)
    assert jobs(service) == ["urgent", "normal", "urgent2"]


def test_on_a_cluster_it_goes_past_lower_ones_that_run(service):
    service.jobs.address = "http://head:8265"
    service.start(name="normal")
    service.searches.step()
    service.start(name="low", priority=-1)
    service.start(name="urgent", priority=5)  # those of a lower priority give their places up
    service.searches.step()
    assert jobs(service) == ["normal", "urgent"]


SEARCH = {"space": "quadratic", "results": "r"}


@pytest.mark.parametrize(
    ("options", "nodes", "says"),
    [
        ({"gpus_per_trial": 3.0}, [{"CPU": 4, "GPU": 2}] * 2, "no node of the cluster has more than 2 GPUs"),
        ({"strategy": "ddp", "workers_per_trial": 4}, [{"CPU": 2}] * 2, "starts"),
        ({}, [{}], "more than 0 CPUs; .* if an autoscaler can add such nodes, give --max-concurrent-trials N"),
        ({"gpus_per_trial": 1.0, "max_concurrent_trials": 3}, [{}], "starts"),  # and asks an autoscaler for them
    ],
)
def test_a_trial_of_a_cluster_lies_on_one_node(options, nodes, says):
    search = Search("a", {**SEARCH, **options}, [], 0.0)
    ((chosen, problem),) = startable([search], [], nodes, "http://head:8265")
    assert chosen == search and re.search(says, problem or "starts")


def test_a_search_for_a_cluster_is_checked_against_its_nodes_and_not_this_machine(service):
    service.jobs.address, service.jobs.nodes = "http://head:8265", lambda: [{}, {"CPU": 128, "GPU": 8}]
    service.start(name="large", cpus_per_trial=100, gpus_per_trial=8)
    service.start(name="larger", cpus_per_trial=200)
    service.searches.step()
    assert jobs(service) == ["large"]
    assert "no node of the cluster has more than 128 CPUs" in service.searches.get("larger").message


@pytest.mark.parametrize(
    ("gpus", "most", "node", "started"),
    [
        (0.0, 1, {"CPU": 4}, 4),
        (0.0, 2, {"CPU": 4}, 2),
        (0.0, 3, {"CPU": 4}, 1),
        (0.0, 0, {"CPU": 4}, 1),  # takes all
        (1.0, 1, {"CPU": 8, "GPU": 3}, 3),
        (0.4, 3, {"CPU": 20, "GPU": 5}, 2),  # two trials of each share a GPU, the third has one alone
    ],
)
def test_searches_on_this_machine_run_side_by_side_while_each_has_its_own_cpus_and_gpus(gpus, most, node, started):
    options = {**SEARCH, "gpus_per_trial": gpus, "max_concurrent_trials": most}
    searches = [Search(name, options, [], 0.0) for name in "abcde"]
    assert [search for search, _ in startable(searches, [], [node])] == searches[:started]
    assert startable(searches[started:], searches[:started], [node]) == []


def test_a_search_waits_for_room_among_all_nodes():
    nodes = [{"CPU": 2}] * 3
    capped = [Search(name, {**SEARCH, "max_concurrent_trials": 2}, [], 0.0) for name in "abcd"]

    def chosen(waiting, running, nodes=nodes):
        return [search for search, _ in startable(waiting, running, nodes, "http://head:8265")]

    assert chosen(capped, []) == capped[:3] and chosen(capped[2:], capped[:2]) == capped[2:3]
    assert chosen(capped[:1], capped[1:2], [{"CPU": 1}]) == []


def test_the_queue_survives_a_restart_and_one_service_at_a_time_starts_searches_of_a_folder(service):
    with pytest.raises(RequestError, match="another tuner.serve"):
        Searches(service.results, state_folder(service.results), service.jobs, [])
    service.start(name="a")
    service.searches.step()
    service.start(name="b")
    again = service.reopened()
    assert state(again, "a")[0] == "starting" and state(again, "b")[0] == "queued"
    service.jobs.job_states = {job: JobState("ended", 0) for job in service.jobs.job_states}
    again.searches.step()
    assert len(service.jobs.submitted) == 2 and state(again, "b")[0] == "starting"


def test_the_thread_outlives_whatever_goes_wrong(service, monkeypatch, capsys):
    monkeypatch.setattr("tuner.serve.jobs.searches.AFTER_ERROR_S", 0.01)
    work = service.jobs.submit
    monkeypatch.setattr(service.jobs, "submit", lambda *arguments: 1 / 0)
    service.start(name="a")
    service.searches.open()
    until = time.monotonic() + 60
    told = False
    while not told and time.monotonic() < until:  # the message is gone while the thread tries again
        told = "ZeroDivisionError" in service.owner.get(f"{ALL}/a").json()["message"]
    assert told
    monkeypatch.setattr(service.jobs, "submit", work)
    while not service.jobs.submitted and time.monotonic() < until:
        time.sleep(0.02)
    assert service.jobs.submitted


@pytest.mark.parametrize(
    "job_state, begun, wanted",
    [
        (JobState("ended", 2, "tuner: error: no data"), False, ("failed", "no data", [])),
        (JobState("ended", -9), True, ("failed", "ended with exit code -9", ["resume"])),
        (JobState("lost"), True, ("interrupted", "", ["resume"])),  # it ended while no service ran
        (JobState("lost"), False, ("starting", "", ["stop"])),  # it never began: it is started again
        (JobState("stopped"), True, ("interrupted", "", ["resume"])),
    ],
)
def test_a_job_that_ended_without_its_journal_knowing_is_shown_as_it_is(service, job_state, begun, wanted):
    service.start(name="a")
    service.searches.step()
    if begun:
        service.begin("a").close()
        with only_driver(service.results / "a"):
            pass  # its lock is free, and tells that it was here
    (job,) = service.jobs.submitted
    service.jobs.job_states[job] = job_state
    service.searches.step()
    service.jobs.job_states[job] = JobState("active")
    service.searches.step()
    row = service.owner.get(f"{ALL}/a").json()
    assert (row["state"], row["message"], row["actions"]) == wanted


def test_a_search_whose_cluster_is_gone_says_so(service):
    service.jobs.address = "http://head:8265"
    service.start(name="a")
    service.searches.step()
    service.begin("a").close()
    service.jobs.job_states.clear()
    service.searches.step()
    row = service.owner.get(f"{ALL}/a").json()
    assert (row["state"], row["message"]) == ("failed", "the cluster that it ran on is gone; resume it")


def test_stop_takes_a_waiting_search_from_the_queue_and_signals_the_job_of_another(service):
    service.start(name="a")
    assert service.owner.post(f"{ALL}/a/stop").json()["actions"] == []
    assert service.owner.get(f"{ALL}/a").status_code == 404 and not service.searches.step()
    service.start(name="a")
    service.searches.step()
    service.begin("a").close()
    assert service.owner.post(f"{ALL}/a/stop").json()["state"] == "stopping"
    service.searches.step()
    assert service.jobs.stopped == list(service.jobs.submitted) and state(service, "a") == ("stopping", [])
    service = service.reopened()
    service.searches.step()
    assert len(service.jobs.stopped) == 1  # a second signal would end the search at once
    service.end_jobs("stopped")
    assert state(service, "a") == ("interrupted", ["resume"])


def test_what_cannot_be_extended_says_why(service):
    ended(service)
    row = service.owner.get(f"{ALL}/demo").json()
    assert (row["not_resumed"], row["same_epochs"]) == ("", "")
    folder = ended(service, "own", scheduler="hyperband")
    experiment = Experiment(space="my/space.py", name="own", scheduler="hyperband", max_epochs=27)
    save_experiment(experiment, folder, {"created": 1000.0, "space": {"params": {}}})
    row = service.owner.get(f"{ALL}/own").json()
    assert "the service resumes only searches over" in row["not_resumed"]
    assert row["same_epochs"] == "the brackets of --scheduler hyperband were built for 27 epochs"
    (service.results / "ray").mkdir()
    (service.results / "ray" / "tuner.pkl").write_bytes(b"")
    assert service.owner.get(f"{ALL}/ray").json()["not_resumed"].startswith("plain Ray Tune wrote this folder")
    refused = service.owner.post(f"{ALL}/own/resume", json={"max_epochs": 54})
    assert refused.status_code == 422 and row["not_resumed"] in refused.json()["error"]


def test_a_name_is_taken_once_and_latest_is_none(service):
    """`--resume=latest` goes on with another one."""
    for name in ("latest", "newest"):
        service.begin(name).close()
    answer = service.owner.post(f"{ALL}/latest/resume")
    assert answer.status_code == 422 and "rename the folder latest" in answer.json()["error"]
    assert "give another name" in service.start(422, name="latest")["error"]
    assert "already exists" in service.start(422, name="newest")["error"] and not service.searches.all()
    service.start(name="a")
    assert "queued or running" in service.start(409, name="a")["error"]


def test_what_the_service_cannot_stop_or_resume_says_why(service):
    def refused(action):
        answer = service.owner.post(f"{ALL}/a/{action}")
        assert answer.status_code == 409 and not service.searches.all()
        return answer.json()["error"]

    journal = service.begin("a")
    assert "was not started by this service" in refused("stop")
    with only_driver(service.results / "a"):
        assert f"a is run by process {os.getpid()}" in refused("resume")
    journal.write("experiment_finished", state="failed", reason="--metric los: no report has it", refused=True)
    assert state(service, "a") == ("failed", [])
    assert refused("resume") == "a was refused: the search would be refused again; start a new one"
    service.begin("b").write("experiment_finished", state="interrupted", reason="")
    for asked, status in (({"num_samples": 2}, 422), ({"seed": 3}, 422), ({"num_samples": None}, 202)):
        assert service.owner.post(f"{ALL}/b/resume", json=asked).status_code == status


def test_the_client_starts_reads_stops_waits_and_raises_in_the_services_words(service):
    with serving(service.app) as served:
        client = Client(served.url, service.token)
        with pytest.raises(ServiceError, match="no experiment of that name") as caught:
            client.get("nothing")
        assert caught.value.status == 404
        with pytest.raises(ServiceError, match="must be one of"):
            client.start("nothing")
        with pytest.raises(ValueError, match="give the service's address"):
            Client("box:8800")
        assert client.start("quadratic", name="a", num_samples=3)["state"] == "queued"
        service.searches.step()
        journal = service.begin("a", num_samples=3)
        journal.write("trial_started", "0", config={"x": 1}, resources={}, node="n")
        assert client.get("a")["state"] == "running" and [row["trial"] for row in client.trials("a")] == ["0"]
        events = client.events("a")
        assert [next(events)["event"] for _ in range(2)] == ["experiment_started", "trial_started"]
        events.close()
        assert client.stop("a")["state"] == "stopping"
        with pytest.raises(TimeoutError, match="a is stopping"):
            client.wait("a", timeout_s=0)
        service.end_jobs("stopped")
        assert client.wait("a", 5)["state"] == "interrupted"
        assert client.resume("a", num_samples=5)["num_samples"] == 3 and client.experiments()[0]["state"] == "queued"
