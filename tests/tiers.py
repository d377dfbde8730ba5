"""Which further cases of a test run with the slow tests of `.ci/run`, and which run only every night."""

import pytest


def further(cases, num_slow=0):
    """The cases as parameters: the first `num_slow` are slow tests, the others are nightly ones."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=pytest.mark.slow if number < num_slow else pytest.mark.nightly,
        )
        for number, case in enumerate(cases)
    ]
