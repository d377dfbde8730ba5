"""Values that all trials of a node share: pickled, with their arrays in memory that processes map and copy on write."""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from ray import cloudpickle

ALIGNMENT = 64  # bytes; arrays begin at multiples of a cache line, as numpy's own do


class Packed(NamedTuple):
    """A pickled value and its buffers, of `sizes` bytes, one after the other in a memory file of a running process."""

    key: str
    sizes: tuple[int, ...]
    fd: int
    pid: int

    def unpacked(self) -> Any:
        """Return the value. Its arrays are writable: the process that changes one copies the pages that it changes.

        Raises OSError if the process that packed it has ended, or is another user's.
        """
        with open(f"/proc/{self.pid}/fd/{self.fd}", "rb", buffering=0) as file:
            memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        starts = accumulate(map(padded, self.sizes), initial=0)
        pickled, *buffers = (memory[start : start + size] for start, size in zip(starts, self.sizes, strict=False))
        return cloudpickle.loads(pickled, buffers=buffers)


def pack(value: Any) -> Packed:
    """Pickle a value by Ray's cloudpickle; raises what its objects raise when they are pickled."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return in_memory([memoryview(pickled), *(buffer.raw() for buffer in buffers)])


def in_memory(parts: Sequence[memoryview]) -> Packed:
    """Write a pickle and its buffers to a new memory file."""
    fd = os.memfd_create("tuner")
    for part in parts:
        for piece in (part, bytes(padded(part.nbytes) - part.nbytes)):
            written = 0
            while written < len(piece):
                written += os.write(fd, piece[written:])
    return Packed(os.urandom(8).hex(), tuple(part.nbytes for part in parts), fd, os.getpid())


def padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
