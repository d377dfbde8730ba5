"""Says if a loaded training does not validate as the saved one did: then no `state_dict` has all of its state."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from tuner.training.beside import unkept

if TYPE_CHECKING:
    from tuner.training.loop import Training

SAME_LOSS = 1e-3  # relative; GPUs and numbers of threads differ by less
SAME_MODEL = 1e-2  # relative; bfloat16 on a GPU and on a CPU differ by less
CURE = "keep it in a buffer (register_buffer), or return it from get_extra_state"


def of_checkpoint(training: Training, state: dict[str, Any]) -> str:
    """Say how the loss of the first validation batch differs from that with which `state` was saved, if it does.

    Not compared are settings that have changed since, and models that draw random numbers.
    """
    before = state["first_loss"]
    if training.rank or before is None or not math.isfinite(before) or state["config"] != fingerprint(training.config):
        return ""
    after = training.loss_of_first_batch()
    same = math.isclose(before, after, rel_tol=SAME_LOSS, abs_tol=SAME_LOSS)
    if same or not _is_same(training.loss_of_first_batch(), after):
        return ""
    what = f"after the checkpoint of epoch {state['epoch']} was loaded, the first validation batch has loss {after:.6g}"
    return f"{what}, which was {before:.6g} before: {_lacking(training, [])}"


def of_model(training: Training, recorded: Any, attributes: Iterable[str]) -> str:
    """Say how the validation loss of the loaded weights differs from the `recorded` one, a number, if it does.

    Args:
        attributes: the names of those that the training changed.
    """
    if not isinstance(recorded, float) or not math.isfinite(recorded):
        return ""
    after = _validation_loss(training)
    if math.isclose(recorded, after, rel_tol=SAME_MODEL, abs_tol=SAME_MODEL):
        return ""
    if not _is_same(_validation_loss(training), after):
        return ""
    what = f"its saved model has validation loss {after:.6g}, which was {recorded:.6g} in the search"
    return f"{what}: {_lacking(training, attributes)}"


def _is_same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def fingerprint(config: Mapping[str, Any]) -> int:
    return zlib.crc32(repr(sorted(config.items())).encode())


def _validation_loss(training: Training) -> float:
    return training.evaluate_examples(training.validation_examples, {"loss"})["loss"]


def _lacking(training: Training, attributes: Iterable[str]) -> str:
    names = ", ".join([*islice(attributes, 3), *unkept(training.model)])
    where = f", perhaps in {names}" if names else ""
    return f"no state_dict may have a part of its state{where}; {CURE}"
