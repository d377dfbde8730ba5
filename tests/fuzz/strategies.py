"""What a folder may hold that somebody else made: valid files, and what a hostile writer or a torn disk makes of them.

A folder is a dictionary: path -> its content, or a `Thing` that is no file. `put` writes it.
"""

import contextlib
import copy
import io
import json
import math
import os
import shutil
import socket
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

import hypothesis.strategies as some

from tuner.record.events import sealed
from tuner.record.format import FORMAT
from tuner.record.saved_experiment import COPY, FILE, digest
from tuner.spec.experiment import CHOICES, Experiment

SENTINEL = "s3ntinel-of-a-file-elsewhere"
MARKUP = "</script><img src=x onerror=alert(1)>"
FOREVER = "@@"  # what no JSON writer writes: `@@deep900@@`, `@@digits5000@@`
TRIALS = ("00000", "00001", "00002")


# --- values ---------------------------------------------------------------------------------------------------------

NUMBERS = some.one_of(
    some.integers(-2, 12),
    some.floats(),
    some.sampled_from(
        [0, -0.0, 1.5, 2**31, 2**53 + 1, 2**63, 2**64, 10**18, -(10**18), 10**299, 10**400, -(10**400), 1e308, -1e308]
        + [5e-324, math.nan, math.inf, -math.inf, 1e15, 1_000_000, 999_999]
    ),
)
SHOWN = some.one_of(  # what a reader takes for a number, however odd
    some.floats(0, 10),
    some.floats(),
    some.integers(-2, 12),
    some.sampled_from([0, -0.0, 2**53 + 1, 2**63 - 1, 2**63, 10**299, 1.7e308, -1.7e308, 5e-324, math.nan, math.inf])
    | some.just(-math.inf),
)
NAMES = some.one_of(
    some.text(max_size=6),
    some.sampled_from(
        ["", ".", "..", "../../elsewhere", "/etc/passwd", "a/b", "a\0b", "\x1b[31m\x1b]0;x\x07", "\u202e", "\udcff"]
        + ["nan", "inf", "-inf", "1e400", "True", "x" * 300, "x" * 20_000, "\n", "🙂", MARKUP]
        + ["loss", "00000", "00001", "stop", "pause", "completed", "pruned", "lr", "rss_bytes", "cpu_percent"]
        + [f"{FOREVER}deep{n}{FOREVER}" for n in (150, 400, 1200, 100_000)]
        + [f"{FOREVER}digits{n}{FOREVER}" for n in (310, 5000)]
    ),
)
SCALARS = some.one_of(some.none(), some.booleans(), NUMBERS, NAMES)
VALUES = some.one_of(
    SCALARS,
    some.lists(SCALARS, max_size=3),
    some.dictionaries(NAMES, SCALARS, max_size=2),
    some.dictionaries(NAMES, some.lists(SCALARS, max_size=2), max_size=2),
)


def text_of(document, is_ascii=True):
    """JSON, with what Python cannot nest or print put in as text."""
    text = json.dumps(document, ensure_ascii=is_ascii).encode(errors="surrogatepass")
    if FOREVER.encode() in text:
        for n in (150, 400, 1200, 100_000):
            text = text.replace(f'"{FOREVER}deep{n}{FOREVER}"'.encode(), b"[" * n + b"]" * n)
        for n in (310, 5000):
            text = text.replace(f'"{FOREVER}digits{n}{FOREVER}"'.encode(), b"9" * n)
    return text


@some.composite
def mutated(draw, document, most=3):
    """The document with up to so many changes, anywhere in it."""
    document = copy.deepcopy(document)
    for _ in range(draw(some.integers(0, most))):
        places = list(_places(document))
        if not places:
            break
        inside, key = places[draw(some.integers(0, len(places) - 1))]
        change = draw(some.sampled_from(["value", "value", "number", "kind", "drop", "name", "more"]))
        _change(draw, inside, key, change, places)
    return document


def _change(draw, inside, key, change, places):
    value = inside[key]
    if change == "drop":
        del inside[key]
    elif change == "more" and isinstance(inside, list):
        inside[key : key + 1] = [value] * draw(some.integers(2, 4))
    elif change in ("more", "name"):
        name = draw(NAMES) if isinstance(inside, dict) else key
        inside[name] = inside.pop(key) if change == "name" and isinstance(inside, dict) else draw(VALUES)
    else:
        other, there = places[draw(some.integers(0, len(places) - 1))]
        kinds = (str(value)[:100], [value], {"x": value}, None, True, copy.deepcopy(other[there]))
        inside[key] = draw({"value": VALUES, "number": NUMBERS, "kind": some.sampled_from(kinds)}[change])


def _places(document):
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in list(items):
        yield document, key
        yield from _places(value)


HOW = ("torn", "put in", "altered", "nested", "utf-16", "anything")


@some.composite
def spoiled(draw, content):
    """The bytes torn, altered, in another encoding, or exchanged for any others; or as they are."""
    how = draw(some.sampled_from(("", *HOW)))
    at = draw(some.integers(0, len(content)))
    before, after = content[:at], content[at:]
    return {
        "": lambda: content,
        "torn": lambda: before,
        "put in": lambda: before + draw(some.binary(max_size=8)) + after,
        "altered": lambda: before + draw(some.binary(min_size=1, max_size=1)) + after[1:],
        "nested": lambda: before + b"[" * 100_000 + after,
        "utf-16": lambda: content.decode(errors="replace").encode("utf-16"),
        "anything": lambda: draw(some.binary(max_size=60)),
    }[how]()


def hurt(document):
    """A JSON document's bytes: with changes mostly, or spoiled, or as it is."""
    texts = mutated(document).map(text_of)
    return some.one_of(texts, texts, texts.flatmap(spoiled), some.just(text_of(document)))


# --- files ----------------------------------------------------------------------------------------------------------

PARAMS = {
    "lr": {"kind": "loguniform", "lower": 1e-4, "upper": 0.1},
    "act": {"kind": "choice", "categories": ["relu", "gelu"]},
    "deep/k": {"kind": "randint", "lower": 1, "upper": 5},
    "b": 5,
}
SPACE = {"path": "/somewhere/quadratic.py", "sha256": "0" * 64, "params": PARAMS, "mutable": []}
FACTS = {"best_rule": "the best", "space": SPACE, "versions": {"python": "3.11"}, "git_commit": "", "created": 1e9}
DATA = {"notice": "a sample of the data", "train": 100}


def options_of(name, **other):
    """The options of a search."""
    return asdict(Experiment(space="quadratic", name=name, results="/anywhere", max_epochs=9, **other))


@some.composite
def options(draw, name="x"):
    """Options of an experiment: each as its kind has it, some wrong, some as large as they may be."""
    chosen = options_of(name, scheduler=draw(some.sampled_from(["asha", "median", "hyperband", "fifo", "pbt"])))
    for _ in range(draw(some.integers(0, 3))):
        field = draw(some.sampled_from(sorted(chosen)))
        chosen[field] = draw(some.sampled_from(CHOICES[field]) if CHOICES[field] else some.one_of(NUMBERS, NAMES))
    if draw(some.booleans()):
        chosen["max_epochs"] = draw(some.sampled_from([1, 3, 27, 1000, 1_000_000]))
    return chosen


@some.composite
def experiment_files(draw, name="x"):
    """experiment.json and its copy; their checksums agree, mostly."""
    document = {"format": FORMAT, "options": draw(options(name)), **FACTS, "data": DATA}
    document = draw(mutated(document)) if draw(some.booleans()) else document
    if draw(some.integers(0, 7)) and isinstance(document, dict):
        with contextlib.suppress(ValueError, RecursionError, TypeError):
            document = {**document, "sha256": digest(json.loads(text_of(document)))}
    content = text_of(document, draw(some.booleans()))
    content = content if draw(some.booleans()) else draw(spoiled(content))
    files = {FILE: content, COPY: draw(spoiled(content))}
    gone = draw(some.sampled_from([None, None, COPY, COPY, FILE]))
    return {name: content for name, content in files.items() if name != gone}


METRICS = some.dictionaries(
    some.sampled_from(["loss", "loss", "accuracy", "rss_bytes", "cpu_percent", "train_s", "odd"]),
    some.one_of(SHOWN, SHOWN, SHOWN, some.sampled_from(["nan", "inf", "-inf", "much", True, None])),
    min_size=1,
    max_size=3,
)
CONFIGS = some.fixed_dictionaries(
    {"lr": some.one_of(some.floats(1e-4, 1), SHOWN), "act": some.sampled_from(["relu", "gelu", 5, None])},
    optional={"deep": some.fixed_dictionaries({"k": some.integers(1, 5)}), "b": VALUES},
)


@some.composite
def events(draw):
    """A search's events, in the order in which one would be journaled."""
    drawn = [{"time": 1e9, "event": "experiment_started", "name": "x"}]
    clock = 1e9
    for trial in TRIALS[: draw(some.sampled_from([3, 3, 3, 2, 1, 0]))]:
        of = {"trial": trial}
        drawn.append(
            {"time": clock, "event": "trial_started", **of, "config": draw(CONFIGS), "resources": {"CPU": 1.0}}
            | {"node": "n", "pid": 5}
        )
        for epoch in range(1, 1 + draw(some.integers(0, 3))):
            clock += 1.5
            report = {"time": clock, "event": "report", **of, "epoch": epoch, "metrics": draw(METRICS)}
            if draw(some.booleans()):
                report["checkpoint"] = f"ray/{trial}/checkpoint_{epoch:06}"
            drawn.append(report)
            action = draw(some.sampled_from(["continue", "stop", "pause"]))
            drawn.append(
                {"time": clock, "event": "decision", **of, "epoch": epoch, "rung": epoch, "bracket": 0}
                | {"value": report["metrics"].get("loss"), "cutoff": draw(some.none() | some.floats(0, 9))}
                | {"recorded": epoch, "action": action, "reason": "why"}
            )
        end = draw(some.integers(0, 3))
        if end == 1:
            drawn.append({"time": clock, "event": "trial_failed", **of, "error": MARKUP, "kind": "user"})
        if end > 1:
            status = draw(some.sampled_from(["completed", "pruned", "failed", "interrupted", MARKUP]))
            drawn.append({"time": clock, "event": "trial_ended", **of, "status": status, "reason": MARKUP})
    if draw(some.sampled_from([False, False, False, True])):  # enough trials for an importance
        drawn += [{**e, "trial": f"{copy}{e['trial']}", "config": {"lr": copy}} for copy in range(4) for e in drawn[1:]]
    if draw(some.booleans()):
        state = draw(some.sampled_from(["finished", "interrupted", MARKUP]))
        drawn.append({"time": clock, "event": "experiment_finished", "state": state, "reason": MARKUP})
    return drawn


@some.composite
def journals(draw):
    """The bytes of a journal: events with changes, sealed or not, repeated or out of order, torn or not."""
    written = draw(events())
    how = draw(some.sampled_from(["", "", "", "changed", "changed", "moved", "unsealed", "mixed", "spoiled"]))
    if how not in ("", "spoiled"):
        written = draw(mutated(written, 4))
    if how == "moved":
        written = draw(some.permutations(written))
    if draw(some.integers(0, 15)) and written and isinstance(written[0], dict):
        written = [{**written[0], "format": FORMAT}, *written[1:]]
    lines = [text_of(event) for event in written]
    lines = [
        line + b"\n" if how == "unsealed" or (how == "mixed" and number % 2) else sealed(line)
        for number, line in enumerate(lines)
    ]
    content = b"".join(lines)
    return draw(spoiled(content)) if how == "spoiled" else content


AUDIT = {
    "winner": "00000",
    "seed": 0,
    "sample": ["00001", "00002"],
    "trials": [
        {"trial": "00001", "stopped": 1, "epochs": 9, "best": 0.5, "best_epoch": 3, "beats": False}
        | {"differs": "", "seconds": 2.5}
    ],
}
audits = hurt(AUDIT)


@some.composite
def states(draw):
    """A checkpoint's state.pt: a zip as torch.save writes it, or one with other records, packed, torn or altered."""
    file = io.BytesIO()
    packed = draw(
        some.sampled_from([zipfile.ZIP_STORED] * 3 + [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    )
    with zipfile.ZipFile(file, "w", packed) as archive:
        for name in draw(some.lists(some.one_of(some.just("state/data.pkl"), NAMES), max_size=3, unique=True)):
            size = draw(some.sampled_from([0, 10, 1000, 1000, 3_000_000]))
            archive.writestr(zipfile.ZipInfo(name.encode(errors="replace").decode() or "x"), b"x" * size, packed)
    content = file.getvalue()
    for _ in range(draw(some.integers(0, 2))):  # of the directory at its end most of all
        at = draw(some.integers(max(0, len(content) - 120), len(content)))
        content = content[:at] + draw(some.binary(min_size=1, max_size=4)) + content[at + 1 :]
    return draw(spoiled(content)) if draw(some.booleans()) else content


# --- folders --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Thing:
    """What may lie where a file is expected: a pipe, a folder, a socket, a link (to `target`), nothing readable."""

    kind: str
    target: str = ""


def things(path, outside):
    """Things in the place of a file; `outside` is a folder with a file of that path, which nobody here may read."""
    return some.sampled_from(
        [Thing("pipe"), Thing("folder"), Thing("socket"), Thing("empty"), Thing("link", str(outside / path))]
        + [Thing("link", "/dev/zero"), Thing("link", path.rpartition("/")[2]), Thing("link", "nowhere")]
    )


@some.composite
def with_things(draw, files, outside, folders=()):
    """The folder with other things in the place of up to two of its files or folders."""
    files = dict(files)
    for _ in range(draw(some.sampled_from([0, 0, 0, 1, 1, 2]))):
        path = draw(some.sampled_from([*sorted(files), *folders]))
        if any(isinstance(thing, Thing) and path.startswith(f"{place}/") for place, thing in files.items()):
            continue
        for below in [each for each in files if each.startswith(f"{path}/")]:
            del files[below]
        files[path] = draw(things(path, outside))
    return files


def _with_sum(options):
    document = {"format": FORMAT, "options": options, **FACTS, "data": DATA}
    return {**document, "sha256": digest(document)}


def _sealed(written):
    first, *others = written
    return b"".join(sealed(text_of(event)) for event in ({**first, "format": FORMAT}, *others))


@some.composite
def experiments(draw, outside, name="x"):
    """An experiment's folder: its options, its journal, what lies beside them or all of it is what none should be."""
    which = draw(some.sampled_from(["options", "journal", "journal", "beside", "all"]))
    files = {FILE: text_of(_with_sum(options_of(name)))}
    if which in ("options", "all"):
        files = draw(experiment_files(name))
    files["journal.jsonl"] = draw(journals() if which in ("journal", "all") else events().map(_sealed))
    more = {
        "audit.json": audits,
        ".driver": some.sampled_from([f"process 1 on {socket.gethostname()}", "process 1 on x", "\udcff" * 9]).map(
            lambda text: text.encode(errors="surrogatepass")
        ),
        ".lock": some.just(b""),
        "best/config.json": some.just(b"{}"),
        "ray/00000/stdout": some.binary(max_size=30),
        "ray/00000/checkpoint_000001/state.pt": some.just(b"x"),
        "report.html": some.just(b"x"),
        "trials.csv": some.just(b"x"),
    }
    if which in ("beside", "all"):
        for path in sorted(draw(some.sets(some.sampled_from(sorted(more)), max_size=4))):
            files[path] = draw(more[path])
    elif which == "journal":
        return files
    folders = ("best", "ray", "ray/00000", "ray/00000/checkpoint_000001")
    return draw(with_things(files, outside, folders))


RESULT = {
    "loss": 0.5, "training_iteration": 1, "trial_id": "a_0", "timestamp": 1_000_000_000, "time_this_iter_s": 0.5,
    "time_total_s": 0.5, "pid": 5, "node_ip": "127.0.0.1", "done": False, "config": {"x": 1}, "date": "2026-01-01",
}  # fmt: skip
SNAPSHOT = {"trial_data": [[json.dumps({"trial_id": "a_0", "status": "TERMINATED"}), "{}"]], "runner_data": {}}


@some.composite
def ray_folders(draw, outside):
    """A folder as plain Ray Tune leaves it."""
    state = "experiment_state-2026-01-01_00-00-00.json"
    files = {state: draw(hurt(SNAPSHOT))}
    if draw(some.booleans()):
        inner = {"trial_id": "a_0", "status": "RUNNING"}
        rows = [[text_of(draw(mutated(inner))).decode(errors="replace"), "{}"], draw(VALUES)]
        files[state] = text_of({"trial_data": rows})
    for trial in ("trial_0", "trial_1")[: draw(some.integers(0, 2))]:
        rows = [{**RESULT, "training_iteration": n, **draw(METRICS)} for n in range(1, 1 + draw(some.integers(0, 3)))]
        rows = draw(mutated(rows, 4)) if draw(some.booleans()) else rows
        lines = some.just(b"".join(text_of(row) + b"\n" for row in rows))
        more = {
            "params.json": hurt({"x": 1, "lr": 0.1, "deep": {"k": 2}}),
            "result.json": lines | lines.flatmap(spoiled),
            "error.txt": some.binary(max_size=30),
        }
        for name in sorted(draw(some.sets(some.sampled_from(sorted(more)), min_size=1))):
            files[f"{trial}/{name}"] = draw(more[name])
    if draw(some.integers(0, 7)) == 0:
        files["tuner.pkl"] = draw(some.binary(max_size=30))
    return draw(with_things(files, outside, ("trial_0", "trial_1")))


def entry(name):
    """A search in the service's queue."""
    arguments = ["--space=quadratic", "--num-samples=3", f"--name={name}"]
    row = {"name": name, "options": options_of(name), "arguments": arguments, "since": 5.0, "phase": "queued"}
    return row | {"job": "", "message": "", "submitted": 0.0}


@some.composite
def queues(draw):
    """Entries of the service's queue: name of the file -> content."""
    names = draw(some.lists(some.sampled_from(["a", "b", "c", "odd name", "x" * 100]), max_size=3, unique=True))
    files = {}
    for name in names:
        row = entry(name if name.isalnum() and len(name) < 100 else "a")
        row |= {"phase": draw(some.sampled_from(["queued", "submitted", "stopping", "stopped", "failed", "done"]))}
        files[f"{name}.json"] = draw(hurt(row))
    return files


@some.composite
def clusters(draw):
    """cluster.json of the service's state."""
    head = {"pid": os.getpid(), "born": 5.0, "port": 9, "folder": "/tmp/tuner-x", "token": "/etc/passwd"}
    return draw(hurt(head))


def put(folder: Path, files) -> Path:
    """Writes a folder."""
    folder.mkdir(parents=True)
    for path, content in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            place.write_bytes(content)
        elif content.kind == "pipe":
            os.mkfifo(place)
        elif content.kind == "folder":
            place.mkdir()
        elif content.kind == "empty":
            place.touch()
        elif content.kind == "link":
            place.symlink_to(content.target)
        else:
            _socket(place)
    return folder


def _socket(place):
    """A socket's name in the file system; its path may be longer than a socket's address can be."""
    here = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as each:
            each.bind(f"/proc/self/fd/{here}/{place.name}")
    finally:
        os.close(here)


def elsewhere(folder: Path) -> Path:
    """A folder with a whole file of every path that a link above may replace, each with the sentinel in it."""
    name, here = folder.name, {"created": 1e9, "space": {"params": {"lr": {}}}, "data": {"notice": SENTINEL}}
    document = {"format": FORMAT, "options": options_of(name), **here}
    whole = text_of({**document, "sha256": digest(document)})
    started = {"time": 1e9, "event": "trial_started", "trial": "00000", "config": {"x": SENTINEL}, "resources": {}}
    report = {"time": 1e9, "event": "report", "trial": "00000", "epoch": 1, "metrics": {"loss": 0.1}}
    lines = [
        {"time": 1e9, "event": "experiment_started", "name": SENTINEL, "format": FORMAT},
        {**started, "node": SENTINEL},
        report,
    ]
    word = SENTINEL.encode()
    trial = {
        "params.json": text_of({"x": SENTINEL}),
        "result.json": text_of({**RESULT, "node_ip": SENTINEL}) + b"\n",
        "error.txt": word,
    }
    files = {
        FILE: whole, COPY: whole, "journal.jsonl": b"".join(sealed(text_of(line)) for line in lines),
        "audit.json": text_of({**AUDIT, "trials": [{**AUDIT["trials"][0], "differs": SENTINEL}]}),
        ".driver": word, ".lock": word, "best/config.json": word, "report.html": word, "trials.csv": word,
        "ray/00000/stdout": word, "ray/00000/checkpoint_000001/state.pt": word, "tuner.pkl": word, "token": word,
        "experiment_state-2026-01-01_00-00-00.json": text_of({"trial_data": []}),
        "cluster.json": word, "queue/a.json": text_of({**entry("a"), "message": SENTINEL}),
        "queue/b.json": text_of({**entry("b"), "message": SENTINEL}),
    }  # fmt: skip
    files |= {f"{place}/{path}": content for place in ("trial_0", "trial_1") for path, content in trial.items()}
    return put(folder, files)


def tree(folder: Path):
    """What lies in a folder and below, links not followed: path -> kind, size and time of its last change."""
    entries = {}
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(place, name)
            is_at = os.lstat(path)
            entries[path] = (is_at.st_mode, is_at.st_ino, is_at.st_size, is_at.st_mtime_ns)
    return entries


def remove(folder: Path):
    """Removes a folder, whatever is in it; a link in it stays a link."""
    shutil.rmtree(folder)
