"""Sets how many threads a process's libraries for arrays use: torch, and those of numpy and others."""

from __future__ import annotations

from functools import cache

from threadpoolctl import ThreadpoolController
from wrapt import when_imported


@cache
def libraries() -> ThreadpoolController:
    """Return the libraries that this process has loaded; to find them takes 50 ms, which the service does once."""
    return ThreadpoolController()


def limit_threads(num: int) -> None:
    """Let this process use `num` threads; the service has loaded its libraries with one thread.

    Do not set more threads than the trial uses: idle threads of numpy's library spin for 50 ms.
    """
    when_imported("torch")(lambda torch: torch.set_num_threads(num))
    libraries().limit(limits=num)
