"""Says on stderr what the user's code is doing if it takes long before the first trial, and limits its output."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator

from tuner.errors import printable
from tuner.errors.output import bounded_output, shown
from tuner.errors.users_code import is_importing, place_of_frame

# Seconds until the first line, and the longest wait between two lines: after 10, 30, 90, 270, 570 s.
FIRST_S, MOST_S = 10.0, 300.0
IMPORTS_S = 60.0  # torch alone may take so long to import
STARTING = "starting a search; its plan follows"  # printed before Ray is imported, which takes 10 s on a busy machine
BUSY = 2.0  # processes per core that run or wait to run: from here on, everything takes at least twice as long


@contextlib.contextmanager
def patience(doing: str | Callable[[], str], hint: str = "") -> Iterator[None]:
    """Prints, after FIRST_S seconds in the context and then ever more rarely, which line of the user's code runs.

    `doing` says what takes long, such as `reading the data`; `hint`, the end of the line, what the user may do. An
    import of a module that is not the user's is printed only after IMPORTS_S seconds, and without the hint.
    """
    done, stream, thread = threading.Event(), sys.stderr, threading.get_ident()
    write = stream.write  # has no limit, unlike the user's code

    def tell() -> None:
        total = wait = FIRST_S
        while not done.wait(wait):
            frame = sys._current_frames().get(thread)
            imports = is_importing(frame)
            if imports and total < IMPORTS_S:
                total += wait
                continue
            more = "; this line imports an installed package" if imports else hint
            now = doing if isinstance(doing, str) else doing()
            line = f"still {now} after {total:.0f} s{place_of_frame(frame)}; Ctrl-C ends it{more}{busy()}"
            with contextlib.suppress(OSError, ValueError):
                write("\n".join([*shown(printable(line), stream), ""]))
                stream.flush()
            wait = min(2 * total, MOST_S)
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
