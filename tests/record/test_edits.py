"""However a journal is edited, what is read is the part before the first edited line, and that line is named."""

import random

import pytest
from journals import Journal, lines_of, scan
from tiers import further

from tuner.record.format import FORMAT


def journal(name, num=40):
    """The lines of a search's journal: another one has other times and values, but the same trials and epochs."""
    chance = random.Random(name)
    events = [{"time": chance.random(), "event": "experiment_started", "name": name, "format": FORMAT}]
    for number in range(1, num):
        report = {"event": "report", "trial": f"{number % 3:05d}", "epoch": 1 + number // 3}
        events.append({"time": number + chance.random(), **report, "metrics": {"loss": chance.random()}})
    return lines_of(*events).splitlines(keepends=True)


MINE, OTHER = journal("mine"), journal("other")


def removed(lines, chance):
    at, num = chance.randrange(len(lines)), chance.choice([1, 1, 2, 7])
    return lines[:at] + lines[at + num :]


def repeated(lines, chance):
    at, num = chance.randrange(len(lines)), chance.choice([1, 1, 3, 40])
    return lines[: at + num] + lines[at:]


def swapped(lines, chance):
    one, two = sorted(chance.sample(range(len(lines)), 2))
    return [*lines[:one], lines[two], *lines[one + 1 : two], lines[one], *lines[two + 1 :]]


def moved(lines, chance):
    line = lines.pop(chance.randrange(len(lines)))
    lines.insert(chance.randrange(len(lines) + 1), line)
    return lines


def foreign_line(lines, chance):
    at = chance.randrange(len(lines))
    return [*lines[:at], OTHER[at], *lines[at + chance.choice([0, 1]) :]]


def foreign_tail(lines, chance):
    at = chance.randrange(1, len(lines))
    return lines[:at] + OTHER[at:]


def altered(lines, chance):
    at = chance.randrange(len(lines))
    place = chance.randrange(len(lines[at]))
    lines[at] = lines[at][:place] + bytes([lines[at][place] ^ chance.choice([1, 4, 32, 128])]) + lines[at][place + 1 :]
    return lines


def sealed_alone(lines, chance):
    """As by somebody who knows the checksum, but not that it runs on."""
    at = chance.randrange(1, len(lines))
    return [*lines[:at], lines_of({"time": 1.0, "event": "experiment_resumed"}), *lines[at + 1 :]]


def blank(lines, chance):
    lines.insert(chance.randrange(len(lines)), chance.choice([b"\n", b"\r\n", b"{}\n", b"\0\0\n"]))
    return lines


def joined(lines, chance):
    at = chance.randrange(len(lines) - 1)
    return [*lines[:at], lines[at].rstrip() + lines[at + 1], *lines[at + 2 :]]


def cut(lines, chance):
    text = b"".join(lines)
    return text[: chance.randrange(len(text))].splitlines(keepends=True)


EDITS = (
    removed, repeated, swapped, moved, foreign_line, foreign_tail, altered, sealed_alone, blank, joined, cut,
)  # fmt: skip


@pytest.mark.parametrize("seed", [*range(500), *further(range(500, 5000))])
def test_an_edit_is_harmless_or_named_with_its_line(tmp_path, seed):
    chance = random.Random(seed)
    edited = EDITS[seed % len(EDITS)](list(MINE), chance)
    first = next((n for n, (was, now) in enumerate(zip(MINE, edited, strict=False)) if was != now), len(edited))
    first = min(first, len(MINE))
    path = tmp_path / "j"
    path.write_bytes(b"".join(edited))
    scanned = scan(path)
    assert len(scanned.events) == first and scanned.size == len(b"".join(MINE[:first]))
    is_prefix = b"".join(MINE).startswith(path.read_bytes())
    assert scanned.damage.startswith(f"line {first + 1} (") if not is_prefix else not scanned.damage
    if first:
        book = Journal(path)
        book.write("experiment_resumed", name="mine")
        book.close()
        after = scan(path)
        assert [event["event"] for event in after.events[first:]] == ["experiment_resumed"] and not after.damage
        kept = [copy.read_bytes() for copy in tmp_path.glob("j.damaged-*")]
        assert kept == ([] if is_prefix else [b"".join(edited)])
