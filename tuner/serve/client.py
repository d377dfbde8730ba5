"""A client of the service. The client needs only the standard library.

Example: `Client("http://127.0.0.1:8800").start("cifar", num_samples=20)`.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

Row = dict[str, Any]
BUSY = ("queued", "starting", "running", "stopping")
MOST_TRIES = 60  # tries of a GET request while the service answers with Retry-After; one last try follows


class ServiceError(Exception):
    """The service refused a request, with HTTP status `status`; `again_s`: seconds until a retry, 0 = do not retry."""

    def __init__(self, status: int, message: str, again_s: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.again_s = status, again_s


class Client:
    """Sends requests to one service.

    Args:
        url: the address that `tuner.serve` prints.
        token: needed to change something, and for every request to a service beyond loopback; default: TUNER_TOKEN of
            the environment. A service that was started without a token prints the path of its token's file.
        timeout_s: seconds to wait for the service's next bytes; checking a search takes long, because it imports torch.
    """

    def __init__(self, url: str, token: str | None = None, timeout_s: float = 180.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r}: give the service's address, http://HOST:PORT")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._token = os.environ.get("TUNER_TOKEN", "") if token is None else token
        self._timeout_s = timeout_s

    def experiments(self) -> list[Row]:
        """Returns at most 10,000 experiments' summaries: searches without a folder, then the others, newest first."""
        return list(self._get("/api/experiments")["experiments"])

    def get(self, name: str) -> Row:
        """Returns the summary of one experiment."""
        return self._get(_path(name))

    def trials(self, name: str) -> list[Row]:
        """Returns an experiment's trials in the order in which they were suggested; fetches them page by page."""
        rows: list[Row] = []
        while True:
            page = self._get(_path(name, "/trials?") + urlencode({"offset": len(rows)}))
            rows += page["trials"]
            if len(rows) >= page["total"] or not page["trials"]:
                return rows

    def rungs(self, name: str) -> Row:
        """Returns an experiment's rungs and decisions, at most 10,000 of each."""
        return self._get(_path(name, "/rungs"))

    def compare(self, *names: str) -> Row:
        """Compares experiments: costs, Plotly figures, options and parameters; waits until the service has read all."""
        query = urlencode({"name": names}, doseq=True)
        while True:
            found = self._get(f"/api/compare?{query}")
            if all(row["state"] != "reading" for row in found["experiments"]):
                return found
            time.sleep(0.5)

    def events(self, name: str, after: int = 0) -> Iterator[Row]:
        """Yields the journal's events except the first `after`, then new ones, until the service closes the stream."""
        with self._ask("GET", _path(name, f"/events?after={int(after)}")) as answer:
            for line in answer:
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))

    def start(self, space: str, **options: Any) -> Row:
        """Queues a new search; returns its summary. `options` are options of `tuner.run`, such as `num_samples=20`."""
        return self._post("/api/experiments", {"space": space, **options})

    def stop(self, name: str) -> Row:
        """Stops a search as Ctrl-C does, without waiting for its end (see `wait`). A queued search leaves the queue."""
        return self._post(_path(name, "/stop"), {})

    def resume(self, name: str, **extended: Any) -> Row:
        """Queues a search to be resumed; `num_samples`, `max_epochs` and the budgets may be raised to extend it."""
        return self._post(_path(name, "/resume"), extended)

    def annotate(self, name: str, tags: Sequence[str] = (), notes: str = "") -> Row:
        """Replaces the tags and notes of an experiment; returns its summary."""
        return self._post(_path(name, "/notes"), {"tags": list(tags), "notes": notes})

    def archive(self, name: str, archived: bool = True) -> Row:
        """Hides an experiment from the page's list, or with `archived=False` shows it again."""
        return self._post(_path(name, "/archive"), {"archived": archived})

    def delete(self, name: str) -> Row:
        """Deletes an experiment and its folder for ever, unless it is queued or running."""
        return self._json("DELETE", _path(name))

    def download(self, name: str, file: str, path: str | Path) -> Path:
        """Saves a file of an experiment's folder `best/`, such as `model.pt`, at `path`; returns the path."""
        with self._ask("GET", _path(name, f"/best/{quote(file)}")) as answer, open(path, "wb") as saved:
            shutil.copyfileobj(answer, saved)
        return Path(path)

    def wait(self, name: str, timeout_s: float = float("inf"), pause_s: float = 0.5) -> Row:
        """Waits while a search is queued or running; returns its summary; raises TimeoutError after `timeout_s`."""
        until = time.monotonic() + timeout_s
        while (row := self.get(name))["state"] in BUSY:
            if time.monotonic() > until:
                raise TimeoutError(f"{name} is {row['state']} after {timeout_s:g} s")
            time.sleep(pause_s)
        return row

    def _get(self, path: str) -> Row:
        """Sends a GET request; retries if the service sends Retry-After, for example while it reads a long journal."""
        for _ in range(MOST_TRIES):
            try:
                return self._json("GET", path)
            except ServiceError as error:
                if not error.again_s:
                    raise
                time.sleep(error.again_s)
        return self._json("GET", path)

    def _post(self, path: str, body: Row) -> Row:
        return self._json("POST", path, json.dumps(body))

    def _json(self, method: str, path: str, body: str | None = None) -> Row:
        with self._ask(method, path, body) as answer:
            return dict(json.loads(answer.read()))

    @contextmanager
    def _ask(self, method: str, path: str, body: str | None = None) -> Iterator[http.client.HTTPResponse]:
        """Yields the response, whose body is not read yet; raises ServiceError if the request is refused."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        # http.client follows no redirects, so the token reaches no other server.
        with closing(kind(self._host, self._port, timeout=self._timeout_s)) as connection:
            connection.request(method, path, body, {**headers, "Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status >= 300:
                again, sent = answer.headers.get("Retry-After", ""), answer.read().decode(errors="replace")
                text = sent[:500]  # a proxy's response may be no JSON
                with suppress(ValueError, KeyError, TypeError):
                    text = str(json.loads(sent)["error"])
                raise ServiceError(answer.status, text, float(again) if again.isdecimal() else 0.0)
            yield answer


def _path(name: str, rest: str = "") -> str:
    return f"/api/experiments/{quote(name, safe='')}{rest}"
