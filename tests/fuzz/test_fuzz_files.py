"""Whatever one file holds: its readers say what is wrong in one line, agree with each other, and read nothing else."""

import contextlib
from dataclasses import replace
from functools import partial

import pytest
import strategies
import world as worlds
from fuzzing import TIERS

from tuner import gpus
from tuner.errors import RequestError
from tuner.record.checkpoints import damage
from tuner.record.journal import Journal
from tuner.record.reading import Reading, read, scan
from tuner.record.records import Folding, TrialRecord
from tuner.record.saved_experiment import COPY, FILE, load_experiment
from tuner.spec.experiment import Experiment
from tuner.views.audit_record import read_audit


@pytest.fixture
def holding(tmp_path):
    """`with holding(files) as folder`: a folder of these, beside one that nobody may read."""
    outside = strategies.elsewhere(tmp_path / "outside")

    @contextlib.contextmanager
    def contents_hold(files, may_write=False):
        folder = strategies.put(tmp_path / "results" / "x", files)
        before = strategies.tree(outside if may_write else tmp_path)
        try:
            with worlds.little_memory():
                yield folder
            assert strategies.tree(outside if may_write else tmp_path) == before
        finally:
            strategies.remove(folder)

    contents_hold.outside = outside
    return contents_hold


@pytest.mark.parametrize("tier", TIERS)
def test_a_journal(holding, tier):
    def holds(content):
        with holding({"journal.jsonl": content}, may_write=True) as folder:
            path = folder / "journal.jsonl"
            if worlds.documented(lambda: scan(path)) is None:  # of another format
                for reader in (read, Journal, lambda path: Reading(path).read_on().records()):
                    assert worlds.documented(partial(reader, path)) is None
                assert path.read_bytes() == content
                return
            scanned = scan(path)
            whole = worlds.documented(lambda: read(path))
            assert (whole is None) == bool(scanned.damage)
            records = worlds.documented(Reading(path).read_on)
            assert (records is None) == bool(scanned.damage)  # what one reader takes the others take
            for trial in gpus.TrialScanner().running(folder.parent):
                assert isinstance(gpus.trial_row(*trial), tuple)
            before = Folding(scanned.events).records()
            book = Journal(path)  # cuts off what cannot be read, and keeps a copy of it
            book.write("experiment_resumed", name="x")
            book.close()
            assert strip(Reading(path).read_on().records()) == strip(before)
            copies = [each.read_bytes() for each in folder.glob("journal.jsonl.damaged-*")]
            assert copies == ([content] if scanned.damage else [])

    tier.check("journals", strategies.journals(), holds)


def strip(records):
    """What can be compared: NaN is not itself, and a resume leaves no process."""
    assert all(isinstance(record, TrialRecord) for record in records)
    return repr([replace(record, pid=None) for record in records])


@pytest.mark.parametrize("tier", TIERS)
def test_the_options(holding, tier):
    def holds(files):
        with holding(files) as folder:
            try:
                experiment, facts = loaded = load_experiment(folder)
            except RequestError as error:
                assert strategies.SENTINEL not in str(error) and str(error).isprintable()
                is_there = any(isinstance(files.get(name), bytes) for name in (FILE, COPY))
                assert FILE in str(error) or not is_there, error
                return
            assert isinstance(experiment, Experiment) and isinstance(facts, dict)
            assert len(experiment.rungs()) <= 1000
            assert strategies.SENTINEL not in str(loaded)

    names = strategies.experiment_files()
    tier.check("options", names.flatmap(lambda files: strategies.with_things(files, holding.outside)), holds)


@pytest.mark.parametrize("tier", TIERS)
def test_an_audit(holding, tier):
    def holds(files):
        with holding(files) as folder:
            audit = worlds.documented(lambda: read_audit(folder))
            assert strategies.SENTINEL not in str(audit)

    audits = strategies.audits.map(lambda content: {"audit.json": content})
    tier.check("audits", audits.flatmap(lambda files: strategies.with_things(files, holding.outside)), holds)


@pytest.mark.parametrize("tier", TIERS)
def test_a_checkpoint(holding, tier):
    def holds(files):
        with holding(files) as folder:
            why = damage(folder)
            assert isinstance(why, str) and strategies.SENTINEL not in why

    states = strategies.states().map(lambda content: {"state.pt": content})
    tier.check("checkpoints", states.flatmap(lambda files: strategies.with_things(files, holding.outside)), holds)
