"""A results folder with a good experiment beside whatever is put there, and what must hold whoever looks at it."""

import itertools
import logging
from contextlib import contextmanager
from pathlib import Path

import strategies
from fastapi.testclient import TestClient

from tuner.errors import RequestError
from tuner.serve.app import create_app

HERE = "http://127.0.0.1:8800"
ALL = "/api/experiments"
ROUTES = (
    "", "/trials", "/trials?since=2", "/rungs", "/figures", "/audit", "/events", "/trials/00000", "/trials/a_0",
    "/trials/trial_0",
)  # fmt: skip
COSTLY = (
    "/what-if?scheduler=asha", "/what-if?scheduler=median", "/what-if?scheduler=hyperband", "/contour?x=lr&y=act",
    "/contour?x=lr&y=deep/k", "/importance",
)  # fmt: skip
MOST_MEMORY = 300 << 20  # bytes that one example may take for a moment; its files have 0.6 MB at most
UNFORESEEN = ("cannot be answered (", "the service failed (")


class Unforeseen(logging.Handler):
    """Keeps the exceptions that `errors.blamed` turned into a line: a check is missing where one was raised."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.errors = []

    def emit(self, record):
        self.errors.append(record.exc_info[1])


@contextmanager
def nothing_unforeseen():
    """Raises what `errors.blamed` caught meanwhile."""
    handler, logger = Unforeseen(), logging.getLogger("tuner.errors")
    level, logger.level = logger.level, logging.DEBUG
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    for error in handler.errors:
        raise error


def memory(name):
    """A line of this process's memory in the kernel's words, in bytes: VmRSS, or VmHWM, the most so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise AssertionError(name)


@contextmanager
def little_memory(most=MOST_MEMORY):
    """Raises where this process took more memory meanwhile than before, even if it gave it back."""
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    yield
    took = memory("VmHWM") - before
    assert took < most, f"{took >> 20} MiB"


def documented(work, *errors):
    """What the work gives; None where it raises a documented error, of one printable line."""
    try:
        return work()
    except (RequestError, *errors) as error:
        assert str(error).isprintable() and str(error)
        return None


class World:
    """The folder, what lies outside it, and a client of a service over it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.results = folder, folder / "results"
        self.outside = strategies.elsewhere(folder / "outside")
        good = strategies.elsewhere(self.results / "good")
        for path in ("ray", "best", "trial_0", "trial_1"):
            strategies.remove(good / path)
        self.client = TestClient(create_app(self.results), base_url=HERE, raise_server_exceptions=True)
        self.good = self.rows()["good"]
        assert self.good["epochs"] == 1 and not self.good["error"]
        self._numbers = itertools.count()

    def rows(self):
        """The list of experiments by name."""
        answer = self.client.get(ALL)
        assert answer.status_code == 200, answer.text
        return {row["name"]: row for row in answer.json()["experiments"]}

    @contextmanager
    def holding(self, files):
        """An experiment of these files, for a moment: its folder. Nobody may write meanwhile, here or elsewhere."""
        folder = strategies.put(self.results / f"x{next(self._numbers)}", files)
        before = strategies.tree(self.folder)
        try:
            with nothing_unforeseen(), little_memory():
                yield folder
            assert strategies.tree(self.folder) == before
        finally:
            strategies.remove(folder)

    def look(self, folder, costly):
        """Asks for everything about an experiment, of COSTLY for one: statuses by route."""
        rows = self.rows()
        assert rows["good"] == self.good
        statuses = {}
        for route in (*ROUTES, costly):
            answer = self.client.get(f"{ALL}/{folder.name}{route}")
            assert answer.status_code < 500, (route, answer.status_code, answer.text)
            assert strategies.SENTINEL not in answer.text and not any(each in answer.text for each in UNFORESEEN), route
            assert answer.status_code == 200 or answer.json()["error"].isprintable()
            statuses[route] = answer.status_code
        row = rows.get(folder.name)
        assert row is None or (row["state"] and (statuses[""] == 200) == (not row["error"])), row
        assert row is not None or statuses[""] == 404
        assert strategies.SENTINEL not in str(row)
        return statuses


def ends_soon(follow):
    """A journal's stream that ends once it has sent what there is."""

    def few(journal, after, *_, **__):
        looks = itertools.count()
        return follow(journal, after, lambda: next(looks) > 1, pause_s=0)

    return few
