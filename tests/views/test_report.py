"""report.html: one file with every figure and table, nothing that is fetched, and what a setting holds as text."""

import json
import re
from dataclasses import replace

import pytest
from test_figures import decided, record, trial

from tuner.errors import RequestError
from tuner.record.saved_experiment import BEGUN, save_experiment
from tuner.report import main
from tuner.spec.experiment import Experiment
from tuner.views.report import page, write_report
from tuner.views.whatif import alternative_rows


@pytest.fixture
def searched(tmp_path):
    trials = [trial(n, [7.0 - n, 6.0 - n], x=n, y=n % 3, act="</script><b>") for n in range(4)]
    pruned = [trial(n, [9.0 + n], "pruned", [decided(1, 9.0 + n, 4.0)], x=n, y=n % 3, act="b") for n in range(4, 8)]
    return record(*trials, *pruned, max_epochs=2, results=str(tmp_path))


def constants(text):
    figures, contours = re.search(r"const FIGURES = (.*), CONTOURS = (.*);\n", text).groups()
    return json.loads(figures), json.loads(contours)


def test_the_file_has_every_pair_of_parameters_and_nothing_fetched(searched):
    text = page(searched)
    figures, contours = constants(text)
    assert set(figures) == {"best", "curves", "rung_values", "history", "parallel", "slices"} and len(contours) == 3
    assert re.findall("<option>(.*?)</option>", text) == ["x, y", "x, act", "y, act"]
    assert "default-src 'none'" in text and "<script src" not in text and "</script><b>" not in text


def test_importance_is_in_the_report_of_a_search_that_is_large_enough_for_it(tmp_path):
    trials = [trial(n, [float(n % 7)], x=n % 7, y=n % 3) for n in range(40)]
    text = page(record(*trials, results=str(tmp_path)))
    figures, _ = constants(text)
    assert figures["importance"]["data"][0]["y"] == ["y", "x"]  # the last one is on top
    assert "<h2>Importance</h2>" in text and "x matters most: shuffling it lowers R² by " in text
    few = page(record(*trials[:19], results=str(tmp_path)))
    assert "importance" not in constants(few)[0] and "<h2>Importance</h2>" not in few


def test_the_state_that_a_journal_names_is_text(searched):
    text = page(replace(searched, state="<img src=x onerror=alert(1)>"))
    assert "<img" not in text.partition("</style>")[2].partition("<script>")[0]


def test_the_report_says_what_the_search_started_from(searched):
    experiment = replace(searched.experiment, start_from=("old", "t.csv"), prior=("x=1",))
    assert f"; started from old, t.csv; guessed x=1; {searched.state}" in page(replace(searched, experiment=experiment))


def test_other_rules_are_a_row_each_and_the_own_ones_come_first(searched, monkeypatch):
    own, *others = alternative_rows(searched)
    assert (own.scheduler, own.grace_period, own.saved) == ("asha (the search's own)", 1, "0 %")
    assert {row.scheduler for row in others} == {"asha", "asha-promotion", "median", "hyperband", "fifo"}
    nothing = next(row for row in others if row.scheduler == "fifo")
    assert (str(nothing.stopped), str(nothing.epochs), nothing.grace_period) == ("0", "12 to 16", None)
    assert "<h2>Replay with other pruning rules</h2>" in page(searched)
    assert alternative_rows(record()) == []  # nothing, and then too much, to replay
    monkeypatch.setattr("tuner.views.whatif.MAX_REPLAYED", 3)
    assert alternative_rows(searched) == []


def test_a_folder_that_breaks_a_view_is_named_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tuner.report.load_named", lambda *given: 1 / 0)
    assert main(["evil\x1b[2J", "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "tuner: error: evil\\x1b[2J cannot be read: ZeroDivisionError: division by zero\n"


def test_a_lost_journal_leaves_the_report_as_it_was(tmp_path, capsys):
    folder = tmp_path / "mine"
    folder.mkdir()
    save_experiment(Experiment(space="quadratic", name="mine", results=str(tmp_path)), folder, {BEGUN: True})
    (folder / "report.html").write_text("good")
    for lose in (lambda: None, (folder / "journal.jsonl").touch):
        lose()
        assert main(["mine", "--results", str(tmp_path)]) == 2
        assert "journal.jsonl is missing or empty: its trials are unknown" in capsys.readouterr().err
    assert (folder / "report.html").read_text() == "good"


def test_a_report_replaces_only_a_report(searched, capsys):
    folder = searched.experiment.folder
    folder.mkdir(exist_ok=True)
    path, other = folder / "report.html", folder / "other.html"
    text = write_report(searched).read_text()
    older = text.replace('<meta name="generator" content="tuner">', "")
    assert text.startswith('<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="generator" ')
    for ours in (text, older):
        path.write_text(ours)
        assert write_report(searched).read_text() == text
    for theirs in ("", "mine", '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>mine</title>'):
        path.write_text(theirs)
        with pytest.raises(RequestError, match="report.html is not tuner's report; rename it, or move it away"):
            write_report(searched)
        assert path.read_text() == theirs
    other.write_text(text)
    path.unlink()
    path.symlink_to(other)
    with pytest.raises(RequestError, match="is not tuner's report"):
        write_report(searched)
    assert path.is_symlink() and other.read_text() == text


def test_an_audit_that_is_damaged_is_a_line_and_keeps_nothing_else_back(searched, tmp_path):
    folder = searched.experiment.folder
    folder.mkdir(exist_ok=True)
    (folder / "audit.json").write_text("[<b>")
    text = page(searched)
    assert "audit.json is damaged" in text and len(constants(text)[0]) == 6


def test_half_a_pair_of_surrogates_is_written(searched, tmp_path):
    (tmp_path / "e").mkdir()
    odd = trial(9, [1.0], x=1, y=1, act="\udcff")
    path = write_report(record(*searched.trials, odd, max_epochs=2, results=str(tmp_path)))
    assert r"\udcff" in path.read_text()
