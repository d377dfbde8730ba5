"""A search's pace while its dashboard is abused: `python -m benchmarks.abuse [--repeats 6] [--only sockets]`.

A client does in every other window, on loopback, what a hostile one would: sockets that send half of a request, costly
what-if questions, bodies that are too large, wrong tokens. It is bounded: each kind so many times a second, and
nothing of it is left after its window. Prints the pace with it over the pace without, and its standard error; the
client's own share of the machine, which a client elsewhere would not take, is printed beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import tempfile
import threading
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from benchmarks.dashboard import Server, searches

MOST_SOCKETS = 600  # half-open at a time; the service takes 400 connections
ROUND_S = 0.25  # between two rounds of a kind
TIMEOUT_S = 5.0
answers: Counter[str] = Counter()


def sockets(server: Server, name: str, over: threading.Event) -> None:
    """Opens 100 sockets a round that send half of a request, and keeps the last MOST_SOCKETS of them."""
    place = (urlsplit(server.url).hostname, urlsplit(server.url).port)
    opened: list[socket.socket] = []
    while not over.wait(ROUND_S):
        for _ in range(100):
            with contextlib.suppress(OSError):
                opened.append(socket.create_connection(place, timeout=TIMEOUT_S))
                opened[-1].sendall(b"GET / HTTP/1.1\r\nHost: 127")
        for one in opened[:-MOST_SOCKETS]:
            one.close()
        del opened[:-MOST_SOCKETS]
    for one in opened:
        one.close()


def questions(server: Server, name: str, over: threading.Event) -> None:
    """Asks each round for one replay of the whole search, by rules that nobody has asked for before."""
    with httpx.Client(base_url=server.url, timeout=TIMEOUT_S, trust_env=False) as client:
        number = 0
        while not over.wait(ROUND_S):
            number += 1
            rules = {"scheduler": "asha", "reduction_factor": 1.5 + number / 1000, "grace_period": 1}
            count_answer(client, "what-if", "GET", f"/api/experiments/{name}/what-if", params=rules)


def bodies(server: Server, name: str, over: threading.Event) -> None:
    """Sends four bodies of 10 MB a round, which nobody may."""
    with httpx.Client(base_url=server.url, timeout=TIMEOUT_S, trust_env=False) as client:
        while not over.wait(ROUND_S):
            for _ in range(4):
                count_answer(client, "10 MB", "POST", "/api/experiments", content=bytes(10 << 20))


def tokens(server: Server, name: str, over: threading.Event) -> None:
    """Tries 20 wrong tokens a round."""
    with httpx.Client(base_url=server.url, timeout=TIMEOUT_S, trust_env=False) as client:
        while not over.wait(ROUND_S):
            for number in range(20):
                wrong = {"Authorization": f"Bearer {number:032}"}
                count_answer(client, "token", "POST", "/api/experiments", json={"space": "quadratic"}, headers=wrong)


def count_answer(client: httpx.Client, kind: str, method: str, path: str, **options: object) -> None:
    """Asks, and counts the answer by its status."""
    try:
        answers[f"{kind}: {client.request(method, path, **options).status_code}"] += 1
    except httpx.HTTPError as error:
        answers[f"{kind}: {type(error).__name__}"] += 1


KINDS = {"sockets": sockets, "questions": questions, "bodies": bodies, "tokens": tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=6, help="windows with the client, at least 2")
    parser.add_argument("--only", choices=KINDS, help="one kind of abuse instead of all at once")
    args = parser.parse_args()
    kinds = [KINDS[args.only]] if args.only else list(KINDS.values())

    def all_at_once(server: Server, name: str, over: threading.Event) -> None:
        threads = [threading.Thread(target=kind, args=(server, name, over)) for kind in kinds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with tempfile.TemporaryDirectory() as folder:
        searches(Path(folder), args.repeats, all_at_once, "an abusive client")
    print(", ".join(f"{kind} x {count}" for kind, count in sorted(answers.items())))


if __name__ == "__main__":
    main()
