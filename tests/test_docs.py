"""README and docs: their commands are parsed, their Python is run, and the files and links that they name exist."""

import dataclasses
import importlib
import itertools
import json
import os
import re
import runpy
import shlex
import tomllib
from pathlib import Path

import pytest
from journals import Journal
from ray import tune
from workerless import in_this_process

from benchmarks import options_page
from tuner import run, train
from tuner.core.events import Decision
from tuner.errors import Parser
from tuner.record.results import load
from tuner.record.saved_experiment import save_experiment
from tuner.serve.actions import Archive, Note
from tuner.serve.app import create_app
from tuner.serve.jobs.requests import Resume, Start
from tuner.space import Space
from tuner.spec.experiment import CHOICES, Experiment
from tuner.spec.facts import facts_of
from tuner.spec.option_values import option
from tuner.spec.spaces import find_space
from tuner.training.data import hold_out
from tuner.training.loop import Training
from tuner.training.task import TrialSpec
from tuner.tuning.checks import request as checking

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
TINY = ROOT / "tests" / "spaces" / "tiny.py"
# Every option and subcommand word of our programs, as their sources spell them.
SOURCES = [*(ROOT / "tuner").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
OPTIONS = {option(field.name) for field in dataclasses.fields(run.Command)}


def test_the_page_of_options_says_what_their_table_says():
    assert options_page.PAGE.read_text() == options_page.page(), "run: python -m benchmarks.options_page"


def fences(page, *languages):
    """The contents of the page's fenced blocks of these languages."""
    matches = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [content for language, content in matches if language in languages]


def prose(page):
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def spans(page):
    """The page's inline code, that of quoted messages aside."""
    return [span for span in re.findall(r"`([^`\n]+)`", prose(page)) if "..." not in span]


def command_lines():
    """(page, line) of every shell line in a block, and of every inline command."""
    for page in PAGES:
        for block in fences(page, "", "bash"):
            yield from ((page, line) for line in block.replace("\\\n", " ").splitlines() if line.strip())
        yield from ((page, span) for span in spans(page) if re.match(r"(uv run|python|pytest|ray|pip|docker) ", span))


def ours():
    """(page, module, words) of every command of ours, each different one once."""
    seen = set()
    for page, line in command_lines():
        for module, rest in re.findall(r"(?:python -m |tuner/)(tuner(?:\.\w+)+|run\.py --) ?([^'|&;#]*)", line):
            module = module.replace("run.py --", "tuner.run")
            if (module, rest.strip()) not in seen:
                seen.add((module, rest.strip()))
                yield pytest.param(module, shlex.split(rest), id=f"{page.name}: {module} {rest.strip()}")


def write_experiment(folder):
    """Eight trials of a linear model that trains in milliseconds; the first is the best, the others were pruned."""
    settings = {"space": str(TINY), "num_samples": 8, "max_epochs": 2, "name": folder.name}
    (folder / "best").mkdir(parents=True)
    facts = facts_of(find_space(str(TINY)), [])
    save_experiment(Experiment(**settings, results=str(folder.parent)), folder, facts)
    journal = Journal(folder / "journal.jsonl")
    journal.write("experiment_started", id=facts["id"], name=folder.name)
    for trial, status in (("00000", "completed"), *((f"{number:05}", "pruned") for number in range(1, 8))):
        config = {"width": 2, "lr": 0.01, "batch_size": 16}
        journal.write("trial_started", trial, config=config, resources={"CPU": 1}, node="n")
        journal.write("report", trial, epoch=1, metrics={"loss": 0.5 + int(trial)})
        if status == "pruned":
            stop = {"value": 0.4 + int(trial), "cutoff": 0.4, "recorded": int(trial), "action": "stop", "reason": ""}
            journal.write("decision", trial, epoch=1, rung=1, bracket=0, **stop)
        journal.write("trial_ended", trial, status=status, reason="")
    journal.write("experiment_finished", state="finished")
    journal.close()
    (folder / "best" / "config.json").write_text(json.dumps(train.trial_config(load(folder), "00000")))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to run the examples in: it has the experiment NAME, `my_space.py`, `main.py` and `my_package`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_experiment(tmp_path / "results" / "NAME")
    (tmp_path / "my_space.py").write_text(fences(DOCS / "spaces.md", "python")[0])
    added = re.findall(r"^\+(\S.*)", fences(DOCS / "spaces.md", "diff")[0], re.MULTILINE)
    (tmp_path / "main.py").write_text(
        "\n".join([*added, "options = '--lr', '--gamma', '--epochs'", "raise OSError('trains')"])
    )
    for program in ("train", "train.py", "src/train.py", "run_clm.py", "bin/accelerate"):  # what the commands name
        (tmp_path / program).parent.mkdir(exist_ok=True)
        (tmp_path / program).touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "sweep.yaml").write_text(fences(DOCS / "spaces.md", "yaml")[0])
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "my_space.py").write_text((ROOT / "search_spaces" / "quadratic.py").read_text())
    return tmp_path


@pytest.mark.parametrize(("module", "words"), list(ours()))
def test_a_command_of_ours_is_accepted(module, words, here, monkeypatch, capsys):
    """A search prints its plan. Commands that go on until Ctrl-C, or reach a network, end once they are parsed."""
    places = {"s3://bucket/folder": f"file://{here}/store", "/storage/results": str(here / "shared")}
    words = [places.get(word, word) for word in words]
    if module == "tuner.run":
        monkeypatch.setattr(checking, "local_cluster", lambda: {"CPU": 8.0, "GPU": 8.0})
        monkeypatch.setattr(checking, "check_head", lambda address: None)
        words = ["--dry-run", *words]  # before a command
    if module in ("tuner.serve", "tuner.gpus"):
        parse = Parser.parse_args

        def parsed(self, *args, **options):
            parse(self, *args, **options)
            raise SystemExit(0)

        monkeypatch.setattr(Parser, "parse_args", parsed)
    name = f"{module}.__main__" if module == "tuner.serve" else module
    try:
        code = importlib.import_module(name).main(words)
    except SystemExit as ended:
        code = ended.code or 0
    assert code == 0, capsys.readouterr().err


def test_commands_of_ours_are_found():
    modules = {parameter.values[0] for parameter in ours()}
    assert modules == {f"tuner.{name}" for name in ("run", "train", "audit", "report", "serve", "gpus")}


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "spaces.md"], ids=lambda page: page.name)
def test_the_space_of_the_page_trains(page, tmp_path):
    code, *parts = fences(page, "python")
    for part in parts:  # parameters of a space
        names = {"tune": tune}
        exec(part, names)
        assert names.get("space") or Space(params=names["params"], train=print)
    path = tmp_path / "my_space.py"
    path.write_text(code)
    space = runpy.run_path(str(path))["space"]
    config = {"width": 64, "lr": 0.01, "batch_size": 64}
    assert config.keys() == space.params.keys()
    splits = hold_out(space.task.data(None), fraction=space.task.validation_fraction, seed=0)
    report = Training(space.task, splits, TrialSpec(config, 0, 1)).run_epoch()
    assert 0 < report["loss"] < 2 and 0 < report["accuracy"] <= 1


def test_the_function_of_the_page_resumes_from_its_checkpoint(tmp_path, monkeypatch):
    (code,) = [block for block in fences(DOCS / "spaces.md", "python") if "tune.get_checkpoint" in block]
    names, reports = {}, []

    def report(metrics, checkpoint):
        reports.append(metrics["loss"])
        checkpoint.to_directory(tmp_path / "saved")
        monkeypatch.setattr(tune, "get_checkpoint", lambda: tune.Checkpoint.from_directory(tmp_path / "saved"))
        if len(reports) == 4:
            raise SystemExit  # as a kill

    monkeypatch.setattr(tune, "report", report)
    monkeypatch.setattr(tune, "get_checkpoint", lambda: None)
    exec(code, names)
    with pytest.raises(SystemExit):
        names["space"].train({"lr": 0.5})
    names["space"].train({"lr": 0.5})
    assert reports == [9 / 4**epoch for epoch in range(1, 11)]


def test_the_script_of_the_page_searches_and_loads(tmp_path, one_ray, monkeypatch, capsys):
    (script,) = fences(DOCS / "python.md", "python")
    path = tmp_path / "my_script.py"
    path.write_text(script)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    # As a program of its own: its `__main__` is restored by `run_path`.
    with in_this_process():
        runpy.run_path(str(path), run_name="__main__")
    assert "tensor([" in capsys.readouterr().out


def test_each_request_that_changes_something_has_a_curl_that_is_accepted(tmp_path):
    known, shown = create_app(tmp_path).openapi()["paths"], set()
    bodies = {"": Start, "/resume": Resume, "/notes": Note, "/archive": Archive}
    text = "\n".join(fences(DOCS / "dashboard.md", "")).replace("\\\n", " ")
    for words in (shlex.split(line) for line in text.splitlines() if line.startswith("curl ")):
        options = dict(itertools.pairwise(words))
        path = words[-1].removeprefix("$ALL").replace("NAME", "{name}")
        assert words[-1].startswith("$ALL") and "$TOKEN" in words, words
        assert ("-d" in options) == ("$JSON" in words), "curl would send another content type"
        shown.add((options.get("-X", "POST" if "-d" in options else "GET"), f"/api/experiments{path}"))
        if "-d" in options:
            bodies[path.removeprefix("/{name}")].model_validate_json(options["-d"])
    verbs = {"post", "put", "patch", "delete"}
    assert shown == {(verb.upper(), path) for path, each in known.items() for verb in each.keys() & verbs}


def test_the_decision_of_the_page_has_the_journals_fields():
    (line,) = fences(DOCS / "first-search.md", "json")
    only_of_others = {"compared", "copied", "budget"}  # of the median rule, population-based training, a budget
    assert json.loads(line).keys() == {"event", *Decision._fields} - only_of_others - {"time", "order"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_values_files_and_modules_of_the_page_exist(page):
    """Of inline code, `--strategy ddp` and the like; what stands in a command is parsed."""
    known = OPTIONS | set(re.findall(r"--[a-z][a-z-]+", "\n".join(path.read_text() for path in SOURCES)))
    for span in spans(page):
        name, _, value = span.partition(" ")
        if re.fullmatch(r"--[a-z-]+", name):
            allowed = CHOICES.get(name[2:].replace("-", "_"))
            assert name in known and (not (allowed and value) or value in allowed), span
    folders = "tuner|tests|search_spaces|benchmarks|docker|docs|\\.ci"
    files = "cluster\\.yaml|pyproject\\.toml|constraints\\.txt"
    for name in re.findall(rf"(?<![\w/.~-])((?:{folders})/[\w./-]*|{files})", page.read_text()):
        assert (ROOT / name.rstrip(".")).exists(), name
    for name in re.findall(r"`(tuner(?:\.\w+)+)`", page.read_text()):
        path = ROOT / name.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").exists() or ROOT / "tuner" == path.parent, name


def headings(page):
    """The anchors of a page: its headings in lower case, words joined by hyphens."""
    matches = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in matches}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "benchmarks" / "README.md"], ids=str)
def test_links_and_pictures_exist(page):
    """The strict build of the site checks its links too, but neither the README nor the pictures."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"\w+:", target):
            continue
        place, _, anchor = target.partition("#")
        path = page.parent / place if place else page
        assert path.is_file(), target
        assert not anchor or anchor in headings(path), target


def test_the_sites_menu_has_every_page_and_the_picture_of_the_packages_is_the_contracts():
    menu = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    assert sorted(name for entry in menu for name in entry.values()) == sorted(page.name for page in PAGES[1:])
    picture, *_ = fences(DOCS / "how-it-is-built.md", "text")
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [each["layers"] for each in contracts if each.get("containers") == ["tuner"]]
    assert [re.split(r"\s{2,}", line)[0] for line in picture.splitlines()] == layers
    assert len((ROOT / "README.md").read_text().split()) <= 900


def test_each_step_of_the_walks_names_what_its_file_has():
    steps = re.findall(
        r"^\d\. (.*?)(?=^\d\. |\n\n)", (DOCS / "how-it-is-built.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(steps) > 10
    for step in steps:
        names = re.findall(r"`([^`]+)`", step)
        code = "\n".join((ROOT / name).read_text() for name in names if "/" in name)
        for name in names:
            assert "/" in name or name.partition("(")[0] in code, step


@pytest.mark.parametrize(("name", "least"), [("security", 45), ("gpus", 16)])
def test_every_test_that_the_page_names_exists(name, least):
    """docs/security.md and docs/gpus.md promise nothing that no test holds."""
    page, folder, file, checked = (DOCS / f"{name}.md").read_text(), ROOT / "tests", "", 0
    for place, test in re.findall(r"`((?!tests/)\w[\w/]*(?:\.py|/))?(?:::(test_\w+))?`", page):
        if place:  # `gpus.md` leaves out the folder of its own tests
            file = f"gpu/{place}" if (folder / "gpu" / place).exists() else place
        if place or test:
            checked += 1
            assert (folder / file).exists(), file
        assert not test or f"\ndef {test}(" in (folder / file).read_text(), f"{file}::{test}"
    assert checked >= least
