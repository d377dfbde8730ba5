"""Says on stderr that a step before the first trial takes long and which user code runs; limits that code's output."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator

from tuner.errors import printable
from tuner.errors.output import bounded_output, shown
from tuner.errors.users_code import is_importing, place_of_frame

# Seconds until the first line, and the longest wait between two lines. Lines appear after 10, 30, 90, 270, 570 s.
FIRST_S, MAX_INTERVAL_S = 10.0, 300.0
IMPORT_SILENCE_S = 60.0  # an import of a package prints no line earlier: torch alone may take so long
STARTING = "starting a search; its plan follows"  # printed before Ray is imported, which takes 10 s on a busy machine
BUSY = 2.0  # load per core from which a machine is called busy: everything takes at least twice as long


@contextlib.contextmanager
def patience(doing: str | Callable[[], str], hint: str = "") -> Iterator[None]:
    """Prints `doing` and the line of user code, first after FIRST_S seconds, then ever more rarely; limits output.

    `doing` names what takes long, such as `reading the data`; `hint` adds what the user may do. While an
    installed package is imported, nothing is printed before IMPORT_SILENCE_S seconds, and the hint is left out.
    """
    done, stream, thread = threading.Event(), sys.stderr, threading.get_ident()
    write = stream.write  # taken before `bounded_output` limits it

    def tell() -> None:
        total = wait = FIRST_S
        while not done.wait(wait):
            frame = sys._current_frames().get(thread)
            imports = is_importing(frame)
            if imports and total < IMPORT_SILENCE_S:
                total += wait
                continue
            more = "; this line imports an installed package" if imports else hint
            now = doing if isinstance(doing, str) else doing()
            line = f"still {now} after {total:.0f} s{place_of_frame(frame)}; Ctrl-C ends it{more}{busy()}"
            with contextlib.suppress(OSError, ValueError):
                write("\n".join([*shown(printable(line), stream), ""]))
                stream.flush()
            wait = min(2 * total, MAX_INTERVAL_S)
            total += wait

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        with bounded_output():
            yield
    finally:
        done.set()
        teller.join()


def busy() -> str:
    """`; the machine is busy: load 21 on 2 cores`; empty if it is not."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    return f"; the machine is busy: load {load:.0f} on {cores} cores" if load > BUSY * cores else ""
