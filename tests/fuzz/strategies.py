"""What a folder may hold that somebody else made: valid files, and what a hostile writer or a torn disk makes of them.

A folder is a dictionary: path -> its content, or the name of a thing that is no such file. `put` writes it.
"""

import contextlib
import copy
import io
import itertools
import json
import math
import os
import socket
import stat
import zipfile
from dataclasses import asdict
from pathlib import Path

import hypothesis.strategies as some
from journals import lines_of

from tuner.record.format import FORMAT
from tuner.record.lines import Chain
from tuner.record.saved_experiment import COPY, FILE, digest
from tuner.spec.experiment import Experiment

SENTINEL = "s3ntinel-of-a-file-elsewhere"
MARKUP = "</script><img src=x onerror=alert(1)>"
FOREVER = "@@"  # what no JSON writer writes: `@@deep900@@`, `@@digits5000@@`
TRIALS = ("00000", "00001", "00002")
EPOCHS = [9] * 6 + [1, 27, 1000, 1_000_000]  # the most make analyses so expensive that a busy machine ends them


ODD = [0, -0.0, 1.5, 2**31, 2**53 + 1, 2**63, 2**64, 10**18, -(10**18), 10**299, 10**400, -(10**400), 1e308, -1e308]
ODD += [1.7e308, -1.7e308, 5e-324, math.nan, math.inf, -math.inf, 1e15, 1_000_000, 999_999]
NUMBERS = some.integers(-2, 12) | some.floats() | some.sampled_from(ODD)
FIXED = ["", ".", "..", "../../elsewhere", "/etc/passwd", "a/b", "a\0b", "\x1b[31m\x1b]0;x\x07", "\u202e", "\udcff"]
FIXED += ["nan", "inf", "-inf", "1e400", "True", "x" * 300, "x" * 20_000, "\n", "🙂", MARKUP]
FIXED += ["loss", "00000", "00001", "stop", "pause", "completed", "pruned", "lr", "rss_bytes", "cpu_percent"]
DEEP, DIGITS = (150, 400, 1200, 100_000), (310, 5000)
FIXED += [f"{FOREVER}deep{n}{FOREVER}" for n in DEEP] + [f"{FOREVER}digits{n}{FOREVER}" for n in DIGITS]
NAMES = some.text(max_size=6) | some.sampled_from(FIXED)
SCALARS = some.one_of(some.none(), some.booleans(), NUMBERS, NAMES)
LISTS = some.lists(SCALARS, max_size=3)
VALUES = SCALARS | LISTS | some.dictionaries(NAMES, SCALARS | LISTS, max_size=2)


def text_of(document, is_ascii=True):
    """JSON, with what Python cannot nest or print put in as text."""
    text = json.dumps(document, ensure_ascii=is_ascii).encode(errors="surrogatepass")
    if FOREVER.encode() in text:
        for n in DEEP:
            text = text.replace(f'"{FOREVER}deep{n}{FOREVER}"'.encode(), b"[" * n + b"]" * n)
        for n in DIGITS:
            text = text.replace(f'"{FOREVER}digits{n}{FOREVER}"'.encode(), b"9" * n)
    return text


@some.composite
def mutated(draw, document, most=3):
    """The document with up to so many changes, anywhere in it."""
    document = copy.deepcopy(document)
    for _ in range(draw(some.integers(0, most))):
        entries = list(_entries(document)) or [({"": None}, "")]
        inside, key = draw(some.sampled_from(entries))
        value, (other, there) = inside[key], draw(some.sampled_from(entries))
        kinds = (str(value)[:100], [value], {"x": value}, None, True, copy.deepcopy(other[there]))
        change = draw(some.sampled_from(["value", "value", "number", "kind", "drop", "name", "more"]))
        if change == "drop":
            del inside[key]
        elif change == "more" and isinstance(inside, list):
            inside[key : key + 1] = [value] * draw(some.integers(2, 4))
        elif change == "more" or (change == "name" and isinstance(inside, dict)):
            inside[draw(NAMES)] = inside.pop(key) if change == "name" else draw(VALUES)
        else:
            inside[key] = draw({"number": NUMBERS, "kind": some.sampled_from(kinds)}.get(change, VALUES))
    return document


def _entries(document):
    """(container, key) of each value in a document."""
    keys = document if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    for key in list(keys):
        yield document, key
        yield from _entries(document[key])


@some.composite
def spoiled(draw, content):
    """The bytes torn, altered, in another encoding, or exchanged for any others; or as they are."""
    how = draw(some.sampled_from(("",) * 5 + ("torn", "put in", "altered", "nested", "utf-16", "anything")))
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
    """A JSON document's bytes: with changes mostly, maybe spoiled too."""
    return mutated(document).map(text_of).flatmap(spoiled)


PARAMS = {
    "lr": {"kind": "loguniform", "lower": 1e-4, "upper": 0.1},
    "act": {"kind": "choice", "categories": ["relu", "gelu"]},
    "deep/k": {"kind": "randint", "lower": 1, "upper": 5},
    "b": 5,
}
SPACE = {"path": "/somewhere/quadratic.py", "sha256": "0" * 64, "params": PARAMS, "mutable": []}
FACTS = {"best_rule": "the best", "space": SPACE, "versions": {"python": "3.11"}, "git_commit": "", "created": 1e9}


def options_of(name, **other):
    return asdict(Experiment(**{"space": "quadratic", "name": name, "results": "/anywhere", "max_epochs": 9, **other}))


def with_sum(document):
    return {**document, "sha256": digest(json.loads(text_of(document)))}


def saved(name, word, **other):
    """What experiment.json has, without its checksum."""
    return {"format": FORMAT, "options": options_of(name, **other), **FACTS, "data": {"notice": word, "train": 100}}


@some.composite
def experiment_files(draw, name="x"):
    """experiment.json and its copy; their checksums agree, mostly."""
    scheduler = draw(some.sampled_from(["asha", "median", "hyperband", "fifo", "pbt"]))
    document = saved(name, "a sample", scheduler=scheduler, max_epochs=draw(some.sampled_from(EPOCHS)))
    document["options"] = draw(mutated(document["options"]) | some.just(document["options"]))
    document = draw(mutated(document) | some.just(document))
    with contextlib.suppress(ValueError, RecursionError, TypeError, AttributeError):
        document = with_sum(document) if draw(some.integers(0, 7)) else document
    content = text_of(document, draw(some.booleans()))
    gone = draw(some.sampled_from([None, None, COPY, COPY, FILE]))
    return {name: draw(spoiled(content)) for name in (FILE, COPY) if name != gone}


def events_of(word):
    """A search's events: one trial completed, one was pruned, one failed; `word` stands in its texts."""
    events = [{"time": 1e9, "event": "experiment_started", "name": "x", "format": FORMAT}]
    for number, trial in enumerate(TRIALS):
        of = {"time": 1e9 + number, "trial": trial}
        config = {"lr": 0.01 * (number + 1), "act": word, "deep": {"k": number}, "b": 5}
        events.append({**of, "event": "trial_started", "config": config, "resources": {"CPU": 1}, "node": word})
        for epoch in range(1, 3 - number % 2):
            metrics = {"loss": 0.5 / epoch + number, "accuracy": 0.5, "rss_bytes": 1e9, "cpu_percent": 50, "train_s": 1}
            events.append({**of, "event": "report", "epoch": epoch, "metrics": metrics})
            events[-1]["checkpoint"] = f"ray/{trial}/checkpoint_{epoch:06}"
            decision = {"value": metrics["loss"], "cutoff": 0.4, "recorded": number, "reason": word}
            action = ("continue", "stop", "pause")[number]
            events.append({**of, "event": "decision", "epoch": epoch, "rung": epoch, "bracket": 0, "action": action})
            events[-1] |= decision
    events.append({"time": 1e9, "event": "trial_failed", "trial": TRIALS[2], "error": word, "kind": "user"})
    for trial, status in zip(TRIALS, ("completed", "pruned", "failed"), strict=True):
        events.append({"time": 2e9, "event": "trial_ended", "trial": trial, "status": status, "reason": word})
    return [*events, {"time": 2e9, "event": "experiment_finished", "state": "finished", "reason": word}]


SHOWN = some.floats(0, 10) | NUMBERS | some.sampled_from(["nan", "inf", None, True, "much"])
USED = some.sampled_from(["loss", "loss", "accuracy", "rss_bytes", "train_s", "odd"])
METRICS = some.dictionaries(USED, SHOWN, min_size=1, max_size=3)
CONFIGS = some.fixed_dictionaries({}, optional={"lr": SHOWN, "act": SHOWN, "b": VALUES, "CPU": VALUES, "GPU": SHOWN})


@some.composite
def journals(draw):
    """The bytes of a journal: events with changes, sealed or not, of more trials or out of order, torn or not."""
    events = events_of(draw(NAMES | some.just(MARKUP)))
    for event in events:
        for name, odd in (("metrics", METRICS), ("config", CONFIGS), ("resources", CONFIGS)):
            event.update({name: event[name] | draw(odd)} if name in event else {})
    events = draw(mutated(events, 6) | some.just(events) | some.just(events))
    events = events[: draw(some.sampled_from([None, None, None, None, 1, 5, 9]))]
    if draw(some.sampled_from([False, False, False, True])):  # enough trials for an importance
        trials = [each for each in events[1:] if isinstance(each, dict)]
        events += [{**e, "trial": f"{n}{e.get('trial')}", "config": {"lr": n}} for n in range(4) for e in trials]
    how = draw(some.sampled_from(["", "", "", "", "moved", "unsealed", "mixed"]))
    if how == "moved":
        events = draw(some.permutations(events))
    is_sealed = {"unsealed": [False], "mixed": [True, False]}.get(how, [True])
    lines, chain = zip(map(text_of, events), itertools.cycle(is_sealed), strict=False), Chain()
    return draw(spoiled(b"".join(chain.line_of(line) if seal else line + b"\n" for line, seal in lines)))


AUDITED = {"trial": "00001", "stopped": 1, "epochs": 9, "best": 0.5, "best_epoch": 3, "beats": False, "seconds": 2.5}
AUDIT = {"winner": "00000", "seed": 0, "sample": ["00001", "00002"], "trials": [{**AUDITED, "differs": ""}]}
audits = hurt(AUDIT)


@some.composite
def states(draw):
    """A checkpoint's state.pt: a zip as torch.save writes it, or one with other records, packed, torn or altered."""
    file = io.BytesIO()
    packed = draw(some.sampled_from([zipfile.ZIP_STORED] * 3 + [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA]))
    with zipfile.ZipFile(file, "w", packed) as archive:
        for name in draw(some.lists(some.one_of(some.just("state/data.pkl"), NAMES), max_size=3, unique=True)):
            size = draw(some.sampled_from([0, 10, 1000, 1000, 3_000_000]))
            archive.writestr(zipfile.ZipInfo(name.encode(errors="replace").decode() or "x"), b"x" * size, packed)
    content = file.getvalue()
    for _ in range(draw(some.integers(0, 2))):  # of the directory at its end most of all
        at = draw(some.integers(max(0, len(content) - 120), len(content)))
        content = content[:at] + draw(some.binary(min_size=1, max_size=4)) + content[at + 1 :]
    return draw(spoiled(content)) if draw(some.booleans()) else content


@some.composite
def with_things(draw, files, outside):
    """The folder without some of its files, and with other things in the place of up to two files or folders."""
    gone = draw(some.sets(some.sampled_from(sorted(files)), max_size=3)) if len(files) > 2 else ()
    files = {path: content for path, content in files.items() if path not in gone}
    for _ in range(draw(some.sampled_from([0, 0, 0, 1, 1, 2]))):
        folders = {str(each) for path in files for each in Path(path).parents} - {"."}
        path = draw(some.sampled_from([*sorted(files), *sorted(folders)]))
        files = {each: content for each, content in files.items() if not each.startswith(f"{path}/")}
        links = [f"link {target}" for target in (outside / path, "/dev/zero", path.rpartition("/")[2], "nowhere")]
        files[path] = draw(some.sampled_from(["pipe", "folder", "socket", "empty", *links]))
    return files


def whole(name, word):
    """The files of an experiment; `word` stands in each."""
    document, text = text_of(with_sum(saved(name, word))), word.encode()
    paths = (".lock", "best/config.json", "report.html", "trials.csv", "ray/00000/stdout")
    files = dict.fromkeys((*paths, ".driver", "ray/00000/checkpoint_000001/state.pt"), text)
    audit = {**AUDIT, "trials": [{**AUDITED, "differs": word}]}
    files |= {FILE: document, COPY: document, "audit.json": text_of(audit)}
    return files | {"journal.jsonl": lines_of(*events_of(word))}


@some.composite
def experiments(draw, outside, name="x"):
    """An experiment's folder: its options, its journal, what lies beside them or all of it is what none should be."""
    which, files = draw(some.sampled_from(["options", "journal", "journal", "beside", "all"])), whole(name, "plain")
    if which in ("options", "all"):
        files = {path: content for path, content in files.items() if path not in (FILE, COPY)}
        files |= draw(experiment_files(name))
    if which in ("journal", "all"):
        files["journal.jsonl"] = draw(journals())
    if which in ("beside", "all"):
        files["audit.json"] = draw(audits)
        holders = [f"process 1 on {socket.gethostname()}", "process 1 on x", "\udcff" * 9]
        files[".driver"] = draw(some.sampled_from(holders)).encode(errors="surrogatepass")
        files = draw(with_things(files, outside))
    return files


RESULT = {
    "loss": 0.5, "training_iteration": 1, "trial_id": "a_0", "timestamp": 1_000_000_000, "time_this_iter_s": 0.5,
    "time_total_s": 0.5, "pid": 5, "node_ip": "127.0.0.1", "done": False, "config": {"x": 1}, "date": "2026-01-01",
}  # fmt: skip
STATE = "experiment_state-2026-01-01_00-00-00.json"
SNAPSHOT = {"trial_data": [[json.dumps({"trial_id": "a_0", "status": "TERMINATED"}), "{}"]], "runner_data": {}}


@some.composite
def ray_folders(draw, outside):
    """A folder as plain Ray Tune leaves it."""
    inner = draw(mutated({"trial_id": "a_0", "status": "RUNNING"}))
    rows = {"trial_data": [[text_of(inner).decode(errors="replace"), "{}"], draw(VALUES)]}
    files = {"tuner.pkl": b"x", STATE: draw(hurt(SNAPSHOT) | some.just(text_of(rows)))}
    for trial in ("trial_0", "trial_1")[: draw(some.integers(0, 2))]:
        results = draw(mutated([{**RESULT, "training_iteration": n, **draw(METRICS)} for n in (1, 2, 3)], 4))
        files[f"{trial}/result.json"] = draw(spoiled(b"".join(text_of(row) + b"\n" for row in results)))
        files[f"{trial}/params.json"] = draw(hurt({"x": 1, "lr": 0.1, "deep": {"k": 2}}))
        files[f"{trial}/error.txt"] = draw(some.binary(max_size=30))
    return draw(with_things(files, outside))


def entry(name):
    """A search in the service's queue."""
    arguments = ["--space=quadratic", "--num-samples=3", f"--name={name}"]
    row = {"name": name, "options": options_of(name), "arguments": arguments, "since": 5.0, "phase": "queued"}
    return row | {"job": "", "message": "", "submitted": 0.0}


PHASES = some.sampled_from(["queued", "submitted", "stopping", "stopped", "failed", "done"])
# Entries of the service's queue: name of the file -> content.
queues = some.dictionaries(
    some.sampled_from(["a.json", "b.json", "c.json", "odd name.json", "x" * 100 + ".json"]),
    some.tuples(some.sampled_from("abc"), PHASES).flatmap(lambda pair: hurt({**entry(pair[0]), "phase": pair[1]})),
    max_size=3,
)
# cluster.json of the service's state.


def put(folder: Path, files) -> Path:
    """Writes a folder."""
    make = {"pipe": os.mkfifo, "folder": Path.mkdir, "empty": Path.touch}
    make["socket"] = lambda path: os.mknod(path, stat.S_IFSOCK | 0o600)
    folder.mkdir(parents=True)
    for path, content in files.items():
        path = folder / path
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content.startswith("link "):
            path.symlink_to(content.removeprefix("link "))
        else:
            make[content](path)
    return folder


def elsewhere(folder: Path) -> Path:
    """A folder with a whole file of every path that a link above may replace, each with the sentinel in it."""
    word = SENTINEL.encode()
    files = whole(folder.name, SENTINEL) | {STATE: text_of({"trial_data": []})}
    files |= dict.fromkeys(("tuner.pkl", "token", "cluster.json"), word)
    files |= {f"queue/{name}.json": text_of({**entry(name), "message": SENTINEL}) for name in "ab"}
    for trial in ("trial_0", "trial_1"):
        files[f"{trial}/params.json"], files[f"{trial}/error.txt"] = text_of({"x": SENTINEL}), word
        files[f"{trial}/result.json"] = text_of({**RESULT, "node_ip": SENTINEL}) + b"\n"
    return put(folder, files)


def tree(folder: Path):
    """What lies in a folder and below, links not followed: path -> kind, size and time of its last change."""
    found = {os.path.join(at, name) for at, folders, names in os.walk(folder) for name in (*folders, *names)}
    statuses = {path: os.lstat(path) for path in found}
    return {path: (each.st_mode, each.st_ino, each.st_size, each.st_mtime_ns) for path, each in statuses.items()}
