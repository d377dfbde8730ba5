"""One declaration of a column is read by trials.csv, the report and the service, in one order and with one heading."""

import csv
import io
import re
from dataclasses import dataclass

from test_figures import record, trial

from tuner.record.columns import Column, column, table_columns
from tuner.record.trial_row import TrialRow
from tuner.serve.app import COLUMNS
from tuner.tuning.answer.writing import trials_csv
from tuner.tuning.output import progress
from tuner.views.report import page


@dataclass(frozen=True)
class Row:
    hidden: int = column(shown="")
    num_epochs: int = column(about="of all attempts", shown="csv page", rare=True)
    why: str = column("reason", look="text", shown="page report")


def test_a_field_is_a_column_where_it_is_shown_and_its_name_with_spaces_is_the_heading():
    epochs = Column("num_epochs", "num epochs", "of all attempts", "number", rare=True)
    assert table_columns(Row, "page") == (epochs, Column("why", "reason", "", "text"))
    assert table_columns(Row, "csv") == (epochs,) and table_columns(Row, "terminal") == ()


def test_every_place_that_shows_trials_has_the_columns_of_their_row():
    one = record(trial(0, [2.0, 1.0], x=0.5))
    head = next(csv.reader(io.StringIO(trials_csv(one))))
    names = [each.name for each in table_columns(TrialRow, "csv")]
    assert head == [*names, "x", "best_loss", "last_loss"] and names[:3] == ["trial", "status", "best_epoch"]
    table = page(one).partition("<h2>Trials</h2>")[2]
    heads = [each.head.replace("{metric}", "loss") for each in table_columns(TrialRow, "report")]
    assert re.findall(r"<th [^>]*>(.*?)</th>", table) == heads and "best_loss" in heads and "best epoch" in heads
    assert COLUMNS["trials"] == table_columns(TrialRow, "page") and progress.COLUMNS[0].name == "trial"
    assert {each.about for each in COLUMNS["trials"]} > {"by pruning"} and set(COLUMNS) > {"rungs", "decisions"}
