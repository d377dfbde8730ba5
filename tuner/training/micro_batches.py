"""Works on a batch in parts when memory runs out, and checks that a loss allows it."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree

from tuner.training.devices.accelerator import is_out_of_memory, release
from tuner.training.metrics import has_rows
from tuner.training.parallel import Measure

logger = logging.getLogger(__name__)
T = TypeVar("T")


class MicroBatcher:
    """Runs work on as many examples at once as fit in memory; halves their number when memory runs out.

    Gradients and loss equal those of the whole batch up to rounding, if the loss is a mean over examples. Batch norm
    normalizes over each micro-batch, and counts the examples of a failed attempt twice; dropout draws a mask for each
    micro-batch. A repeated step restores torch's random streams, but not those of Python and numpy, because saving
    them takes 34 us. With ddp, `Group` restarts all processes when training runs out of memory.

    Args:
        what: what the examples are used for; written to the log.
        shrink: whether to halve the number; if False, the first out-of-memory error is raised.
    """

    def __init__(self, what: str, *, shrink: bool) -> None:
        self.what, self.shrink = what, shrink
        self.limit: int | None = None  # the most examples at once, at least 1; None = no limit

    def size(self, num_examples: int) -> int:
        return num_examples if self.limit is None else min(num_examples, self.limit)

    def __call__(self, work: Callable[[int], T], num_examples: int, undo: Callable[[], None] = lambda: None) -> T:
        """Returns `work(size)`. If memory runs out, calls `undo()` and tries half the size, which later calls keep."""
        while True:
            size = self.size(num_examples)
            try:
                return work(size)
            except (RuntimeError, MemoryError) as error:
                if size == 1 or not self.shrink or not is_out_of_memory(error):
                    raise
                logger.warning("%s of %d examples at once: %s", self.what, size, str(error).partition("\n")[0])
            # Not in the `except` block, where the exception keeps the failed attempt's frames and tensors alive.
            undo()
            self.limit = size // 2
            logger.warning("%s continues with %d examples at once", self.what, self.limit)
            release()


@torch.no_grad()
def check_mean(loss: Measure, outputs: Any, targets: Tensor) -> None:
    """Raises ValueError if a loss is no mean over examples: parts of a batch would then give other gradients.

    Compares the loss of a batch with the mean of its halves' losses, weighted by their sizes. Not checked are a loss
    that draws random numbers, and outputs that are not rows of examples.
    """
    number, whole = len(targets), loss(outputs, targets)
    rows = all(has_rows(each, number) for each in _pytree.tree_leaves(outputs))
    if number < 2 or not rows or not whole.isfinite() or not torch.equal(whole, loss(outputs, targets)):
        return
    some = (number + 1) // 2
    first, second = (
        loss(_pytree.tree_map(operator.itemgetter(part), outputs), targets[part])
        for part in (slice(some), slice(some, None))
    )
    mean = (first * some + second * (number - some)) / number
    if not torch.isclose(mean, whole, rtol=1e-4, atol=1e-6):
        what = f"that of {number} examples is {whole:.6g}, the mean of its halves {mean:.6g}"
        raise ValueError(
            f"the loss is no mean over examples: {what}. Processes of ddp, or smaller batches after memory ran out, "
            f"would train something else; write it as a mean, or give --strategy single and --on-oom fail"
        )
