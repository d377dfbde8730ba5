"""How sure an answer is, in words: the best two settings beside their wobble, and confirmed settings."""

from dataclasses import replace

import pytest

from tuner.core.events import Report
from tuner.record.records import TrialRecord
from tuner.record.results import ExperimentRecord
from tuner.spec.experiment import Experiment
from tuner.views.certainty import certainty, confirmed_lines
from tuner.views.commands import confirm_command
from tuner.views.savings import pruned
from tuner.views.verdict import ending_lines


def trial(number, values, confirms="", status="completed"):
    reports = tuple(Report(e, {"loss": v}, None, e, 100 * number + e) for e, v in enumerate(values, 1))
    x = int(confirms or number)
    return TrialRecord(f"{number:05}", {"x": x}, status, "", reports, confirms=confirms, seed=number)


def record(*trials, state="finished", **options):
    experiment = Experiment(**{"space": "x", "max_epochs": 8, "name": "e", "results": "/nowhere", **options})
    return ExperimentRecord(experiment, {}, trials, state)


STEADY = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2]  # no wobble: it falls by the same step


def test_the_best_two_settings_are_compared_with_the_wobble_of_their_curves():
    steps = [value + 0.03 * (-1) ** n for n, value in enumerate(STEADY)]
    calm, wild = (
        record(trial(0, STEADY), trial(1, [v + 0.1 for v in STEADY])),
        record(trial(0, STEADY), trial(1, steps)),
    )
    text = certainty(calm)
    assert text.startswith(
        "The best two settings, of trials 00000 and 00001, are 0.1 apart in loss, each with one seed"
    )
    assert text.endswith("which is less than that distance.")
    assert certainty(wild).endswith("so chance may have decided which is better.")
    huge = certainty(record(*(trial(n, [1e300 * (-1) ** (e + n) for e in range(9)]) for n in range(2))))
    assert "e+300 per epoch, so chance may have decided" in huge
    short = certainty(record(trial(0, STEADY[:4]), trial(1, STEADY[:3])))
    assert short.endswith("their curves are too short to show how much chance moves them.")
    assert (
        certainty(record(trial(0, STEADY)))
        == certainty(record(trial(0, STEADY), trial(1, STEADY), state="running"))
        == ""
    )


@pytest.mark.parametrize(
    ("options", "number"), [({}, 3), ({"confirm": 2}, 0), ({"scheduler": "pbt"}, 0), ({"state": "interrupted"}, 0)]
)
def test_the_command_that_confirms_is_offered_once_the_search_has_ended(options, number):
    searched = record(*(trial(n, [n, 0.1 * n]) for n in range(5)), **options)
    command = confirm_command(searched)
    assert command.endswith(f"--resume e --results /nowhere --confirm {number}") if number else command == ""


def test_what_is_confirmed_and_what_is_left_is_said():
    searched = trial(0, [0.2, 0.3]), trial(1, [0.1])
    done = trial(2, [0.4], "00000"), trial(3, [0.6], "00001"), trial(4, [0.42], "00000"), trial(5, [0.64], "00001")
    options = {"confirm": 2, "confirm_seeds": 2, "max_epochs": 2}
    whole = record(*searched, *done, **options)
    text, (first, second) = certainty(whole), confirmed_lines(whole)
    assert text.startswith("The setting of trial 00000 has the mean loss 0.41 over 2 other seeds, with 95 % confidence")
    assert (
        "probability the best mean of the 2 confirmed settings. The search found 0.2, which was 0.21 better by luck."
        in text
    )
    assert first.startswith("confirmed   trial 00000: mean 0.41, ") and first.endswith("which was 0.21 better by luck")
    assert second.startswith(f"{'':12}trial 00001: mean 0.62, ")
    assert whole.best()[0].id == "00002"  # the better training of the winner
    part = record(*searched, *done[:3], state="interrupted", **options)
    assert certainty(part) == "Not confirmed: 3 of 4 trainings with other seeds have ended; --resume goes on."
    assert part.best()[0].id == "00001" and confirmed_lines(part)[0].startswith("so far      trial 00000: mean 0.41")
    assert "a resume with a larger budget goes on" in certainty(replace(part, state="finished", out_of_time=True))
    failed = record(*searched, *(trial(n, [], f"0000{n % 2}", "failed") for n in range(2, 6)), **options)
    assert certainty(failed) == "Not confirmed: no training with another seed has a finite value."
    assert failed.best()[0].id == "00001"
    assert certainty(failed) in ending_lines(failed)[0] and "NOTE" not in "".join(confirmed_lines(failed))


def test_a_training_of_confirm_that_diverges_is_no_pruned_trial_of_the_search():
    again = trial(1, [float("nan")], "00000", "pruned"), trial(2, [0.4], "00000")
    assert pruned(record(trial(0, [0.2]), *again, confirm=1, confirm_seeds=2)).startswith("0 of 1 trial")


def test_without_a_setting_to_confirm_no_resume_is_promised():
    nothing = record(trial(0, [float("nan")], status="pruned"), confirm=2)
    assert certainty(nothing) == ""
    broken = record(trial(0, [0.2]), confirm=2, constraint=("loss <= 0.1",))
    assert certainty(broken) == "Not confirmed: no trial keeps all constraints."


def test_missing_epochs_are_named_only_if_the_search_stopped_the_trial():
    options = {"confirm": 1, "confirm_seeds": 2, "max_epochs": 100}
    again = trial(1, [0.4, 0.1], "00000"), trial(2, [0.4, 0.12], "00000")
    whole, cut = (record(trial(0, [0.4, 0.2], status=status), *again, **options) for status in ("completed", "pruned"))
    assert "The search found 0.2, which was no luck." in certainty(whole)
    assert "The search found 0.2 by epoch 2, where it stopped the trial." in certainty(cut)
