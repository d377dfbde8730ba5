"""Any options make an experiment that is read back as it was saved, or are refused by name."""

import dataclasses
import tempfile
from pathlib import Path

import hypothesis.strategies as some
from hypothesis import given, settings

from tuner.errors import RequestError
from tuner.record.saved_experiment import load_experiment, save_experiment
from tuner.spec.experiment import CHOICES, PAIRS, Experiment, option


def values_of(field):
    """Right and wrong values of an option alike."""
    choices = [some.sampled_from(CHOICES[field.name])] if CHOICES[field.name] else []
    kinds = {
        "int": [some.integers(-2, 20), some.integers(0, 2**33)],
        "float": [some.floats(allow_nan=True, allow_infinity=True), some.integers(-1, 8)],
        "str": [some.text(max_size=6), some.sampled_from(["30m", "90s", "a", "x/y", "s3://b"])],
        "bool": [some.booleans()],
    }
    named = [values for kind, some_values in kinds.items() if kind in str(field.type) for values in some_values]
    return some.one_of(choices + named)


@some.composite
def options(draw):
    fields = draw(some.lists(some.sampled_from(dataclasses.fields(Experiment)), max_size=4, unique_by=lambda f: f.name))
    searcher = draw(some.sampled_from(sorted(PAIRS)))
    chosen = {"searcher": searcher, "scheduler": draw(some.sampled_from(PAIRS[searcher]))}
    return chosen | {field.name: draw(values_of(field)) for field in fields}


@settings(deadline=None, max_examples=400)
@given(options())
def test_an_experiment_is_refused_by_an_options_name_or_read_back_as_it_was(choices):
    try:
        experiment = Experiment(**choices)
    except RequestError as error:
        assert any(option(name) in str(error) for name in choices) and "\n" not in str(error)
        return
    with tempfile.TemporaryDirectory() as folder:
        save_experiment(experiment, Path(folder), {"facts": 1})
        assert load_experiment(Path(folder)) == (experiment, {"facts": 1})
