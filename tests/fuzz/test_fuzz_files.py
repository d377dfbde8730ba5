"""Whatever one file holds: its readers say what is wrong in one line, agree with each other, and read nothing else."""

from dataclasses import replace
from functools import partial

import pytest
import strategies
from fuzzing import TIERS
from holding import documented, holding
from journals import Journal, folding, read, scan

from tuner import gpus
from tuner.errors import RequestError
from tuner.record.checkpoints import damage
from tuner.record.reading import Reading
from tuner.record.records import TrialRecord
from tuner.record.saved_experiment import COPY, FILE, load_experiment
from tuner.serve.jobs.searches import read_queue
from tuner.spec.experiment import Experiment
from tuner.views.audit_record import read_audit


@pytest.mark.parametrize("tier", TIERS)
def test_a_journal(tmp_path, tier):
    def holds(content):
        with holding(tmp_path, {"journal.jsonl": content}, may_write=True) as folder:
            path = folder / "journal.jsonl"
            if documented(lambda: scan(path)) is None:  # of another format
                for reader in (read, Journal, lambda path: Reading(path).read_on().records()):
                    assert documented(partial(reader, path)) is None
                assert path.read_bytes() == content
                return
            scanned = scan(path)
            whole = documented(lambda: read(path))
            assert (whole is None) == bool(scanned.damage)
            records = documented(Reading(path).read_on)
            assert (records is None) == bool(scanned.damage)  # what one reader takes the others take
            for trial in gpus.running(folder.parent, {}):
                assert isinstance(gpus.trial_row(*trial), tuple)
            before = folding(scanned.events).records()
            book = Journal(path)  # cuts off what cannot be read, and keeps a copy of it
            book.write("experiment_resumed", name="x")
            book.close()
            assert strip(Reading(path).read_on().records()) == strip(before)
            copies = [each.read_bytes() for each in folder.glob("journal.jsonl.damaged-*")]
            assert copies == ([content] if scanned.damage else [])

    tier.check(50, strategies.journals(), holds)


def strip(records):
    """What can be compared: NaN is not itself, and a resume leaves no process."""
    assert all(isinstance(record, TrialRecord) for record in records)
    return repr([replace(record, pid=None) for record in records])


def load_options(folder):
    try:
        experiment, facts = load_experiment(folder)
    except RequestError as error:
        is_there = any((folder / name).is_file() and not (folder / name).is_symlink() for name in (FILE, COPY))
        assert str(error).isprintable() and (FILE in str(error) or not is_there), error
        return error
    assert isinstance(experiment, Experiment) and isinstance(facts, dict) and len(experiment.rungs()) <= 1000
    return experiment, facts


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    ("num", "files", "reader"),
    [
        (35, strategies.experiment_files(), load_options),
        (25, strategies.audits.map(lambda content: {"audit.json": content}), partial(documented, read_audit)),
        (22, strategies.states().map(lambda content: {"state.pt": content}), damage),
    ],
)
def test_a_file_in_whose_place_anything_may_be(tmp_path, num, files, reader, tier):
    outside = strategies.elsewhere(tmp_path / "outside")

    def holds(files):
        with holding(tmp_path, files) as folder:
            assert strategies.SENTINEL not in str(reader(folder))

    tier.check(num, files.flatmap(lambda files: strategies.with_things(files, outside)), holds)


@pytest.mark.parametrize("tier", TIERS)
def test_a_queue(tmp_path, tier, capsys):
    """A torn entry is left out with a line."""
    good = strategies.text_of(strategies.entry("good"))

    def holds(files):
        with holding(tmp_path, {**files, "good.json": good}) as folder:
            searches = {search.name: search for search in read_queue(folder)}
        left_out = [line for line in capsys.readouterr().err.splitlines() if "is left out" in line]
        assert len(searches) + len(left_out) == len(files) + 1 and "good" in searches
        assert {f"{name}.json" for name in searches} <= {*files, "good.json"}
        assert all(line.isprintable() for line in left_out)
        for search in searches.values():
            assert f"{search.name}.json".isprintable() and "/" not in search.name
            assert isinstance(search.experiment, Experiment) and isinstance(search.priority, int)

    tier.check(28, strategies.queues, holds)
