"""Values that all trials of a node share: pickled, with their arrays in memory that processes map and copy on write."""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ray import cloudpickle


@dataclass(frozen=True)
class Packed:
    """A pickled value; its buffers, of `sizes` bytes, lie one after the other in the memory file `fd` (-1 = none)."""

    key: str
    pickled: bytes
    sizes: Sequence[int] = ()
    fd: int = -1

    def unpacked(self) -> Any:
        """Return the value. Its arrays are writable: the process that changes one copies the pages that it changes."""
        if self.fd < 0:
            return cloudpickle.loads(self.pickled)
        is_empty = not any(self.sizes)
        memory = memoryview(b"" if is_empty else mmap.mmap(self.fd, 0, access=mmap.ACCESS_COPY))
        buffers, start = [], 0
        for size in self.sizes:
            buffers.append(memory[start : start + size])
            start += padded(size)
        return cloudpickle.loads(self.pickled, buffers=buffers)


def pack(value: Any) -> Packed:
    """Pickle a value by Ray's cloudpickle; raises what its objects raise when they are pickled."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    parts = [buffer.raw() for buffer in buffers]
    fd = os.memfd_create("tuner") if parts else -1
    for part in parts:
        for piece in (part, bytes(padded(part.nbytes) - part.nbytes)):
            written = 0
            while written < len(piece):
                written += os.write(fd, piece[written:])
    return Packed(os.urandom(8).hex(), pickled, [part.nbytes for part in parts], fd)


def padded(size: int) -> int:
    return -(-size // 64) * 64  # arrays begin at multiples of a cache line, as numpy's own do
