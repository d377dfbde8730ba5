"""A failure's kind and its one line, from what Ray records."""

import json

import pytest
import ray.exceptions
import torch

from tuner.engine.controller import failures
from tuner.engine.controller.failures import kind_of, likeness


def as_ray_says(error):
    trace = f'Traceback (most recent call last):\n  File "x.py", line 3, in train\n{type(error).__name__}: {error}\n'
    return ray.exceptions.RayTaskError("train", trace, error).as_instanceof_cause()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("wrong width"), "user"),
        (KeyError("lr"), "user"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "oom"),
        (RuntimeError("CUDA out of memory"), "oom"),
        (RuntimeError("CUDA error: device-side assert triggered"), "cuda"),
        (RuntimeError("CUDA error: unspecified launch failure"), "cuda"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"), "cuda"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "oom"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory"), "oom"),
        (MemoryError("Unable to allocate 8.00 EiB for an array"), "oom"),
        (ValueError("set CUDA error handling first"), "user"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), "cuda"),
    ],
)
def test_an_error_of_a_trial_is_told_in_one_line(error, kind):
    for shown in (error, as_ray_says(error)):
        actual_kind, text = kind_of(shown)
        assert actual_kind == kind and str(error).strip("'") in text and "\n" not in text
        assert type(error).__name__ in text and "RayTaskError" not in text


def test_a_lost_worker_is_told():
    kind, text = kind_of(ray.exceptions.RayActorError(None, "the worker was killed by SIGKILL\nmore"))
    assert kind == "worker_lost" and text.startswith("its worker died: ") and "\n" not in text


@pytest.mark.parametrize(
    ("first", "usual"),
    [
        ("CUDA error: device-side assert triggered", "a label or an index out of range"),
        ("CUDA error: an illegal memory access was encountered", "an index out of range or a tensor of a wrong shape"),
    ],
)
def test_cudas_own_exception_of_several_lines_is_told_by_its_first_with_its_usual_cause(first, usual):
    advice = "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below "
    advice += "might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    advice += "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    error = torch.AcceleratorError(f"{first}\n{advice}")
    for shown in (error, as_ray_says(error)):
        kind, text = kind_of(shown)
        place = "" if shown is error else " (x.py, line 3)"
        assert kind == "cuda" and text.startswith(f"AcceleratorError: {first}{place}; usually {usual}")
        assert "\n" not in text


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        (["/home/me/space.py", "/usr/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py"], "space.py"),
        (["/home/me/space.py", "/home/me/model.py", json.__file__], "model.py"),
        ([failures.__file__, "<string>"], None),
    ],
)
def test_a_failure_names_file_and_line_of_the_users_code(frames, place):
    error = KeyError("lr")
    lines = [f'  File "{file}", line {number}, in train\n    x = y\n' for number, file in enumerate(frames, 1)]
    trace = f"Traceback (most recent call last):\n{''.join(lines)}KeyError: 'lr'\n"
    shown = ray.exceptions.RayTaskError("train", trace, error)
    where = f" (/home/me/{place}, line {frames.index(f'/home/me/{place}') + 1})" if place else ""
    for each in (shown, shown.as_instanceof_cause(), ray.exceptions.RayTaskError("outer", "Traceback: none", shown)):
        assert kind_of(each) == ("user", f"KeyError: 'lr'{where}")


def test_failures_are_alike_if_type_and_place_are_equal():
    place = "(/home/me/space.py, line 12)"
    assert likeness(f"ValueError: 4x3 (a) {place}") == likeness(f"ValueError: 5x2 {place} (tried again once before)")
    assert likeness(f"ValueError: 4 {place}") != likeness(f"KeyError: 4 {place}")
    assert likeness(f"ValueError: 4 {place}") != likeness("ValueError: 4 (/home/me/space.py, line 13)")
    assert likeness("its worker died: pid 12") == likeness("its worker died: pid 345")
