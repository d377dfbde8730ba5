"""The audit: which trials, how sure, the search's own figures again, and where it goes on."""

import io
import json
import math
import shutil
import zipfile
from types import SimpleNamespace

import pytest
import torch
from scipy.stats import hypergeom

from tuner import audit
from tuner.audit import drawn_trials, epochs_of, main
from tuner.core.events import Report
from tuner.errors import RequestError
from tuner.record.records import TrialRecord
from tuner.record.results import ExperimentRecord, load
from tuner.record.saved_experiment import load_experiment, save_experiment
from tuner.spec.experiment import Experiment
from tuner.views.audit_record import false_prunes, read_audit, result_of

TRIAL = {"trial": "00001", "stopped": 1, "epochs": 4, "best": 0.5, "best_epoch": 2, "beats": False, "differs": "",
         "seconds": 1.0}  # fmt: skip


@pytest.mark.parametrize(("pruned", "audited"), [(8, 3), (1, 1), (30, 5), (31, 30), (40, 0), (200, 20)])
def test_the_interval_is_the_exact_one_of_a_finite_population(pruned, audited):
    for beat in range(audited + 1):
        possible = range(beat, pruned - (audited - beat) + 1)
        wrong = [k for k in possible if min(hypergeom.sf(beat - 1, pruned, k, audited),
                                            hypergeom.cdf(beat, pruned, k, audited)) > 0.025]  # fmt: skip
        assert false_prunes(beat, audited, pruned, 0.95) == (min(wrong), max(wrong))


def test_a_larger_sample_holds_the_smaller():
    trials = [f"{n:05}" for n in range(30)]
    assert drawn_trials(trials, 9, seed=3)[:4] == drawn_trials(trials, 4, seed=3) != drawn_trials(trials, 4, seed=4)


@pytest.mark.parametrize(
    ("content", "packing", "wrong"),
    [
        ({"extra": {}, "training": {"x": torch.zeros(10_000)}}, zipfile.ZIP_DEFLATED, "longer than the file"),
        ({"training": {}}, zipfile.ZIP_STORED, "cannot be read"),
        (3, zipfile.ZIP_STORED, "cannot be read"),
        (
            SimpleNamespace(),
            zipfile.ZIP_STORED,
            r"more than tensors and plain values \(types.SimpleNamespace\)\); remove it",
        ),
    ],
)
def test_a_state_that_an_audit_did_not_write_is_refused_before_it_is_unpacked(tmp_path, content, packing, wrong):
    (tmp_path / "audit").mkdir()
    written = io.BytesIO()
    torch.save(content, written)
    with zipfile.ZipFile(written) as whole, zipfile.ZipFile(tmp_path / "audit" / "0.pt", "w", packing) as packed:
        for each in whole.namelist():
            packed.writestr(each, whole.read(each))
    record, trial = SimpleNamespace(experiment=SimpleNamespace(folder=tmp_path)), SimpleNamespace(id="0", reports=())
    with pytest.raises(RequestError, match=wrong):
        next(epochs_of(record, trial))


def test_a_metric_that_never_becomes_finite_repeats_the_search_and_is_named(monkeypatch):
    experiment = Experiment(metric="accuracy", mode="max", prune_by="loss")
    monkeypatch.setattr(
        audit, "epochs_of", lambda record, trial: enumerate([{"accuracy": math.nan}, {"accuracy": None}], 1)
    )
    trial = TrialRecord("00001", {}, reports=(Report(1, {"loss": 1.0, "accuracy": math.nan}, None, 0.0),))
    found = audit.trained(SimpleNamespace(experiment=experiment), trial)
    assert (found.best, found.differs) == (None, "")
    rest = {"beat": 0, "done": 1, "winner": "00000", "winner_value": 0.5, "estimate": ""}
    first, _ = audit.lines(SimpleNamespace(metric="accuracy", trials=[found], **rest))
    assert first == "trial 00001: stopped at epoch 1; it has no finite accuracy"


def test_a_final_metric_that_a_raised_max_epochs_puts_off_is_no_difference(monkeypatch):
    experiment = Experiment(metric="accuracy", mode="max", prune_by="loss")
    monkeypatch.setattr(audit, "epochs_of", lambda record, trial: enumerate([{"accuracy": None}, {"accuracy": 0.4}], 1))
    trial = TrialRecord("00001", {}, reports=(Report(1, {"loss": 1.0, "accuracy": 0.5}, None, 0.0),))
    found = audit.trained(SimpleNamespace(experiment=experiment), trial)
    assert (found.best, found.best_epoch, found.epochs, found.differs) == (0.5, 1, 2, "")


def test_a_trial_that_breaks_a_constraint_at_its_end_would_not_have_won(monkeypatch):
    experiment, trial = Experiment(constraint=("size <= 10",)), TrialRecord("00001", {})
    for size, best in ((9, 0.25), (11, None)):
        reports = [{"loss": 0.5, "size": 1}, {"loss": 0.25, "size": size}]
        monkeypatch.setattr(audit, "epochs_of", lambda record, trial, reports=reports: enumerate(reports, 1))
        assert audit.trained(SimpleNamespace(experiment=experiment), trial).best == best


def test_an_audit_of_several_metrics_is_refused():
    several = Experiment(metric=("accuracy", "size"), mode=("max", "min"), name="two")
    record = ExperimentRecord(several, {}, (TrialRecord("00001", {}),), "finished")
    with pytest.raises(RequestError, match="two has several metrics, accuracy and size: an audit compares trials by"):
        audit.audit(record, 1, 0)


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"seed": "1"}, "seed: Input should be a valid integer"),
        ({"sample": [1]}, "sample: 0: Input should be a valid string"),
        ({"trials": [{"trial": "00001"}]}, "trials: 0: stopped: Field required"),
        ({"trials": [TRIAL | {"best": float("nan")}]}, "trials: 0: best: Input should be a finite number"),
        ({"trials": [TRIAL | {"beats": 1}]}, "trials: 0: beats: Input should be a valid boolean"),
    ],
)
def test_an_audit_with_a_wrong_field_is_damaged(tmp_path, changed, wrong):
    audit = {"winner": "00000", "seed": 0, "sample": ["00001"], "trials": [TRIAL]}
    (tmp_path / "audit.json").write_text(json.dumps(audit))
    assert read_audit(tmp_path).trials[0].best == 0.5
    (tmp_path / "audit.json").write_text(json.dumps(audit | changed))
    with pytest.raises(RequestError, match=f"audit.json is damaged.*{wrong}"):
        read_audit(tmp_path)


def test_pruned_trials_are_trained_to_the_end_with_the_searchs_figures(search_here, capsys):
    ran = search_here("tiny.py", "--num-samples", "8")
    words = [ran.folder.name, "--results", str(ran.folder.parent)]
    assert main([*words, "--trials", "1"]) == 0
    first = json.loads((ran.folder / "audit.json").read_text())["trials"]
    # The states that another audit kept have no model.
    (ran.folder / "audit").mkdir()
    for trial in ran.record.trials:
        torch.save({"training": {}, "extra": {}}, ran.folder / "audit" / f"{trial.id}.pt")
    assert main([*words, "--trials", "3"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert ".pt cannot be read: KeyError" in line
    shutil.rmtree(ran.folder / "audit")
    # From the start: the checkpoints are gone.
    for trial in ran.record.trials:
        for saved in (ran.folder / "ray" / trial.id).glob("checkpoint_*/state.pt"):
            saved.unlink()
    assert main([*words, "--trials", "3"]) == 0
    result = result_of(load(ran.folder))
    assert result.done == result.asked == 3 and result.matching == 3
    assert {t.epochs for t in result.trials} == {8} and result.trials[0].seconds == first[0]["seconds"]
    assert not (ran.folder / "audit").exists() and "would have beaten" in capsys.readouterr().out
    assert main([*words, "--seed", "1"]) == 2 and main(["nowhere", *words[1:]]) == 2


def test_an_audit_with_other_data_needs_trust(search_here, capsys):
    ran = search_here("tiny.py", "--num-samples", "8")
    experiment, facts = load_experiment(ran.folder)
    facts["data"]["sums"]["train"]["targets"] = "others"
    save_experiment(experiment, ran.folder, facts)
    words = [ran.folder.name, "--results", str(ran.folder.parent), "--trials", "1"]
    assert main(words) == 2
    assert "train has other targets" in capsys.readouterr().err
    assert main([*words, "--trust"]) == 0
