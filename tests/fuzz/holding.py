"""A folder of chosen files for a moment, in which nobody may write, and what must hold whoever reads it."""

import logging
import shutil
from contextlib import contextmanager
from pathlib import Path

import strategies

from tuner.errors import RequestError

MOST_MEMORY = 300 << 20  # bytes that one example may take for a moment; its files have 0.6 MB at most


@contextmanager
def holding(around, files, name="x", may_write=False):
    """A folder of these files in `around/results`. What lies in `around` stays; the reader may write to the folder."""
    folder = strategies.put(around / "results" / name, files)
    before = strategies.tree(around)
    try:
        with little_memory(), nothing_unforeseen():
            yield folder
        assert may_write or strategies.tree(around) == before
    finally:
        shutil.rmtree(folder)


@contextmanager
def nothing_unforeseen():
    """Raises what `errors.blamed` turned into a line meanwhile: a check is missing where it was raised."""
    handler, logger, errors = logging.Handler(), logging.getLogger("tuner.errors"), []
    handler.emit = lambda record: errors.append(record.exc_info[1])
    level, logger.level = logger.level, logging.DEBUG
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    for error in errors:
        raise error


def memory(name):
    """A line of this process's memory in the kernel's words, in bytes: VmRSS, or VmHWM, the most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


@contextmanager
def little_memory():
    """Raises where this process took MOST_MEMORY more memory meanwhile than before, even if it gave it back."""
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    yield
    took = memory("VmHWM") - before
    assert took < MOST_MEMORY, f"{took >> 20} MiB"


def documented(work, *arguments):
    """What the work gives; None where it raises a documented error, of one printable line."""
    try:
        return work(*arguments)
    except RequestError as error:
        assert str(error).isprintable() and str(error)
        return None
