"""Training on pretended GPUs in this process: placement, shares, memory that runs out."""

from pathlib import Path

import pretended
import pytest
import torch
from machines import training
from pretended import MIB

from tuner.engine.controller.failures import kind_of
from tuner.record.report_keys import USAGE
from tuner.training.devices import nvml
from tuner.training.devices.accelerator import Accelerator, release
from tuner.training.devices.usage import NEEDED, Usage


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """Two devices of 1 MiB in the seam of this process."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    threads = torch.get_num_threads()
    with pretended.installed(pretended.make(tmp_path / "gpus", 2, MIB)) as here:
        yield here
    torch.set_num_threads(threads)


def figures(report):
    return {name: value for name, value in report.items() if not name.endswith("_s")}


def what(gpus):
    return [line["what"] for line in pretended.log_of(gpus.folder)]


PLACES = {"single": "0000", "dp": "0000", "model": "0011", "pipeline": "0011"}


@pytest.mark.parametrize("strategy", PLACES)
def test_each_strategy_puts_each_part_on_its_own_device_and_learns_as_on_a_cpu(gpus, strategy):
    on_cpu, on_gpus = training(strategy, device="cpu"), training(strategy)
    for _ in range(2):
        assert figures(on_gpus.run_epoch()) == pytest.approx(figures(on_cpu.run_epoch()), rel=1e-4)
    assert [str(parameter.device) for parameter in on_gpus.model.parameters()] == [
        f"cuda:{index}" for index in PLACES[strategy]
    ]
    used = {line["device"] for line in pretended.log_of(gpus.folder) if line["what"] == "first"}
    assert used == ({"0"} if strategy == "single" else {"0", "1"})
    restored = training(strategy)
    restored.load_state_dict(on_gpus.state_dict())
    assert figures(restored.run_epoch()) == figures(on_gpus.run_epoch())


def test_a_trial_beyond_its_share_gets_its_own_error_and_the_device_works_on(gpus):
    gpus.limit(0.25)
    fits = training()
    assert fits.run_epoch()["micro_batch_size"] == 16
    with pytest.raises(torch.OutOfMemoryError, match="0.25 MiB allowed") as refused:
        training(width=10_000)
    assert kind_of(refused.value)[0] == "oom" and gpus.reserved[0] <= MIB // 4
    fits.run_epoch()  # the device works on


def test_a_batch_that_does_not_fit_shrinks_keeps_its_gradients_and_frees_what_the_attempt_took(gpus):
    options = {"width": 64, "batch_size": 256, "num": 512}
    fits = training(**options)
    expected = [figures(fits.run_epoch()) for _ in range(2)]
    fits.close()
    del fits
    release()
    assert gpus.allocated[0] == gpus.reserved[0] == 0
    gpus.limit(0.1)
    shrinks = training(**options)
    reports = [figures(shrinks.run_epoch()) for _ in range(2)]
    micro = [report.pop("micro_batch_size") for report in reports]
    assert micro[0] == micro[1] < 256 == expected[0].pop("micro_batch_size") == expected[1].pop("micro_batch_size")
    for report, whole in zip(reports, expected, strict=True):
        assert report == pytest.approx(whole, rel=1e-4)
    said = what(gpus)
    attempt = said.index("out of memory")
    assert said[attempt + 1] == "empty_cache" and said.index("limit") < attempt


def test_a_gpu_adds_its_figures(gpus, monkeypatch):
    monkeypatch.setattr(nvml, "percent", lambda uuid: 87.0 if uuid == "pretended-0" else None)
    gpus.enter()
    kept, figures, read = [], Usage(), []
    monkeypatch.setattr(gpus, "total", 64 * MIB)
    for _ in range(NEEDED):
        kept.append(torch.zeros(2 * MIB, dtype=torch.uint8, device="cuda"))
        torch.zeros(MIB, dtype=torch.uint8, device="cuda")  # freed at once
        read.append(figures.read())
    assert (read[0]["gpu_percent"], read[0]["gpu_memory_bytes"], read[0]["gpu_memory_peak_bytes"]) == (
        87, 2 * MIB, 3 * MIB,
    )  # fmt: skip
    assert "gpu_memory_growth_bytes" not in read[-2] and read[-1]["gpu_memory_growth_bytes"] == 2 * MIB
    assert set(read[-1]) <= USAGE


def test_the_real_command_trains_on_the_device_and_a_resume_takes_no_more_memory(gpus, search_here, monkeypatch):
    from tuner.engine.processes import launch
    from tuner.tuning import driver
    from tuner.tuning.checks import request

    begin = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import pretended; "
    begin += f"here = pretended.installed({str(gpus.folder)!r}); here.__enter__(); {launch.BEGIN}"
    monkeypatch.setattr(launch, "BEGIN", begin)  # trials are forks of this process
    monkeypatch.setattr(launch, "_root", None)
    monkeypatch.setattr(request, "local_cluster", lambda: {"CPU": 2.0, "GPU": 1.0})
    monkeypatch.setattr(driver, "nodes", lambda: [{"CPU": 2.0, "GPU": 1.0}])
    options = ["--scheduler", "fifo", "--gpus-per-trial", "0.5", "--max-epochs", "2"]
    ran = search_here("tiny.py", *options, "--num-samples", "2")
    assert ran.code == 0 and {trial.status for trial in ran.trials.values()} == {"completed"}
    said = pretended.log_of(gpus.folder)
    assert [line["what"] for line in said][:2] == ["limit", "first"] and said[0]["share"] == 0.5
    before = {id: trial.reports[-1].metrics for id, trial in ran.trials.items()}
    assert all(metrics["gpu_memory_peak_bytes"] > metrics["gpu_memory_bytes"] > 0 for metrics in before.values())
    ran = search_here("", "--resume", "test", "--max-epochs", "4", name="test")
    after = {id: trial.reports[-1].metrics for id, trial in ran.trials.items()}
    assert ran.code == 0 and {len(trial.reports) for trial in ran.trials.values()} == {4}
    for id, metrics in after.items():
        assert metrics["gpu_memory_bytes"] == before[id]["gpu_memory_bytes"]


@pytest.mark.parametrize("device", ["mps", "xpu"])
def test_another_device_is_refused_in_one_line(device):
    with pytest.raises(ValueError, match=f"device {device}: only cpu and cuda .* use --gpus-per-trial 0") as refused:
        training(device=device)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("cuda", "hip", "error", "text"),
    [
        (None, None, "", "is built for CPUs only; install a torch for CUDA or ROCm"),
        ("13.2", None, "Found no NVIDIA driver. Please check", r"for CUDA .* \(Found no NVIDIA driver\); install the"),
        (None, "7.0", "No HIP GPUs are available", r"for ROCm .* \(No HIP GPUs are available\); install the driver"),
    ],
)
def test_a_torch_that_can_use_no_gpu_is_refused_in_one_line(monkeypatch, cuda, hip, error, text):
    def init():
        raise RuntimeError(error)

    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    with pytest.raises(RuntimeError, match=text) as refused:
        Accelerator().limit(0.5)
    assert str(refused.value).endswith("or give --gpus-per-trial 0") and "\n" not in str(refused.value)


def test_the_generators_of_several_devices_are_there_before_anything_else_has_used_them(monkeypatch):
    made = torch.Generator(), torch.Generator()
    monkeypatch.setattr(torch.cuda, "default_generators", ())
    monkeypatch.setattr(torch.cuda, "init", lambda: monkeypatch.setattr(torch.cuda, "default_generators", made))
    devices = [torch.device("cuda", 0), torch.device("cpu"), torch.device("cuda", 1)]
    assert Accelerator().generators(devices) == list(made) and Accelerator().generators([torch.device("cpu")]) == []
