"""The folder of --spaces: who may change it, which files a request may name, and what a search then runs."""

import os

import pytest

from tests.serve.conftest import begin
from tuner.errors import RequestError
from tuner.record.saved_experiment import save_experiment
from tuner.serve.__main__ import main
from tuner.serve.access.own_spaces import OwnSpaces
from tuner.serve.jobs.requests import SETTABLE
from tuner.spec.experiment import Experiment
from tuner.spec.facts import facts_of
from tuner.spec.spaces import find_space, list_spaces

ALL = "/api/experiments"
SPACE = '''"""A parabola.

More about it.
"""
from ray import tune

from tuner import space as tuners


def train(config):
    tune.report({"loss": config["x"] ** 2})


other = space = tuners.Space(params={"x": tune.uniform(0, 1)}, train=train, num_samples=3, max_epochs=2)
'''
SCRIPT = '''"""A script."""
from ray import tune

from tuner import script

x = script({"x": tune.uniform(0, 1)}, metric="cost", num_samples=3).get("x", 0.5)
tune.report({"cost": x})
'''
STRANGER = 12345


def write(path, text=SPACE, mode=0o644):
    path.write_text(text)
    path.chmod(mode)
    return path


def given_away(path):
    if os.geteuid() != 0:
        pytest.skip("only root gives a file away")
    os.chown(path, STRANGER, -1, follow_symlinks=False)


@pytest.fixture
def own(tmp_path):
    """A folder that only this user can change, with the space `mine.py`."""
    folder = tmp_path / "above" / "own"
    folder.mkdir(parents=True)
    for each in (folder.parent, folder):
        each.chmod(0o755)  # whatever the umask
    write(folder / "mine.py")
    return folder


@pytest.fixture
def served(service, own):
    return service.reopened(OwnSpaces(str(own), service.results))


def listed(service):
    rows = service.anyone.get("/api/spaces").json()["spaces"]
    assert [row["name"] for row in rows[: len(list_spaces())]] == list(list_spaces())
    return {row["name"]: row for row in rows[len(list_spaces()) :]}


WRONG = {
    "missing": (lambda own: own.rename(own.parent / "moved"), "is no folder; give the folder of your .py files"),
    "a file": (lambda own: (own.rename(own.parent / "moved"), write(own)), "is no folder"),
    "a link": (lambda own: (own.rename(own.parent / "moved"), own.symlink_to(own.parent / "moved")), "symbolic link"),
    "group": (lambda own: own.chmod(0o775), "can be changed by other users; run chmod go-w"),
    "others": (lambda own: own.chmod(0o757), "can be changed by other users; run chmod go-w"),
    "sticky": (lambda own: own.chmod(0o1777), "can be changed by other users"),
    "owner": (given_away, f"belongs to another user (id {STRANGER}); use one that only you can change"),
    "group above": (lambda own: own.parent.chmod(0o775), "above can be changed by other users"),
    "owner above": (lambda own: given_away(own.parent), "above belongs to another user"),
    "sticky and another owner's above": (lambda own: (own.parent.chmod(0o1777), given_away(own.parent)), "another"),
}


@pytest.mark.parametrize("how", WRONG)
def test_a_folder_that_others_can_change_ends_the_service_at_its_start(own, monkeypatch, capsys, how):
    monkeypatch.setattr("tuner.serve.__main__.state_folder", lambda results: pytest.fail("it starts"))
    change, says = WRONG[how]
    change(own)
    assert main(["--results", str(own.parents[1] / "results"), "--spaces", str(own), "--port", "0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tuner: error: --spaces {own}: ") and says in line


def test_a_folder_may_lie_in_a_sticky_one_and_behind_a_link_above(own):
    own.parent.chmod(0o1777)
    assert list(OwnSpaces(str(own), own.parents[1] / "results").files()) == ["mine.py"]
    link = own.parents[1] / "link"
    link.symlink_to(own.parent)
    assert OwnSpaces(f"{link}/own/", own.parents[1] / "results").find("mine.py") == own / "mine.py"


def test_the_option_brings_the_spaces_and_the_start_says_which_files_it_leaves_out(own, monkeypatch, capsys):
    parts = {}

    def made(results, **options):
        parts.update(options)
        raise RequestError("that is enough")

    monkeypatch.setattr("tuner.serve.__main__.create_app", made)
    write(own / "group.py", mode=0o664)
    assert main(["--results", str(own.parents[1] / "results"), "--spaces", str(own)]) == 2
    parts["searches"].close()
    assert list(parts["searches"].spaces.files()) == ["mine.py"]
    assert f"left out of --spaces: {own}/group.py can be changed by other users" in capsys.readouterr().err


def test_results_are_never_in_the_folder_nor_the_folder_in_results(own, tmp_path):
    (tmp_path / "link").symlink_to(own)
    for results in (own, own / "results", own.parent, tmp_path, tmp_path / "link" / "new"):
        with pytest.raises(RequestError, match="^--spaces .* must be neither the results folder .*; give another"):
            OwnSpaces(str(own), results)
    OwnSpaces(str(own), own.parent / "own results")


def test_own_spaces_are_listed_by_their_text_and_one_cannot_be_taken_for_one_that_ships(served, own, tmp_path):
    touch = f"open({str(tmp_path / 'imported')!r}, 'w').close()\n"
    write(own / "quadratic.py", f"{SPACE}{touch}")
    write(own / "broken.py", '"""No."""\nspace = Space(')
    write(own / "script.py", SCRIPT)
    write(own / "_helper.py")
    rows = listed(served)
    assert not (tmp_path / "imported").exists() and list(rows) == ["broken.py", "mine.py", "quadratic.py", "script.py"]
    assert rows["broken.py"]["about"].startswith("(does not parse: ") and rows["mine.py"]["about"] == "A parabola."
    for name in ("mine.py", "script.py"):
        whole, shown = vars(find_space(str(own / name)).options), rows[name]["defaults"]
        assert {option: whole[option] for option in shown} == shown, name
    assert rows["mine.py"]["defaults"].keys() == set(SETTABLE) and rows["broken.py"]["defaults"] == {}
    assert "max_epochs" not in rows["script.py"]["defaults"] and rows["script.py"]["defaults"]["num_samples"] == 3
    wanted = {"quadratic": "quadratic", "quadratic.py": own / "quadratic.py", "script.py": own / "script.py"}
    for space, runs in wanted.items():
        row = served.start(space=space)
        assert row["name"].startswith(f"{space.removesuffix('.py')}-20")
        assert served.searches.get(row["name"]).arguments[0] == f"--space={runs}"
    assert served.searches.get(row["name"]).options["metric"] == "cost"
    served.searches.step()
    first, *_ = served.jobs.submitted.values()
    assert first[:1] == ["--space=quadratic"]


def test_what_others_can_change_is_listed_nowhere_and_its_refusal_says_why(served, own, tmp_path):
    write(own / "group.py", mode=0o664)
    write(own / "others.py", mode=0o646)
    (own / "link.py").symlink_to(write(tmp_path / "elsewhere.py"))
    (own / "gone.py").symlink_to(tmp_path / "nowhere")
    (own / "folder.py").mkdir()
    os.mkfifo(own / "pipe.py")
    write(own / "_helper.py")
    write(own / ".hidden.py")
    says = {
        "group.py": f"{own}/group.py can be changed by other users; run chmod go-w {own}/group.py",
        "others.py": "can be changed by other users",
        "link.py": f"{own}/link.py is a symbolic link",
        **dict.fromkeys(("gone.py", "folder.py", "pipe.py", "_helper.py", ".hidden.py"), "must be one of cifar, "),
    }
    for name, why in says.items():
        assert why in served.start(422, space=name)["error"], name
    assert list(listed(served)) == ["mine.py"]
    assert len(OwnSpaces(str(own)).scan()[1]) == 3  # printed at the start
    served.start(space="mine.py", name="before")
    for path, mode in ((own / "mine.py", 0o664), (own, 0o775), (own.parent, 0o777)):  # after the service's start
        path.chmod(mode)
        assert "can be changed by other users" in served.start(422, space="mine.py")["error"] and not listed(served)
        path.chmod(0o755)
    assert list(listed(served)) == ["mine.py"]
    assert [search.name for search in served.searches.all()] == ["before"]
    given_away(own / "mine.py")
    assert f"belongs to another user (id {STRANGER})" in served.start(422, space="mine.py")["error"]


def test_no_request_names_a_path(served, own):
    (own / "below").mkdir()
    elsewhere = (own.parent / "x.py", own.parents[1] / "x.py", own / "below" / "x.py", served.results / "x.py")
    for path in elsewhere:
        write(path)
    names = ["../x.py", "../../x.py", "below/x.py", "./mine.py", "mine.py:space", "mine.py:other", "mine", "mine.py/"]
    names += [str(own / "mine.py"), *map(str, elsewhere), "x.py", "MINE.PY", "mine.py\x00", "mine.py\n", "~/x.py", ""]
    for name in (*names, "search_spaces/quadratic.py", "/etc/x.py", "a/b.py", "mine.py " * 1000):
        error = served.start(422, space=name)["error"]
        assert "must be one of cifar, " in error and "mine.py" in error and not served.searches.all(), name
    assert "did you mean 'mine.py'?" in served.start(422, space="mime.py")["error"]


def searched(service, name, path, space):
    """A search over the space `space` of the file `path`, as it is after its end."""
    facts = {"space": facts_of(find_space(str(path)), [])["space"]}
    journal = begin(service.results, name, facts, space=space, max_epochs=2, reduction_factor=2)
    journal.write("experiment_finished", state="finished", reason="")
    journal.close()


def test_a_search_over_an_own_space_is_resumed_with_the_file_of_the_folder(served, own, tmp_path):
    mine = own / "mine.py"
    spaces = {"whole": str(mine), "relative": "mine.py", "deeper": "own/mine.py", "other": f"{mine}:other"}
    for name, space in spaces.items():
        searched(served, name, mine, space)
        assert served.owner.get(f"{ALL}/{name}").json()["not_resumed"] == ""
        assert served.owner.post(f"{ALL}/{name}/resume", json={"num_samples": 30}).status_code == 202
        runs = f"{mine}:other" if name == "other" else mine
        assert served.searches.get(name).arguments == [f"--resume={name}", f"--space={runs}", "--num-samples=30"]
        assert served.searches.get(name).options["space"] == space
        served.owner.post(f"{ALL}/{name}/stop")
    mine.chmod(0o664)
    for row in served.owner.get(ALL).json()["experiments"]:
        answer = served.owner.post(f"{ALL}/{row['name']}/resume")
        assert answer.status_code == 422 and f"{mine} can be changed by other users" in answer.json()["error"]
        assert row["not_resumed"] == answer.json()["error"]


def test_a_search_over_any_other_file_says_how_it_can_be_resumed(served, own, tmp_path):
    marker = tmp_path / "imported"
    elsewhere = write(tmp_path / "mine.py")
    searched(served, "absolute", elsewhere, str(elsewhere))
    searched(served, "relative", elsewhere, "mine.py")  # another file of that name
    searched(served, "module", elsewhere, "package.mine")
    elsewhere.write_text(f"open({str(marker)!r}, 'w').close()\n")
    for name, space in {"absolute": f"{elsewhere}'", "relative": f"'mine.py' ('{elsewhere}')", "module": "n"}.items():
        row = served.owner.get(f"{ALL}/{name}").json()
        answer = served.owner.post(f"{ALL}/{name}/resume")
        assert answer.status_code == 422 and row["not_resumed"] == answer.json()["error"]
        assert space in row["not_resumed"] and f"tuner.run --resume {name} " in row["not_resumed"]
        allowed = "start tuner.serve with --spaces and the folder of that file" in row["not_resumed"]
        assert allowed == (name != "module")
    searched(served, "nameless", own / "mine.py", "mine.py")
    facts = {"created": 1.0, "space": {"params": {}, "sha256": ""}}  # no path: only tuner.run knows that it differs
    save_experiment(Experiment(name="nameless", space="mine.py", results="r"), served.results / "nameless", facts)
    answer = served.owner.post(f"{ALL}/nameless/resume")
    assert answer.status_code == 422 and "--space was 'mine.py'" in answer.json()["error"]
    assert not marker.exists() and not served.searches.all()
    searched(served, "own", own / "mine.py", str(own / "mine.py"))
    without = served.reopened()
    assert "the service resumes only searches over" in without.owner.get(f"{ALL}/own").json()["not_resumed"]
    assert not listed(without) and "must be one of" in without.start(422, space="mine.py")["error"]
