"""Computes a batch that does not fit in memory in parts, whose gradients add up to those of the whole batch.

The batch size is a hyperparameter and stays. Only the micro-batch, the number of examples that go through the model at
once, is halved when memory runs out. The following holds:

* Gradients and the loss equal those of the whole batch up to rounding, if the loss is a mean over examples. Batch norm
  normalizes over the micro-batch, and dropout draws a mask for each part.
* A repeated step starts from the same torch random streams as the failed attempt. So, bit for bit on a CPU, it equals a
  step that had its micro-batch from the start. Python's and numpy's streams are not restored: saving them takes 34 us.
* Buffers keep what a failed attempt wrote: the running statistics of batch norm count these examples twice.
* Augmentation happens before the first attempt, and is not repeated.
* With ddp, evaluation shrinks so, but for training `Group` restarts all processes with half the size.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import TypeVar

from tuner.training.devices import accelerator
from tuner.training.devices.accelerator import is_out_of_memory

logger = logging.getLogger(__name__)
T = TypeVar("T")


class MicroBatcher:
    """Runs work on as many examples at once as fit in memory; halves their number when memory runs out.

    Args:
        what: what the examples are used for; written to the log.
        shrink: whether to halve; if False, the first out-of-memory error is raised.
    """

    def __init__(self, what: str, *, shrink: bool) -> None:
        self.what, self.shrink = what, shrink
        self.limit: int | None = None  # the most examples at once, at least 1; None = no limit

    def size(self, num_examples: int) -> int:
        """How many of `num_examples` to process at once."""
        return num_examples if self.limit is None else min(num_examples, self.limit)

    def __call__(self, work: Callable[[int], T], num_examples: int, undo: Callable[[], None] = lambda: None) -> T:
        """Returns `work(size)`. If memory runs out, calls `undo()` and tries half the size, which later calls keep.

        Raises the error if memory runs out with a single example, or with `shrink` False.
        """
        while True:
            size = self.size(num_examples)
            try:
                return work(size)
            except RuntimeError as error:
                if size == 1 or not self.shrink or not is_out_of_memory(error):
                    raise
                logger.warning("%s of %d examples at once: %s", self.what, size, str(error).partition("\n")[0])
            # Not in the `except` block, where the exception keeps the failed attempt's frames and tensors alive.
            undo()
            self.limit = size // 2
            logger.warning("%s continues with %d examples at once", self.what, self.limit)
            release()


def release() -> None:
    """Frees unused memory, also torch's cache on a GPU: other processes may need it."""
    gc.collect()
    accelerator.here.empty_cache()
