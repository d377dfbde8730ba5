"""A batch that does not fit is computed in parts: halved when memory runs out, with the gradients of the whole.

The batch size is a hyperparameter and stays what was sampled; only the micro-batch, the number of examples that go
through the model at once, shrinks. What holds then:

* Gradients and the loss are those of the whole batch up to rounding, for a loss that is a mean over examples.
  Batch norm is the exception: it normalises by the micro-batch.
* A repeated step starts from the state of torch's random streams that the failed attempt started from. So a step
  shrunk to a micro-batch equals, bit for bit on a CPU, one that had this micro-batch from the start. Its dropout
  masks are not those of the whole batch, because the streams are read part by part. Python's and numpy's streams
  are not put back: saving them costs 34 us, of a small step's 460, torch's 1.
* What a failed attempt wrote into buffers stays: batch norm's running statistics saw these examples once more.
* Augmentation comes before and is not repeated; an optimizer whose state does not fit fails, as no smaller
  micro-batch makes it fit.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tuner.errors import OUT_OF_MEMORY

logger = logging.getLogger(__name__)
T = TypeVar("T")
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Fit:
    """How many examples fit at once, found by halving.

    Args:
        what: what the examples are used for, for the log.
        shrink: whether to halve at all; if not, the first error is the caller's.
        limit: examples at once, at least 1; None = as many as are asked for.
    """

    def __init__(self, what: str, *, shrink: bool, limit: int | None = None) -> None:
        self.what, self.shrink, self.limit = what, shrink, limit

    def size(self, num_examples: int) -> int:
        """How many of that many examples go at once."""
        return num_examples if self.limit is None else min(num_examples, self.limit)

    def __call__(self, work: Callable[[int], T], num_examples: int, undo: Callable[[], None] = lambda: None) -> T:
        """`work(size)`, and where memory runs out `undo()` and the work again with half of it, down to 1.

        Raises:
            RuntimeError: of `work`; torch.OutOfMemoryError among them where one example does not fit.
        """
        while True:
            size = self.size(num_examples)
            try:
                return work(size)
            except RuntimeError as error:
                if size == 1 or not self.shrink or not is_out_of_memory(error):
                    raise
                logger.warning("%s of %d examples at once: %s", self.what, size, str(error).partition("\n")[0])
            # Not before: the exception holds the frames of the failed attempt, and with them its tensors.
            undo()
            self.limit = size // 2
            logger.warning("%s goes on with %d examples at once", self.what, self.limit)
            release()


def gradients_in_parts(
    mean_loss: Callable[[Tensor, Tensor], Tensor],
    backward: Callable[[Tensor], None],
    inputs: Tensor,
    targets: Tensor,
    accumulating: Callable[[], AbstractContextManager[Any]],
    size: int,
) -> Tensor:
    """Adds up the gradients of a batch's mean loss, `size` examples at a time; returns that loss, detached.

    A part's loss counts by its share of the examples, so a last part that is smaller weighs less. All but the last
    are computed inside `accumulating()`.
    """
    num_examples = targets.shape[0]  # len() takes 4 times as long
    if num_examples <= size:
        loss = mean_loss(inputs, targets)
        backward(loss)
        return loss.detach()
    total: Tensor | None = None
    *parts, last = zip(torch.split(inputs, size), torch.split(targets, size), strict=True)
    for some, their_targets in (*parts, last):
        with nullcontext() if their_targets is last[1] else accumulating():
            loss = mean_loss(some, their_targets) * (len(their_targets) / num_examples)
            backward(loss)
        total = loss.detach() if total is None else total + loss.detach()
    assert total is not None
    return total


def sums_in_parts(
    forward: Callable[[Tensor], Any],
    measures: Iterable[Callable[[Any, Tensor], Tensor]],
    inputs: Tensor,
    targets: Tensor,
    size: int,
) -> Tensor:
    """Of each measure, a mean over examples, its sum over these, `size` at a time: float64, shape (measures,)."""
    total = torch.zeros((), dtype=torch.float64, device=inputs.device)
    for some, their_targets in zip(torch.split(inputs, size), torch.split(targets, size), strict=True):
        outputs = forward(some)
        values = [measure(outputs, their_targets) for measure in measures]
        total = total + torch.stack(values) * len(their_targets)
    return total


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an allocation failed, after which the process and its device are as good as before."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return any(text in str(error) for text in OUT_OF_MEMORY)


def warn_of_batch_norm(model: nn.Module) -> None:
    """Logs the exception to what shrinking leaves as it was, if the model is one."""
    if any(isinstance(part, BATCH_NORMS) for part in model.modules()):
        logger.warning("batch norm normalises by the micro-batch: from here on, figures depend on its size")


def release() -> None:
    """Gives back what nothing refers to any more; on a shared GPU the other processes may need it."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
