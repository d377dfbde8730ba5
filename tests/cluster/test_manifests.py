"""The cluster's files hold what the tools that read them ask for: Ray's launcher, compose, Kubernetes, hadolint."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tuner import run
from tuner.serve import __main__ as serve
from tuner.serve.access.state import token_from_environment
from tuner.spec.resources import Resources, resources_of

ROOT = Path(__file__).parent.parent.parent
LAUNCHED = ["cluster.yaml", "docker/cluster-onprem.yaml", "docker/cluster-gcp.yaml"]


def text(path):
    return (ROOT / path).read_text()


@pytest.fixture
def launched(monkeypatch):
    """A cluster's file as `ray up` prepares it; without credentials, from the project's folder."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    monkeypatch.chdir(ROOT)

    def prepare(path):
        config = prepare_config(yaml.safe_load(text(path)))
        validate_config(config)
        return config

    return prepare


@pytest.mark.parametrize("path", LAUNCHED)
def test_rays_launcher_takes_it_only_ssh_listens_to_the_world_and_nothing_else_is_installed(launched, path):
    config = launched(path)
    assert config["cluster_name"] == "tuner"
    assert config["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    for local in config["file_mounts"].values():
        assert local.startswith("~") or (ROOT / local).exists()
    assert "--dashboard-host=127.0.0.1" in " ".join(config["head_start_ray_commands"])
    # Ray's defaults for AWS install a nightly wheel, and bind the dashboard to every address.
    commands = {*config["setup_commands"], *config["head_setup_commands"], *config["worker_setup_commands"]}
    assert len(commands) == 1 and commands.pop().startswith("bash ~/tuner/docker/setup.sh /storage")


@pytest.mark.parametrize("path", ["cluster.yaml", "docker/cluster-gcp.yaml"])
def test_workers_scale_from_zero_on_spot_and_the_head_is_on_demand(launched, path):
    kinds = launched(path)["available_node_types"]
    assert kinds["worker"]["min_workers"] == 0 < kinds["worker"]["max_workers"]
    worker, head = str(kinds["worker"]["node_config"]).lower(), str(kinds["head"]["node_config"]).lower()
    assert "'markettype': 'spot'" in worker or "'preemptible': true" in worker
    assert "spot" not in head and "preemptible" not in head


@pytest.fixture
def compose():
    """docker/compose.yaml; compose merges `<<` as YAML does."""
    return yaml.safe_load(text("docker/compose.yaml"))


def test_compose_takes_it_publishes_on_loopback_and_keeps_the_dashboards_state_where_no_node_can_write(compose):
    from compose_spec import PyCompose

    assert set(PyCompose.from_json(json.dumps(compose)).services) == {"head", "worker", "serve"}
    services = compose["services"]
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert service["healthcheck"]["test"][0] == "CMD"
    assert services["worker"]["deploy"]["replicas"] == 2
    assert [name for name, service in services.items() if "state:/state" in service["volumes"]] == ["serve"]
    assert "TUNER_STATE=/state" in text("docker/Dockerfile")


def test_composes_two_secrets_are_files_and_only_the_page_has_its_own(compose):
    files = {name: secret["file"] for name, secret in compose["secrets"].items()}
    assert all(re.fullmatch(rf"\$\{{TUNER_SECRETS:\?[^}}]+\}}/{name}", files[name]) for name in files)  # else: refused
    services = compose["services"]
    secrets = {"head": ["ray_token"], "worker": ["ray_token"], "serve": ["ray_token", "page_token"]}
    assert {name: service["secrets"] for name, service in services.items()} == secrets
    for service in services.values():
        assert service["environment"]["RAY_AUTH_TOKEN_PATH"] == "/run/secrets/ray_token"
        assert not {"RAY_AUTH_TOKEN", "TUNER_TOKEN"} & set(service["environment"])  # `docker inspect` prints these
    assert "?token=" not in text("docker/compose.yaml")  # a URL is kept in the browser's history


def test_composes_dashboard_is_started_as_its_command_line_wants(compose, tmp_path, monkeypatch):
    """By a shell, with stand-ins for the secret and Python; the token is in neither environment nor arguments."""
    service = compose["services"]["serve"]
    command = service["command"][-1].replace("$$", "$").replace("/storage", str(tmp_path / "storage"))
    secret = "a secret of the page, of 32 characters"
    (tmp_path / "token").write_text(f"{secret}\n")
    (tmp_path / "python").write_text('#!/bin/sh\nenv >&2\nprintf "%s|" "$@"\n')
    (tmp_path / "python").chmod(0o755)
    variables = {name: value.replace("/run/secrets/page_token", str(tmp_path / "token"))
             for name, value in service["environment"].items()}  # fmt: skip
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **variables}
    done = subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True, check=True)
    assert secret not in done.stdout + done.stderr
    _, module, *options = done.stdout.split("|")[:-1]
    args = serve.parse(options)
    assert module == "tuner.serve"
    assert (args.host, args.address) == ("0.0.0.0", "http://head:8265") and Path(args.results).is_dir()
    monkeypatch.delenv("TUNER_TOKEN", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert token_from_environment() == secret


def test_the_base_image_is_one_by_its_digest_and_the_dockerfile_is_clean():
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    done = subprocess.run([hadolint, "--no-color", ROOT / "docker" / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "", done.stdout
    assert re.search(r"^ARG BASE=python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}$", text("docker/Dockerfile"), re.M)


def yaml_documents(path):
    return list(yaml.safe_load_all(text(path)))


def test_kubernetes_takes_it():
    import kubernetes_validate

    claim, job = yaml_documents("docker/kuberay.yaml")
    kubernetes_validate.validate(claim, "1.31", strict=True)
    cluster = job["spec"]["rayClusterSpec"]
    assert f"ray=={cluster['rayVersion']}\n" in text("constraints.txt")
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **group["template"]}
        kubernetes_validate.validate(pod, "1.31", strict=True)


def test_kuberays_workers_come_from_none_with_the_searchs_trials():
    """By the code with which Ray's autoscaler reads KubeRay's clusters."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    job = yaml_documents("docker/kuberay.yaml")[1]["spec"]
    spec = job["rayClusterSpec"]
    config = _derive_autoscaling_config_from_ray_cr({"metadata": {"name": "c", "namespace": "n"}, "spec": spec})
    assert spec["enableInTreeAutoscaling"] and config["idle_timeout_minutes"] == 5
    kinds = config["available_node_types"]
    workers = [kinds[name] for name in kinds if name != config["head_node_type"]]
    assert kinds[config["head_node_type"]]["resources"]["CPU"] == 0
    assert [(kind["min_workers"], kind["max_workers"], kind["resources"]["GPU"]) for kind in workers] == [(0, 4, 1)]
    command = run.Command(**run.parse(job["entrypoint"].split()[3:]))
    assert (command.gpus_per_trial, command.max_concurrent_trials) == (1, 4)
    assert resources_of(command, [kinds[config["head_node_type"]]["resources"]]) == Resources(1, 1, 4)


@pytest.mark.parametrize("script", ["docker/setup.sh", "tests/cluster/ray_up.sh", "tests/cluster/build_image.sh"])
def test_a_script_parses(script):
    subprocess.run(["bash", "-n", ROOT / script], check=True)
