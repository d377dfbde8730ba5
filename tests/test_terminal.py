"""What an experiment holds never steers the terminal of whoever looks at it."""

import logging

from tuner import gpus, report
from tuner.errors import PrintableFormatter
from tuner.record.saved_experiment import load_experiment, save_experiment
from tuner.spec.experiment import Experiment

RAYS = """+---+---+---+-------+
| a | b | c | d\x1b[2J |
|---+---+---+-------|
| 1 | 2 | 3 | e\x9b    |
+---+---+---+-------+"""
STEERING = set("\x1b\x07\x9b\r\u202e")


def test_a_search_prints_no_control_character_of_its_spaces(search, capsys):
    ran = search("escapes.py")
    assert ran.code == 0 and not STEERING & set(ran.out + ran.err)
    assert r"value\x1b[2J" in ran.out and r"no\x1b[2J" in ran.out  # the table and the ending
    assert report.main([ran.folder.name, "--results", str(ran.folder.parent)]) == 0
    assert gpus.main(["--results", str(ran.folder.parent)]) == 0
    again = search(None, "--resume", "test", "--dry-run")
    assert again.code == 0 and not STEERING & set(again.out + again.err + capsys.readouterr().out)


def test_a_warning_about_a_folder_prints_none(tmp_path, capfd):
    folder = tmp_path / "x\x1b[2J"
    folder.mkdir()
    save_experiment(Experiment(), folder, {})
    (folder / "experiment.json").unlink()
    record = logging.makeLogRecord({"msg": "%s\n%s", "args": (folder, "\x9b")})
    assert PrintableFormatter().format(record) == f"{tmp_path}/x\\x1b[2J\n\\x9b"
    logger = logging.getLogger("tuner.record.saved_experiment")
    before, logger.propagate = logger.propagate, False  # without pytest's handlers, as in a terminal
    try:
        load_experiment(folder)
    finally:
        logger.propagate = before
    assert "its copy" in (output := capfd.readouterr().err) and not STEERING & set(output)


def test_the_live_table_keeps_its_own_control_sequences_alone(monkeypatch, capsys):
    from tuner.engine.controller.halt import Halt
    from tuner.tuning.output import progress
    from tuner.tuning.tracker import Tracker

    tracker = Tracker(Experiment())
    table = progress.ProgressTable(Experiment(), 1, tracker, Halt(), lambda *_: "wait\x1b[2J", {})
    monkeypatch.setattr(table, "_progress_str", lambda *_: RAYS, raising=False)
    table._in_place = True
    for _ in range(2):
        table.report([], False)
    output = capsys.readouterr().out
    assert output.count("\x1b") == 3 and output.count("\r\x1b[7A\x1b[J") == 1
    assert output.count("\r") == 2 and not (STEERING - {"\x1b", "\r"}) & set(output)
