"""Searches from Python: `search`, `load` and `load_best` in scripts and notebooks."""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import nbclient
import nbformat
import pytest
import torch
from ray import tune
from spaces import tiny

from tuner import RequestError, Space, load, load_best, run, search
from tuner.spec.space_objects import space_of

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "spaces" / "tiny.py"
QUICK = {"wandb": "disabled", "num_samples": 3, "max_epochs": 2, "max_concurrent_trials": 1}


@pytest.fixture
def main(monkeypatch):
    """`main(code)` runs code as a script or notebook cell does: its names belong to `__main__`."""
    module = type(sys)("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)

    def define(code, path="<cell>"):
        exec(compile(code, path, "exec"), module.__dict__)
        return module.space

    return define


def failing(config):
    """A function for Ray Tune that always fails."""
    raise KeyError("gone")


def test_a_dry_run_prints_the_plan_and_searches_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert search(tiny.space, dry_run=True, **QUICK) is None
    out = capsys.readouterr().out
    assert "preflight   passed in" in out and not (tmp_path / "results").exists()
    with pytest.raises(RequestError, match="table 'broad': must be one of fit, wide, off"):
        search(tiny.space, table="broad")


@pytest.mark.parametrize(
    ("space", "options", "text"),
    [
        (tiny.space, {"num_sample": 3}, "search() has no option 'num_sample'; did you mean 'num_samples'?"),
        (tiny.space, {"params": {}}, "search() has no option 'params': it is part of the space: search(Space(params="),
        (failing, {"metric": "loss"}, "search(failing, ...): give a space, as search(Space("),
        (tiny.space, {"zzz": 3}, "search() has no option 'zzz'; it has address, brackets, confirm, confirm_seeds"),
        (tiny.space, {"grace_period": 99}, "grace_period 99 is above max_epochs 8"),
        (tiny.space, {"stop": {"acuracy": 0.9}}, "stop acuracy=0.9: the space reports accuracy, loss"),
        (3, {}, "space is a int: give a Space, a name"),
        (json, {}, "space=json: the module has no space = Space(...)"),
        (None, {}, "search() needs a space, or resume=NAME"),
    ],
)
def test_a_mistake_is_one_request_error(space, options, text, here):
    with pytest.raises(RequestError) as raised:
        search(space, **options)
    assert text in str(raised.value) and "--" not in str(raised.value)
    assert not list(here.glob("results/*/journal.jsonl"))


def test_a_search_returns_its_result_and_its_best_model(here, capsys):
    result = search(tiny, name="mine", point=[{"width": 8, "lr": 0.05}], stop={"accuracy": 1.5}, **QUICK)
    assert result.state == "finished" and result.folder == Path("results/mine")
    assert list(result.trials["status"]).count("completed") >= 1 and result.trials.loc[0, "width"] == 8
    assert result.best.metrics["loss"] == result.trials["best_loss"].min() and result.best.test["accuracy"] > 0.5
    assert result.figures["curves"].data and "best        trial" in repr(result)
    assert "<table" in result._repr_html_()
    assert load(result.folder).best == result.best == result.refreshed().best
    facts = json.loads((result.folder / "experiment.json").read_text())
    assert facts["options"]["space"] == "spaces.tiny" and facts["space"]["path"] == str(TINY)
    # The file has not changed, so that its code may run: the model computes the figures of the search.
    best = load_best(result.folder)
    assert f"code: {TINY}" in capsys.readouterr().out
    test = tiny.blobs(None).test
    scores, labels = best.model(best.prepare(test.inputs)), torch.as_tensor(test.targets)
    assert tiny.accuracy(scores, labels).item() == pytest.approx(result.best.test["accuracy"])
    assert not best.model.training and best.config.keys() == tiny.space.params.keys()
    assert f"best = load_best({str(result.folder.absolute())!r})" in (result.folder / "best" / "README.md").read_text()
    # Code in the folder of results is not run, and a damaged model is named.
    config, evil = result.folder / "best" / "config.json", result.folder / "evil.py"
    evil.write_text("raise SystemExit('was run')")
    config.write_text(json.dumps({**json.loads(config.read_text()), "space": str(evil)}))
    with pytest.raises(RequestError, match="its code is not run"):
        load_best(result.folder)
    (result.folder / "best/model.pt").write_bytes(b"cut")
    with pytest.raises(RequestError, match="model.pt is damaged"):
        load_best(result.folder, space=tiny.space)


SCRIPT = TINY.read_text()


def test_a_space_of_a_cell_is_searched_and_resumed_from_python_alone(here, main, capsys):
    space = main(SCRIPT)
    result = search(space, name="cell", **QUICK)
    facts = json.loads((result.folder / "experiment.json").read_text())
    assert facts["options"]["space"] == "__main__:space" and facts["space"]["path"] == ""
    assert run.main(["--resume", "cell"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and 'tuner.search(space, resume="NAME") resumes its search' in error
    with pytest.raises(RequestError, match=r"defined in a notebook; give it: load_best\(..., space=space\)"):
        load_best(result.folder)
    assert load_best(result.folder, space=space).model
    before = (result.folder / "journal.jsonl").read_bytes()
    again = search(main(SCRIPT), resume="cell", num_samples=4)
    assert len(again.trials) == 4 and again.state == "finished"
    assert (result.folder / "journal.jsonl").read_bytes().startswith(before)
    with pytest.raises(RequestError, match="resume cell: the space has changed: width was"):
        search(main(SCRIPT.replace("[2, 4, 8]", "[2, 4]")), resume="cell")


def test_a_script_that_has_not_changed_gives_its_best_model(here, main, capsys):
    script = here / "train.py"
    script.write_text(SCRIPT)
    sys.modules["__main__"].__file__ = str(script)
    result = search(main(SCRIPT, str(script)), name="scripted", **QUICK)
    assert load_best(result.folder).model  # the running script is the one that searched
    assert "code: " not in capsys.readouterr().out.partition("dashboard")[2]
    del sys.modules["__main__"].space  # as in another process
    assert load_best(result.folder).model and f"code: {script}" in capsys.readouterr().out
    script.write_text(SCRIPT + "\n")
    with pytest.raises(RequestError, match="train.py, which has changed since the search: its code is not run"):
        load_best(result.folder)
    assert load_best(result.folder, trust=True).model


class Interrupts(tune.Callback):
    """Presses Ctrl-C at an epoch's report."""

    def __init__(self, epoch):
        self.epoch = epoch

    def on_trial_result(self, iteration, trials, trial, result, **info):
        if result["training_iteration"] == self.epoch:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("epoch", "status"), [(1, "interrupted"), (2, "completed")])
def test_an_interrupt_keeps_the_state_and_the_process(here, capsys, epoch, status):
    interrupted = replace(tiny.space, callbacks=[Interrupts(epoch)])
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=r"tuner.search\(space, resume='cut'\) resumes it"):
        search(interrupted, name="cut", **QUICK)
    assert signal.getsignal(signal.SIGINT) is handler
    assert "resume      from Python: tuner.search(space, resume='cut')" in capsys.readouterr().out
    cut = load("results/cut")
    assert cut.state == "interrupted" and cut.best.test is None  # the test set is used after the search has ended
    assert cut.trials["status"][0] == status  # the trial's stop was decided before the interruption
    assert search(tiny.space, resume="cut").state == "finished"


def test_a_file_that_searches_when_it_is_imported_is_named(here):
    script = here / "unguarded.py"
    script.write_text(f"{SCRIPT}\nfrom tuner import search\nsearch(space, num_samples=1)\n")
    with pytest.raises(RequestError, match=r"unguarded.py calls search\(\) while it is imported"):
        search(script)


def test_a_space_is_named_as_the_command_line_finds_it(tmp_path, monkeypatch):
    from search_spaces import mobilenet, quadratic

    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_spaces").mkdir()
    for place in ("own_spaces/one.py", "two_spaces.py"):
        other = "Space(params=dict(x=tune.uniform(0, 1)), train=lambda c: None)"
        (tmp_path / place).write_text(f"{SCRIPT}\nother = {other}\n")
    import own_spaces.one
    import two_spaces

    for given, name in (
        (quadratic, "quadratic"),
        (mobilenet.space224, "mobilenet:space224"),
        (own_spaces.one, "own_spaces.one"),
        (own_spaces.one.other, "own_spaces.one:other"),
        (two_spaces.other, f"{tmp_path}/two_spaces.py:other"),
    ):
        loaded = space_of(given)
        assert loaded.name == name and space_of(name).space.params.keys() == loaded.space.params.keys()


def test_a_search_whose_trials_all_failed_says_so_in_place_of_a_best_trial(here):
    result = search(Space(params={"x": tune.uniform(-1, 1)}, train=failing), name="failed", **QUICK)
    message = r"no best trial: all 3 trials failed, 0000\d first: KeyError: 'gone' \("
    with pytest.raises(RequestError, match=message) as no:
        result.best.config  # noqa: B018  (as a script that was written for Ray Tune does)
    assert "test_api.py, line" in str(no.value) and "/error.txt" in str(no.value)
    assert "best        none: no trial has a finite loss" in repr(result) and len(result.trials) == 3


@pytest.mark.slow
def test_the_notebook_of_the_documentation_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(ROOT / "docs" / "notebook.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    displays = [each.data for each in outputs if each.output_type == "display_data"]
    tables = [each for each in displays if list(each) == ["text/plain"] and "completed" in each["text/plain"]]
    assert len(tables) == 2  # each search has one table, which was updated in place
    assert any("application/vnd.plotly.v1+json" in each for each in displays)
