"""Computes a task's metrics on all examples of a part at once: F1 or AUC of batches, averaged, is another number."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from tuner.training.parallel import Single
from tuner.training.task import streams

MAX_OUTPUT_BYTES = 2**30  # of the outputs of one part that are kept for its metrics
REMEDY = (
    "give metrics with `update` and `compute`, or put those that are means over examples in mean_of_batches of "
    "tuner.space"
)


class WholePart:
    """Collects the outputs of one part batch by batch; then `values` has its metrics.

    Metrics with `update` and `compute`, such as those of torchmetrics, get each batch, and nothing is kept for them.
    """

    def __init__(self, metrics: Mapping[str, Any], strategy: Single) -> None:
        self.strategy, self.num_bytes, self.batches = strategy, 0, list[tuple[Any, Tensor]]()
        self.streamed = {name: copy.deepcopy(metric) for name, metric in metrics.items() if streams(metric)}
        self.functions = {name: metric for name, metric in metrics.items() if name not in self.streamed}
        for name, metric in self.streamed.items():
            if strategy.num_workers > 1 and not hasattr(metric, "sync"):
                what = f"metric {name!r} has no `sync`, which adds up what the processes of ddp have"
                raise ValueError(f"{what}; use one of torchmetrics, or a function of outputs and targets")

    def add(self, outputs: Any, targets: Tensor) -> None:
        """Take one batch; raises ValueError if the outputs are too large to keep, or are not rows of examples."""
        parts = _pytree.tree_leaves(outputs)
        targets = targets.to(next((part.device for part in parts if isinstance(part, Tensor)), targets.device))
        for metric in self.streamed.values():
            if hasattr(metric, "to"):
                metric.to(targets.device)
            metric.update(outputs, targets)
        if not self.functions:
            return
        for part in parts:
            if not has_rows(part, len(targets)):
                what = f"one part of the model's outputs has no row for each example, but is a {type(part).__name__}"
                raise ValueError(f"{self.named()} need the outputs of all examples; {what}; {REMEDY}")
        self.num_bytes += bytes_of(outputs)
        if self.num_bytes > MAX_OUTPUT_BYTES:
            raise ValueError(f"{self.named()} need the outputs of all examples, more than 1 GiB; {REMEDY}")
        self.batches.append((outputs, targets))

    def named(self) -> str:
        return f"the metrics {', '.join(self.functions)}"

    def values(self) -> dict[str, float]:
        """Compute the metrics over the examples of all processes, in which it must be called at once."""
        values = {name: float(metric.compute()) for name, metric in self.streamed.items()}
        if self.functions:
            here = [joined(self.batches)] if self.batches else []
            outputs, targets = joined([batch for part in self.strategy.gathered(here) for batch in part])
            values |= {name: float(metric(outputs, targets)) for name, metric in self.functions.items()}
        return values


def has_rows(part: Any, number: int) -> bool:
    """Whether a part of the outputs is a tensor with a row for each of `number` examples."""
    return isinstance(part, Tensor) and part.ndim > 0 and len(part) == number


def bytes_of(outputs: Any) -> int:
    return sum(part.nbytes for part in _pytree.tree_leaves(outputs) if isinstance(part, Tensor))


def joined(batches: list[Any]) -> Any:
    """Concatenate batches, which are tensors or equal structures of tensors."""
    return batches[0] if len(batches) == 1 else _pytree.tree_map(lambda *parts: torch.cat(parts), *batches)


def as_measure(metric: Callable[[Any, Tensor], Any]) -> Callable[[Any, Tensor], Tensor]:
    """Wraps a metric so that a number, or a tensor with one value, becomes a tensor without dimensions."""

    def measure(outputs: Any, targets: Tensor) -> Tensor:
        value = metric(outputs, targets)
        if isinstance(value, Tensor):
            return value.reshape(()) if value.numel() == 1 else value
        return torch.tensor(float(value), dtype=torch.float64, device=targets.device)

    return measure


def of_batch(metric: Any) -> Callable[[Any, Tensor], Any]:
    """Returns a metric as a function of one batch, which changes no state of the metric's."""
    if not streams(metric):
        return metric  # type: ignore[no-any-return]

    def measure(outputs: Any, targets: Tensor) -> Any:
        own = copy.deepcopy(metric)
        own.update(outputs, targets)
        return own.compute()

    return measure
