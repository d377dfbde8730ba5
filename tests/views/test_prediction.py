"""How well one metric predicts another at a rung: Spearman's correlation, with an interval that keeps its level."""

import csv
import io
import math
import random
from dataclasses import replace

import pytest
from scipy.stats import spearmanr
from test_figures import decided, record, trial

from tuner.core.events import Report
from tuner.record.trial_row import trial_row
from tuner.tuning.answer.writing import trials_csv
from tuner.views.figures.plot import BEST_COLOR
from tuner.views.figures.rung_values import draw_rung_values
from tuner.views.one_trial import draw_metrics
from tuner.views.prediction import Correlation, prediction, rank_correlation
from tuner.views.report import page
from tuner.views.verdict import ending_lines

TWO = {"metric": "accuracy", "mode": "max", "prune_by": "loss"}


def test_the_correlation_is_scipys_also_with_equal_values():
    stream = random.Random(3)
    for number in (4, 7, 30):
        pairs = [(stream.randrange(6), stream.randrange(6)) for _ in range(number)]
        found = rank_correlation(pairs)
        assert found.value == pytest.approx(spearmanr(*zip(*pairs, strict=True)).statistic)
        assert -1 <= found.low <= found.value <= found.high <= 1


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
@pytest.mark.parametrize("number", [15, 40])
def test_the_interval_covers_the_true_correlation_in_95_of_100_samples(rho, number):
    true, stream, hits, times = 6 / math.pi * math.asin(rho / 2), random.Random(f"{rho} {number}"), 0, 1500
    for _ in range(times):
        x = [stream.gauss(0, 1) for _ in range(number)]
        pairs = [(a, rho * a + math.sqrt(1 - rho**2) * stream.gauss(0, 1)) for a in x]
        found = rank_correlation(pairs)
        hits += found.low <= true <= found.high
    assert 0.94 <= hits / times <= 0.97


def test_too_few_trials_and_equal_values_are_unknown_and_a_perfect_order_is_not_certain():
    assert rank_correlation([(1, 1), (2, 2), (3, 3)]) == Correlation(3)
    assert str(rank_correlation([(1, 1), (2, 1), (3, 1), (4, 1)])) == "unknown from 4 trials"
    perfect = rank_correlation([(n, n) for n in range(10)])
    assert perfect.value == perfect.high == 1 and 0.9 < perfect.low < 1
    reverse = rank_correlation([(n, -n) for n in range(10)])
    assert (reverse.low, reverse.high) == (-1, pytest.approx(-perfect.low))


@pytest.fixture
def searched():
    """Ten trials; the five with the smaller loss at rung 1 complete, and have the larger accuracy at their end."""
    trials = []
    for n in range(10):
        completes = n < 5
        made = trial(n, [1.0 + n, 0.5] if completes else [1.0 + n], "completed" if completes else "pruned",
                     [decided(1, 1.0 + n, 6.5, "continue" if completes else "stop")])  # fmt: skip
        first, *rest = made.reports
        first.metrics["accuracy"] = 0.3 - n / 100
        for report in rest:
            report.metrics["accuracy"] = 0.9 - n / 10
        trials.append(made)
    return record(*trials, max_epochs=2, **TWO)


def test_a_rung_has_a_row_that_says_how_well_it_predicts(searched):
    (row,) = prediction(searched)
    assert (row.rung, row.at_rung.value, row.at_rung.trials) == (1, 1, 10)  # smaller losses, larger accuracies
    assert (row.at_end.value, row.at_end.trials) == (1, 5)
    assert prediction(record(*searched.trials)) == []
    text = draw_rung_values(searched)["layout"]["meta"]["text"]
    assert "Values of loss at each rung" in text
    about = "Rank correlation of loss with accuracy (1 = the same order, best first; 95 % interval)"
    what = f"{about}: at rung 1, {row.at_rung} there and {row.at_end}"
    assert what in text and f"prediction  {what}" in "\n".join(ending_lines(searched))
    html = page(searched)
    assert "<h2>How well loss predicts accuracy</h2>" in html and str(row.at_end) in html
    assert "best loss</th>" in html


def test_trials_that_had_passed_a_rung_before_it_was_placed_count_there(searched):
    for each in searched.trials:
        object.__setattr__(each, "decisions", ())
    (row,) = prediction(replace(record(*searched.trials, max_epochs=8, **TWO), length=2))
    assert (row.rung, row.at_rung.value, row.at_rung.trials, row.at_end.trials) == (1, 1, 10, 5)


def test_the_plots_of_a_trial_mark_the_best_epoch_and_never_leave_out_the_searched_metric():
    others = [{f"m{n}": n + epoch for n in range(20)} | {"loss": epoch} for epoch in range(3)]
    others[2]["accuracy"] = 0.5
    reports = tuple(Report(epoch, metrics, None, epoch, epoch) for epoch, metrics in enumerate(others, 1))
    first, second, *_ = draw_metrics(replace(trial(0, []), reports=reports), "loss", 3, "accuracy")["data"]
    assert (first["name"], second["name"]) == ("loss", "accuracy")
    assert second["marker"]["color"] == [BEST_COLOR] == first["marker"]["color"][2:]


def test_a_searched_metric_that_comes_only_at_the_end_is_unknown_at_the_rung(searched):
    for each in searched.trials:
        del each.reports[0].metrics["accuracy"]
    (row,) = prediction(searched)
    assert row.at_rung == Correlation(0) and row.at_end.trials == 5


def test_reports_without_the_compared_metric_are_no_gap_in_its_curve(searched):
    first = searched.trials[0]
    object.__setattr__(first, "reports", (*first.reports, Report(3, {"accuracy": 0.95}, None, 3.0, 3)))
    assert first.last("loss") == 0.5 and first.last("accuracy") == 0.95 and first.last("f1") is None
    whole = record(first, **TWO)
    assert first.last_epoch == 3 and whole.stats.lengths == {2: 1}  # such a report ends no epoch
    row, (line,) = trial_row(whole, first), csv.DictReader(io.StringIO(trials_csv(whole)))
    assert (row.epochs, line["epochs"], whole.stats.epochs, whole.stats.repeated) == (2, "2", 2, 0)
