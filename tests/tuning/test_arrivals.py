"""When what the trials saw of their parameters proves that one of them does not reach the training."""

import pytest
from ray import tune

from tuner import Space
from tuner.record.results import load
from tuner.spec.arrived import Seen
from tuner.spec.experiment import Experiment
from tuner.spec.script_text import line_that_sets
from tuner.spec.spaces import LoadedSpace
from tuner.tuning.arrivals import Arrivals

PARAMS = {
    "lr": tune.uniform(0, 1),
    "batch": tune.choice([128, 256, 512]),
    "amp": tune.choice([True, False]),
    "net": tune.choice([{"name": "a", "depth": tune.randint(1, 5)}, {"name": "b"}]),
}


@pytest.fixture
def arrivals(tmp_path):
    """`arrivals(*trials)`: the search's errors after trials that saw {parameter: (own, arrived, *live)}."""

    def heard(*trials, unchecked=(), text=""):
        (tmp_path / "main.py").write_text(text)
        errors, space = [], Space(params=PARAMS, train=lambda config: None)
        loaded = LoadedSpace(space, "main.py", tmp_path / "main.py", "", "main")
        made = Arrivals(Experiment(name="x", space="main.py", unchecked=unchecked), loaded, errors.append)
        for number, saw in enumerate(trials):
            seen = {
                name: Seen(own, there, dict.fromkeys(live, f"args.{name}")) for name, (own, there, *live) in saw.items()
            }
            made.hear(f"{number:05d}", seen)
        return list(map(str, errors)), made.unchecked()

    return heard


def test_one_live_value_with_two_settings_ends_the_search_in_one_line(arrivals, tmp_path, monkeypatch):
    text = '\nscript({"lr": 1})\nlr = 0.05\nargs.lr = 5e-2  # here\n'
    monkeypatch.chdir(tmp_path)
    (error,), _ = arrivals({"lr": ("0.1", False, "0.05")}, {"lr": ("0.3", False, "0.05")}, text=text)
    assert error == (
        "--space main.py: parameter 'lr' (line 2) does not reach the training: lr=0.1 in trial 00000 and 0.3 in trial "
        "00001, but args.lr is 0.05 in both (main.py, line 4); correct this and give another --name, or, if it is "
        "right, --resume x --unchecked lr"
    )


A, B, FIXED = ("128", False, "64"), ("256", False, "64"), ("64", True)


@pytest.mark.parametrize(
    ("trials", "ends"),
    [
        ([{"lr": ("0.1", False, "0.05")}], False),  # one trial proves nothing
        ([{"lr": ("0.1", False, "0.05")}, {"lr": ("0.1", False, "0.05")}], False),  # one setting
        ([{"lr": ("0.1", True)}, {"lr": ("0.3", True)}], False),
        ([{"lr": ("0.1", True, "0.05")}, {"lr": ("0.3", True, "0.05")}], False),  # another of the name has 0.05
        ([{"lr": ("0.1", False, "0.2")}, {"lr": ("0.3", False, "0.6")}], False),  # derived
        ([{"lr": ("0.1", False)}, {"lr": ("0.3", False)}], False),  # nothing of the name is alive
        ([{}, {}], False),
        ([{"amp": ("True", False, "False")}, {"amp": ("False", True)}], True),  # a truth value has only two
        ([{"amp": ("True", True)}, {"amp": ("True", False, "False")}, {"amp": ("False", True)}], False),  # once, it was
        ([{"batch": A, "amp": FIXED}, {"batch": B, "amp": FIXED}], True),
        ([{"batch": A, "amp": ("True", True)}, {"batch": B, "amp": ("False", True)}], False),  # both may make 64
        ([{"batch": (str(n), False, "64"), "amp": (str(n), True)} for n in range(100, 111)], True),
        ([{"batch": A, "lr": ("0.1", True)}, {"batch": B, "lr": ("0.3", True)}], True),
        ([{"net/name": ("a", True)}, {"net/name": ("b", False, "a")}], False),  # the choice's own
    ],
)  # fmt: skip
def test_a_search_ends_only_if_two_trials_prove_it(arrivals, trials, ends):
    errors, _ = arrivals(*trials)
    assert bool(errors) == ends
    assert arrivals(*trials, unchecked=tuple(PARAMS)) == ([], {})


def test_what_could_not_be_seen_is_named(arrivals):
    seen = {"lr": ("0.1", True), "net": ("dict", True), "amp": ("True", False, "False"), "batch": ("8", False)}
    other = {**seen, "amp": ("False", True), "batch": ("16", False), "lr": ("0.2", True)}
    assert arrivals(seen)[1] == {"amp": "", "batch": ""}
    assert arrivals({**seen, "net": ("dict", False)}, {**seen, "net/name": ("a", True)})[1].keys() == {"amp", "batch"}
    assert arrivals(seen, {**other, "batch": ("16", True)})[1] == {"amp": "args.amp is False in all trials"}
    assert arrivals()[1] == arrivals({})[1] == {}


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("lr.yaml", "a: 1\nlr: 0.05  # the paper's\n", 2),
        ("sub.json", '{"other": 1,\n "lr": 5e-2, "x": 1}\n', 2),
        ("other.py", "\n\nlr: float = 0.05\n", 3),
        ("other.py", "config['lr'] = 0.05\n", 1),
        ("other.py", "a = 1\nconfig = {'lr': 0.05}\n", 2),
        ("other.py", "train(lr=0.05)\n", 1),
        ("broken.py", "lr = 0.05 =\n", None),
    ],
)
def test_the_line_that_sets_a_value_is_found_in_the_files_of_the_folder(tmp_path, name, text, line):
    (tmp_path / "main.py").write_text("import broken, conf, other\nlr = 0.1\nlr = args.lr\n")
    (tmp_path / "conf").mkdir()
    for folder in (tmp_path, tmp_path / "conf"):
        (folder / name).write_text(text)
        found = line_that_sets(tmp_path / "main.py", "lr", "0.05")
        assert found == (line and (folder / name, line))
        (folder / name).unlink()


def test_a_line_of_a_file_that_the_script_does_not_import_is_not_named(tmp_path):
    (tmp_path / "main.py").write_text("args = Namespace(**{**vars(args), 'lr': 0.05})\n")
    (tmp_path / "other.py").write_text("\n\nlr = 0.05\n")
    assert line_that_sets(tmp_path / "main.py", "lr", "0.05") == (tmp_path / "main.py", 1)


SET_LATER = """
from tuner import script, tune
script({"lr": tune.uniform(0.1, 1), "width": tune.choice([8, 16])}, metric="loss")
import argparse, random
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()
args.lr = 0.05
def build(units, width=4):
    return units
tune.report({"loss": build(0.123456789)})
"""


def test_a_search_whose_parameter_arrives_nowhere_ends_at_the_second_trial(tmp_path, search_here, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "main.py").write_text(SET_LATER)
    options = ("--max-concurrent-trials", "1", "--num-samples", "3", "--scheduler", "fifo")
    done = search_here(str(tmp_path / "main.py"), *options)
    assert done.code == 2 and len(done.err.splitlines()) == 1
    assert "parameter 'lr' (line 3) does not reach the training: lr=0." in done.err
    assert "but args.lr is 0.05 in both (main.py, line 8); correct this" in done.err
    done = search_here("", "--resume", "test", "--unchecked", "lr", *options)
    assert done.code == 0, done.err
    assert "NOTE: not checked: width; nothing showed" in done.out
    assert "reported the same numbers, to the last digit, in 1 epoch, with lr 0." in done.out
    assert load(done.folder).unchecked == {"width": ""}


def test_a_name_that_is_no_parameter_cannot_be_left_out(search_here, tmp_path):
    (tmp_path / "main.py").write_text(SET_LATER)
    done = search_here(str(tmp_path / "main.py"), "--unchecked", "widht", "--dry-run")
    assert done.code == 2 and "--unchecked 'widht': is no searched parameter; did you mean 'width'?" in done.err
    with pytest.raises(ValueError, match="unchecked 'x': is no searched parameter; they are lr"):
        Space(params={"lr": tune.uniform(0, 1)}, train=print, unchecked=["x"])
    assert Space(params={"lr": tune.uniform(0, 1)}, train=print, unchecked=["lr"]).options.unchecked == ("lr",)
