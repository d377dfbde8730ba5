"""`benchmarks.search_quality`: its results file, budgets, regrets, ranks and tables, and opponents on a tiny table."""

import json
import math
import shutil
import sys
from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.search_quality import methods, scan_bench, summary, tables, trainings
from benchmarks.search_quality.baselines import OneEpoch
from benchmarks.search_quality.command import execute
from benchmarks.search_quality.opponents.serve import Staged
from benchmarks.search_quality.problem import Draws, Problem
from benchmarks.search_quality.record import record
from benchmarks.search_quality.regret import BETWEEN, NUM_BUDGETS, Regret, budgets
from benchmarks.search_quality.remote import OPPONENTS, Remote, Server
from benchmarks.search_quality.results import HEADER, Key, Results, Row
from benchmarks.search_quality.runs import run, run_all
from benchmarks.search_quality.simulate import Curves, Observation, ranges, simulate
from benchmarks.search_quality.summary import Compared
from benchmarks.search_quality.tables import Table
from tuner.errors import RequestError

NUM, EPOCHS = 60, 9
SPACE = {"lr": {"type": "loguniform", "low": 1e-4, "high": 1.0}, "width": {"type": "choice", "values": [2, 4]}}
IN_THIS_ENVIRONMENT = [name for name, each in methods.OPPONENTS.items() if not each.script]


def table(path, num=NUM):
    """Curves whose best learning rate is 0.01; each tenth setting diverges."""
    random = np.random.default_rng(0)
    settings = [{"lr": float(10 ** random.uniform(-4, 0)), "width": int(random.choice([2, 4]))} for _ in range(num)]
    final = np.array([abs(math.log10(each["lr"]) + 2) + each["width"] / 10 for each in settings])
    metric = final[:, None] + 3 / np.arange(1, EPOCHS + 1)
    metric[::10, 4:] = np.nan
    return tables.write(path, "loss", "min", SPACE, settings, metric, np.ones((num, EPOCHS)))


@pytest.fixture
def curves(tmp_path):
    return table(tmp_path / "tiny.npz")


def row(method, regret, *, table="a", workers=1, repeat=0):
    return Row(Key(table, method, workers, repeat), 0.1, np.full(len(HEADER) - 5, regret))


def test_a_torn_last_line_is_dropped_and_the_run_goes_on(tmp_path):
    path = tmp_path / "results.csv"
    results = Results(path)
    results.add(row("ours:a+b,eta=3", 0.5))
    results.add(row("random", 0.25))
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])

    results = Results(path)

    assert list(results.rows) == [("a", "ours:a+b,eta=3", 1, 0)]
    results.add(row("random", 0.25))
    assert path.read_bytes() == whole
    assert len(Results(path).rows) == 2


def test_every_cut_of_a_results_file_is_read(tmp_path):
    path = tmp_path / "results.csv"
    Results(path).add(row("random", 0.25))
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 11), len(whole) - 1]:
        path.write_bytes(whole[:size])
        results = Results(path)
        results.add(row("random", 0.25))
        assert path.read_bytes() == whole


@pytest.mark.parametrize("text", ["table,of,others\n", ",".join(HEADER) + "\na,b,1\n"])
def test_a_file_that_has_no_results_is_refused(tmp_path, text):
    path = tmp_path / "results.csv"
    path.write_text(text)
    with pytest.raises(RequestError, match="results|damaged"):
        Results(path)
    assert path.read_text() == text


def test_budgets_go_from_half_a_training_to_a_tenth_of_the_table(curves):
    ten = budgets(curves, 1)[::BETWEEN]
    assert len(ten) == NUM_BUDGETS
    assert ten[0] == pytest.approx(EPOCHS / 2) and ten[-1] == pytest.approx(NUM * EPOCHS / 10)
    assert np.diff(np.log(ten)) == pytest.approx(np.log(12) / 9)
    assert budgets(curves, 3)[-1] == pytest.approx(NUM * EPOCHS / 30)
    assert budgets(curves, 4) is None  # 1.5 trainings a worker: less than four times the first budget


@pytest.mark.parametrize("sign, mode", [(1, "min"), (-1, "max")])
def test_the_regret_is_one_before_the_first_report_and_zero_at_the_best_of_the_table(sign, mode):
    values = sign * np.array([[5.0, 1.0], [4.0, 3.0], [math.nan, 9.0]])
    curves = Curves("loss", mode, SPACE, np.zeros((3, 2)), values, np.ones((3, 2)))
    seen = [Observation(1, 0, 1, 0, sign * 5), Observation(2, 1, 1, 1, math.nan), Observation(3, 1, 2, 1, sign * 2)]
    seen += [Observation(4, 2, 1, 2, sign * 4), Observation(5, 2, 2, 2, sign * 1)]

    regrets = Regret(curves).at(np.array([0.5, 1, 2.9, 3, 4.5, 5, 9]), seen)

    assert regrets == pytest.approx([1, 2, 2, 0.5, 0.5, 0, 0])  # best 1, median of the settings' best values 3


def test_a_table_without_a_scale_is_refused():
    equal = Curves("loss", "min", SPACE, np.zeros((3, 2)), np.ones((3, 2)), np.ones((3, 2)))
    with pytest.raises(RequestError, match="median"):
        Regret(equal)


def compared_of(regrets, workers=1):
    """Regrets by method, a list over tables of a list over repeats; equal at all budgets."""
    by_key = {
        (f"t{at}", name): np.array([row(name, regret).regrets for regret in repeats])
        for name, per_table in regrets.items()
        for at, repeats in enumerate(per_table)
    }
    num = len(next(iter(regrets.values())))
    return Compared(workers, [f"t{at}" for at in range(num)], list(regrets), by_key)


def test_ranks_are_of_the_mean_over_repeats_and_equal_ones_share():
    each = compared_of({"a": [[1, 3], [1]], "b": [[2], [3]], "c": [[1], [2]]})
    rank, regret = summary.intervals(each)
    assert rank.mean[:, 0] == pytest.approx([1.75, 2.75, 1.5])
    assert regret.mean[:, 0] == pytest.approx([1.5, 2.5, 1.5])
    assert (rank.low <= rank.mean).all() and (rank.mean <= rank.high).all()
    assert (summary.intervals(each)[0].low == rank.low).all()  # the same results print the same intervals


def test_a_table_that_a_method_lacks_is_left_out():
    rows = [row("a", 1), row("b", 2), row("a", 1, table="other"), row("b", 1, workers=4)]
    each = summary.compared(rows, ["a", "b", "absent"], 1)
    assert each.tables == ["a"] and each.methods == ["a", "b"]


def test_holm_multiplies_the_least_p_value_most():
    assert summary.holm([0.03, 0.01, 0.04]) == pytest.approx([0.06, 0.03, 0.06])


def test_a_method_that_is_worse_on_all_tables_is_significantly_worse():
    num = 12
    each = compared_of({"base": [[1.0]] * num, "worse": [[1.1 + at / 100] for at in range(num)]})
    found = summary.tests_against([each], "worse", "base")
    assert all(p < 0.05 for *_, p in found["worse"]) and all(p == 1 for *_, p in found["better"])
    assert summary.tests_against([each], "base", "base")["worse"][0] == (1, 1, 1.0)


def test_the_share_of_a_budget_is_interpolated_over_its_logarithm():
    falling = np.linspace(1, 0, len(HEADER) - 5)
    by_key = {("t", "base"): falling[None], ("t", "fast"): 0.5 * falling[None] - 0.25, ("t", "slow"): falling[None] + 1}
    each = Compared(1, ["t"], ["base", "fast", "slow"], by_key)
    shares = summary.shares(each, "base", {"t": np.geomspace(1, 100, len(falling))})
    assert shares == {"base": [1], "fast": [pytest.approx(0.1)], "slow": [math.inf]}


@pytest.fixture
def broken_off(search_here):
    """`broken_off("trial_ended", 2)` gives the folder of a search of four trials, cut after the second such event."""

    def folder_of(event, number):
        folder = search_here("saving.py", "--searcher", "random", "--scheduler", "fifo", "--num-samples", "4").folder
        lines = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
        such = [at for at, line in enumerate(lines) if json.loads(line)["event"] == event]
        (folder / "journal.jsonl").write_bytes(b"".join(lines[: such[number - 1] + 1]))
        return folder

    return folder_of


def test_an_experiments_completed_and_diverged_trials_become_a_table(broken_off, tmp_path):
    folder = broken_off("trial_ended", 2)
    journal = folder / "journal.jsonl"
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    reports = [each for each in events if each["event"] == "report"]
    ended = [each["trial"] for each in events if each["event"] == "trial_ended" and each["status"] == "completed"]

    curves, left_out = record(folder, tmp_path / "table.npz")

    assert left_out == len({each["trial"] for each in events if each["event"] == "trial_suggested"}) - len(ended) > 0
    assert list(curves.space) == ["lr", "width"] and curves.space["width"]["values"] == [2, 4, 8]
    assert curves.values.shape == (len(ended), 4)
    losses = [each["metrics"]["loss"] for each in reports if each["trial"] == ended[0]]
    assert curves.values[0] == pytest.approx(losses, rel=1e-6)
    times = [each["time"] for each in reports if each["trial"] == ended[0]]
    assert curves.seconds[0, 1:] == pytest.approx(np.diff(times), abs=1e-3)
    assert curves.seconds[0, 0] > 0


@pytest.fixture
def threads():
    """`trainings.trained` takes one thread; other tests keep theirs."""
    number = torch.get_num_threads()
    yield
    torch.set_num_threads(number)


@pytest.mark.parametrize("training", trainings.TRAININGS, ids=lambda training: training.name)
def test_a_small_real_training_has_the_same_curve_again(threads, training):
    few = replace(training, epochs=2)
    domains, stream = ranges(few.space), np.random.RandomState(0)
    setting = {name: trainings.plain(domain.sample(random_state=stream)) for name, domain in domains.items()}
    values, seconds = trainings.trained(few, setting, 0)
    assert values == trainings.trained(few, setting, 0)[0] != trainings.trained(few, setting, 1)[0]
    assert np.isfinite(values).all() and min(seconds) > 0 and len(values) == len(seconds) == 2


def test_a_training_that_diverges_has_nan_from_that_epoch_on_and_its_usual_seconds(threads):
    def curve(setting, epochs):
        yield from [2.0, 1.0, math.inf, 0.5]

    values, seconds = trainings.trained(replace(trainings.TRAININGS[0], curve=curve, epochs=4), {}, 0)
    np.testing.assert_array_equal(values, [2.0, 1.0, math.nan, math.nan])
    assert len(seconds) == 4 and seconds[2] == seconds[3] == pytest.approx(sum(seconds[:2]) / 2)


@pytest.mark.slow
def test_small_real_trainings_become_a_table(tmp_path):
    training = replace(trainings.TRAININGS[-1], num_settings=5, epochs=2)
    trainings.record(training, tmp_path / "few.npz", processes=2)
    curves = Table(tmp_path / "few.npz").load()
    assert (curves.values.shape, curves.mode, set(curves.space)) == ((5, 2), training.mode, set(training.space))


def test_a_recorded_training_that_diverged_is_nan_to_its_end(tmp_path):
    from benchmarks.search_quality.record import _seconds, _values
    from tuner.record.records import Report, TrialRecord

    reports = tuple(Report(at, {"loss": value}, None, 10.0 + 2 * at) for at, value in ((1, 0.5), (2, math.nan)))
    trial = TrialRecord("a", {}, "failed", reports=reports, spans=((10.0, 14.0),))
    assert (
        _values(trial, "loss", 4)
        == [0.5, pytest.approx(math.nan, nan_ok=True)] + [pytest.approx(math.nan, nan_ok=True)] * 2
    )
    assert _seconds(trial, 4) == [2, 2, 2, 2]
    pruned = TrialRecord("b", {}, "pruned", reports=reports[:1], spans=((10.0, 12.0),))
    assert _values(pruned, "loss", 4) is None


@pytest.mark.parametrize("name", IN_THIS_ENVIRONMENT + ["ours:random+asha,eta=3,grace=1", "ours:hyperopt+asha"])
def test_a_method_searches_the_same_for_the_same_seed(tmp_path, name):
    path = tmp_path / "tiny.npz"
    small = table(path, 40)
    first, again = (run(Table(path), name, 2, 0).regrets for _ in range(2))
    assert (first == again).all() and first[-1] < 1
    assert len({methods.build(name, Problem(small, 1, seed)).next()[1]["lr"] for seed in range(3)}) == 3


@pytest.mark.parametrize("name", IN_THIS_ENVIRONMENT)
def test_a_method_survives_trainings_that_all_diverge(curves, name):
    diverging = Curves("loss", "max", SPACE, curves.settings, np.full_like(curves.values, np.nan), curves.seconds)
    method = methods.build(name, Problem(diverging, 2, 0))
    assert len(list(simulate(method, diverging, 2, 30.0))) >= 50


def test_one_epoch_trains_the_best_of_each_nine_settings_to_the_end(curves):
    method = OneEpoch(Problem(curves, 1, 0))
    seen = list(simulate(method, curves, 1, 200.0))
    first = {each.trial: each.value for each in seen if each.epoch == 1}
    started = [each.trial for each in seen[:EPOCHS]]
    assert started == list(range(EPOCHS))
    assert [each.trial for each in seen[EPOCHS : 2 * EPOCHS - 1]] == [min(started, key=first.__getitem__)] * (
        EPOCHS - 1
    )


@pytest.mark.parametrize(
    "name, expected",
    [
        ("unknown", "must be ours:"),
        ("random,eta=3", "no options"),
        ("ray:asha+random,eta", "NAME=NUMBER"),
        ("ours:random+asha,speed=9", "speed"),
        ("ours:nothing+asha", "nothing"),
    ],
)
def test_a_wrong_method_is_refused(curves, name, expected):
    with pytest.raises(RequestError, match=expected):
        methods.build(name, Problem(curves, 1, 0))


def test_a_failing_method_leaves_the_others_alone(curves, tmp_path, monkeypatch):
    def broken(problem, options):
        raise RuntimeError("broken")

    monkeypatch.setitem(methods.OPPONENTS, "broken", methods.Opponent(broken))
    path = Table(tmp_path / "tiny.npz")
    results = dict(run_all([(path, "broken", 1, 0), (path, "random", 1, 0)], processes=1))
    assert isinstance(results["tiny", "broken", 1, 0], RuntimeError)
    assert results["tiny", "random", 1, 0].regrets[-1] < 1


def test_tables_are_found_in_folders_and_their_names_must_differ(curves, tmp_path):
    path = tmp_path / "tiny.npz"
    assert tables.tables_of([tmp_path]) == tables.tables_of([path]) == [Table(path)]
    with pytest.raises(RequestError, match="several tables are named tiny"):
        tables.tables_of([path, tmp_path])
    with pytest.raises(RequestError, match="absent: no such file or folder"):
        tables.tables_of([tmp_path / "absent"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match="empty: no .npz file there"):
        tables.tables_of([tmp_path / "empty"])


def test_a_file_that_is_no_archive_is_refused_without_the_advice_to_unpickle_it(tmp_path):
    path = tmp_path / "table.npz"
    path.write_text("lr,loss\n")
    with pytest.raises(RequestError, match="table.npz: not a table of learning curves, which are .npz files$"):
        Table(path).load()


def test_an_experiment_without_a_whole_curve_is_refused(broken_off, tmp_path):
    with pytest.raises(RequestError, match="none of . trials completed or diverged; search with --searcher random"):
        record(broken_off("report", 1), tmp_path / "table.npz")


def test_the_command_prints_ranks_and_continues_a_cut_run(curves, tmp_path, capsys):
    out = tmp_path / "results.csv"
    given = Namespace(
        tables=[tmp_path / "tiny.npz"],
        settings=None,
        workers=[1, 3, 64],
        repeats=2,
        methods=["random", "one-epoch", "ray:asha+random", "ours:random+asha,eta=3"],
        out=out,
        plot=None,
        processes=1,
        summary_only=False,
        brief=False,
    )
    assert execute(given) == 0
    printed = capsys.readouterr()
    assert "64 workers need tables of 1280 settings; left out: tiny" in printed.err
    for title in (
        "### 1 worker, tables: 1, repeats: 2",
        "### 3 workers",
        "Mean rank",
        "Share of the last",
        "Against one",
    ):
        assert title in printed.out
    lines = out.read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + 4 * 2 * 2

    out.write_bytes(b"".join(lines[:9]) + lines[9][:20])
    assert execute(given) == 0

    assert len(out.read_bytes().splitlines()) == len(lines)
    assert capsys.readouterr().out.partition("###")[2] == printed.out.partition("###")[2]

    given.summary_only = given.brief = True
    assert execute(given) == 0
    brief = capsys.readouterr().out
    assert "3 workers, tables: 1, repeats: 2" in brief and "Against one" in brief
    assert brief.count("* `random` best, or within the best one's interval: at ") == 2
    for name in ("random", "one-epoch"):
        long, short = (text[text.index(f"| `{name}` |") :].partition("\n")[0] for text in (printed.out, brief))
        assert short.split("|")[2].split()[0] == long.split("|")[2].split()[0]  # the same mean rank
        assert len(short.split("|")) == 8 and len(long.split("|")) == 13


def test_the_first_settings_of_a_table_are_a_table_with_a_name_of_its_own(curves, tmp_path):
    part = Table(tmp_path / "tiny.npz", 40)
    assert part.name == "tiny[:40]"
    assert (part.load().values == curves.values[:40])[:, 0].all() and part.load().settings.shape == (40, 2)


def test_draws_depend_on_the_seed_alone(curves):
    first, again, other = (Draws(Problem(curves, 1, seed)).draw() for seed in (1, 1, 2))
    assert first == again != other


class Asking(Staged):
    """Asks for setting 0 after 1, 3 and 2 epochs at once, then for setting 1."""

    def __init__(self):
        super().__init__({"mode": "max"})
        self.told = []
        self._asked = iter([(0, 1), (0, 3), (1, 1), (0, 2)])

    def ask(self):
        following = next(self._asked, None)
        return following and (following[0], {"lr": 0.1}, following[1], following)

    def tell(self, handle, loss):
        self.told.append((handle, loss))


def test_a_stage_of_a_training_setting_continues_it_and_a_known_one_is_told_at_once():
    method = Asking()
    assert method.next() == (0, {"lr": 0.1})
    assert method.next() == (1, {"lr": 0.1})  # setting 0 trains: its stage of 3 epochs waits in its trial
    assert method.report(0, 1, 5.0) == "continue"
    assert method.report(0, 2, 6.0) == "continue"
    assert method.report(0, 3, 7.0) == "pause"
    assert method.report(1, 1, 9.0) == "pause"
    assert method.next() is None  # its stage of 2 epochs is known
    assert method.told == [((0, 1), -5.0), ((0, 3), -7.0), ((1, 1), -9.0), ((0, 2), -6.0)]


LIBRARY = """
import sys
from serve import serve

class Search:
    def __init__(self, kind, problem):
        self.kind, self.number = kind, 0
        print("a message of the library")
        if kind == "dies":
            sys.exit("no such library")

    def next(self):
        self.number += 1
        return self.number - 1, {"lr": 0.01, "width": 2}

    def report(self, trial, epoch, value):
        if self.kind == "fails":
            raise ValueError(f"{value} at {epoch}")
        return "stop" if value != value else "continue"

serve(Search)
"""


@pytest.fixture
def library(tmp_path):
    shutil.copy(OPPONENTS / "serve.py", tmp_path)
    script = tmp_path / "library.py"
    script.write_text(LIBRARY)
    return Server([sys.executable, str(script)])


def test_a_library_in_a_process_of_its_own_searches_fails_and_ends(curves, library):
    problem = Problem(curves, 1, 0)
    method = Remote(library, "works", problem)
    assert method.next() == (0, {"lr": 0.01, "width": 2})
    assert [method.report(0, 1, 0.5), method.report(0, 2, math.inf), method.report(0, 3, math.nan)] == [
        "continue",
        "continue",
        "stop",
    ]
    with pytest.raises(RuntimeError, match="ValueError: inf at 1"):
        Remote(library, "fails", problem).report(0, 1, math.inf)
    assert Remote(library, "works", problem).next()[0] == 0  # the process survives an error of the library
    with pytest.raises(OSError, match="no such library"):
        Remote(library, "dies", problem)


def test_a_wheel_of_scan_bench_is_checked(tmp_path):
    path = tmp_path / "wheel.whl"
    path.write_bytes(b"PK not a wheel")
    with pytest.raises(RequestError, match="not a wheel"):
        scan_bench.clip(path, tmp_path / "out.npz")
