"""A failure's kind and its one line, from what Ray records."""

import pytest
import ray.exceptions
import torch

from tuner.failures import first_line, kind_of


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
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), "cuda"),
    ],
)
def test_an_error_of_a_trial_is_told_in_one_line(error, kind):
    for given in (error, as_ray_says(error)):
        found, text = kind_of(given)
        assert found == kind and str(error).strip("'") in text and "\n" not in text
        assert type(error).__name__ in text and "RayTaskError" not in text


def test_a_lost_worker_is_told():
    kind, text = kind_of(ray.exceptions.RayActorError(None, "the worker was killed by SIGKILL\nmore"))
    assert kind == "worker_lost" and text.startswith("its worker died: ") and "\n" not in text


def test_nothing_recorded_is_told_too():
    assert kind_of(None) == ("user", "unknown")


def test_a_text_is_told_by_its_first_line():
    kind, text = kind_of("\n  something broke\nmore")
    assert kind == "user" and "something broke" in text and "\n" not in text
    assert first_line(ValueError("")) == "ValueError"
