"""`benchmarks.search_quality`: its results file, budgets, regrets, ranks and tables, and methods on a tiny table."""

import math
import re

import numpy as np
import pytest

from benchmarks.search_quality import methods, tables
from benchmarks.search_quality.__main__ import main
from benchmarks.search_quality.runs import Regret, run
from benchmarks.search_quality.simulate import Curves, Observation, Problem, Rows, simulate
from tuner.errors import RequestError

NUM, EPOCHS = 60, 9
SPACE = {"lr": {"type": "loguniform", "low": 1e-4, "high": 1.0}, "width": {"type": "choice", "values": [2, 4]}}
IN_THIS_ENVIRONMENT = [name for name in methods.OPPONENTS if not name.startswith("syne:")]


@pytest.fixture
def path(tmp_path):
    """A table whose best learning rate is 0.01; each tenth setting diverges."""
    random = np.random.default_rng(0)
    settings = [{"lr": float(10 ** random.uniform(-4, 0)), "width": int(random.choice([2, 4]))} for _ in range(NUM)]
    final = np.array([abs(math.log10(each["lr"]) + 2) + each["width"] / 10 for each in settings])
    metric = final[:, None] + 3 / np.arange(1, EPOCHS + 1)
    metric[::10, 4:] = np.nan
    tables.write(tmp_path / "tiny.npz", "loss", "min", SPACE, settings, metric, np.ones((NUM, EPOCHS)))
    return tmp_path / "tiny.npz"


@pytest.fixture
def curves(path):
    return Curves.load(path)


@pytest.mark.parametrize("sign, mode", [(1, "min"), (-1, "max")])
def test_the_regret_is_one_before_the_first_report_and_zero_at_the_best_of_the_table(sign, mode):
    values = sign * np.array([[5.0, 1.0], [4.0, 3.0], [math.nan, 9.0]])
    curves = Curves("loss", mode, SPACE, np.zeros((3, 2)), values, np.ones((3, 2)))
    seen = [Observation(1, 0, 1, 0, sign * 5), Observation(2, 1, 1, 1, math.nan), Observation(3, 1, 2, 1, sign * 2)]
    seen += [Observation(4, 2, 1, 2, sign * 4), Observation(5, 2, 2, 2, sign * 1)]
    regrets = Regret(curves).at(np.array([0.5, 1, 2.9, 3, 4.5, 5, 9]), seen)
    assert regrets == pytest.approx([1, 2, 2, 0.5, 0.5, 0, 0])  # best 1, median of the settings' best values 3


@pytest.mark.parametrize("name", IN_THIS_ENVIRONMENT + ["ours:random+asha,eta=3,grace=1", "ours:hyperopt+asha"])
def test_a_method_searches_the_same_for_the_same_seed_and_survives_divergence(path, curves, name):
    first, again = (run(path, name, 2, 0) for _ in range(2))
    assert (first.regrets == again.regrets).all() and first.regrets[-1] < 1 and 0 < first.distance == again.distance
    assert len({methods.build(name, Problem(curves, 1, seed)).next()[1]["lr"] for seed in range(3)}) == 3
    diverging = Curves("loss", "max", SPACE, curves.settings, np.full_like(curves.values, np.nan), curves.seconds)
    problem = Problem(diverging, 2, 0)
    assert len(list(simulate(methods.build(name, problem), problem, 30.0))) >= 50


def test_a_proposal_is_answered_by_the_nearest_row_that_the_search_has_not_tried(curves):
    setting = {"lr": 0.01, "width": 2}
    rows, squared = Rows(curves), curves.distances(setting)
    answers = [rows.take(setting) for _ in range(NUM)]
    assert answers == list(np.argsort(squared, kind="stable"))
    assert rows.distances == pytest.approx(np.sqrt(np.sort(squared)))
    assert rows.take(setting) == answers[0]  # all were tried, so all count again


@pytest.mark.parametrize("name", ["random", "one-epoch", "ray:asha+random", "ours:auto+auto"])
def test_a_method_chooses_among_the_rows_that_are_left(path, curves, name):
    outcome = run(path, f"{name}@pool", 2, 0)
    assert outcome.distance == pytest.approx(0, abs=1e-6) and outcome.regrets[-1] < 1
    problem = Problem(curves, 2, 0, pooled=True)
    seen = simulate(methods.build(f"{name}@pool", problem), problem, 60.0)
    first = {observed.trial: observed.row for observed in seen}
    assert len(set(list(first.values())[:NUM])) == min(NUM, len(first)) >= 10


@pytest.mark.parametrize("name", IN_THIS_ENVIRONMENT + ["ours:auto+auto"])
def test_parameters_may_be_called_as_what_a_library_calls_its_epochs(curves, name):
    space = dict(zip(("epochs", "training_iteration"), SPACE.values(), strict=True))
    problem = Problem(Curves("loss", "min", space, curves.settings, curves.values, curves.seconds), 2, 0)
    assert len(list(simulate(methods.build(name, problem), problem, 30.0))) >= 50


@pytest.mark.parametrize("name, expected", [("unknown", "must be ours:"), ("ours:random+asha,speed=9", "speed")])
def test_a_wrong_method_is_refused(curves, name, expected):
    with pytest.raises(RequestError, match=expected):
        methods.build(name, Problem(curves, 1, 0))


def test_a_pool_without_a_method_that_can_use_it_is_refused(path, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--tables", str(path), "--out", str(tmp_path / "out"), "--pool", "--methods", "ray:bohb"])
    assert "--pool: no method of --methods can choose among rows" in capsys.readouterr().err


def test_the_command_prints_ranks_and_continues_a_cut_run(path, tmp_path, capsys):
    out = tmp_path / "results.jsonl"
    words = ["--tables", str(path), "--workers", "1", "3", "64", "--repeats", "2", "--processes", "1"]
    words += ["--out", str(out), "--methods", "random", "one-epoch", "ray:asha+random", "ours:random+asha,eta=3"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    printed = capsys.readouterr()
    assert ended.value.code == 0
    assert "64 workers need tables of 1280 settings; left out: tiny" in printed.err
    for text in ("1 worker, tables: 1, repeats: 2", "3 workers", "share of `ray:asha+random`", "`random` not the best"):
        assert text in printed.out
    cells = re.findall(r"([\d.]+)\** \(([\d.]+)\)", printed.out)
    rank, regret = np.array(cells, float).reshape(2, 4, 5, 2).transpose(3, 0, 1, 2)  # workers, methods, budgets
    better = regret[:, :, None] < regret[:, None]
    assert better.any() and (rank[:, :, None] < rank[:, None])[better].all() and (rank.sum(1) == 10).all()
    lines = out.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4 * 2 * 2
    out.write_bytes(b"".join(lines[:9]) + lines[9][:20])
    with pytest.raises(SystemExit):
        main(words)
    assert sorted(out.read_bytes().splitlines(keepends=True)) == sorted(lines)
    assert "| tiny (1) |" in printed.out
    table = "1 worker, "
    assert capsys.readouterr().out.partition(table)[2] == printed.out.partition(table)[2]
