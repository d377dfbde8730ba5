"""Says if a loaded training does not validate as the saved one did: then no `state_dict` has all of its state."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import torch.nn

from tuner.training.beside import unkept

SAME_LOSS = 1e-3  # relative; GPUs and numbers of threads differ by less
SAME_MODEL = 1e-2  # relative; bfloat16 on a GPU and on a CPU differ by less
Loss = Callable[[], float]  # computes a validation loss of the loaded training
CURE = "keep it in a buffer (register_buffer), or return it from get_extra_state"


def of_checkpoint(state: Mapping[str, Any], config: Mapping[str, Any], model: torch.nn.Module, loss: Loss) -> str:
    """Say how the loss of the first validation batch differs from that with which `state` was saved, if it does.

    Not compared are settings that have changed since.
    """
    before = state["first_loss"]
    after = _other(before, loss, SAME_LOSS, SAME_LOSS) if state["config"] == fingerprint(config) else None
    if after is None:
        return ""
    what = f"after the checkpoint of epoch {state['epoch']} was loaded, the first validation batch has loss {after:.6g}"
    return f"{what}, which was {before:.6g} before: {_lacking(model, [])}"


def of_model(recorded: Any, attributes: Iterable[str], model: torch.nn.Module, loss: Loss) -> str:
    """Say how the validation loss of the loaded weights differs from the `recorded` one, a number, if it does.

    Args:
        attributes: the names of those that the training changed.
    """
    if (after := _other(recorded, loss, SAME_MODEL)) is None:
        return ""
    what = f"its saved model has validation loss {after:.6g}, which was {recorded:.6g} in the search"
    return f"{what}: {_lacking(model, attributes)}"


def _other(before: Any, loss: Loss, relative: float, absolute: float = 0.0) -> float | None:
    """Return the loss of now, if it differs; a model that draws random numbers is not compared."""
    if not isinstance(before, float) or not math.isfinite(before):
        return None
    after = loss()
    same = math.isclose(before, after, rel_tol=relative, abs_tol=absolute)
    return None if same or not _is_same(loss(), after) else after


def _is_same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def fingerprint(config: Mapping[str, Any]) -> int:
    return zlib.crc32(repr(sorted(config.items())).encode())


def _lacking(model: torch.nn.Module, attributes: Iterable[str]) -> str:
    names = ", ".join([*islice(attributes, 3), *unkept(model)])
    where = f", perhaps in {names}" if names else ""
    return f"no state_dict may have a part of its state{where}; {CURE}"
