"""schemathesis asks each route for what its schema allows and forbids, and finds no answer that the schema has not."""

import itertools

import pytest
from fuzzing import TIERS, ends_soon
from hypothesis import Phase, given
from hypothesis.errors import Unsatisfiable

from tests.serve.conftest import train

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

from schemathesis.specs.openapi.checks import positive_data_acceptance  # noqa: E402


@pytest.fixture
def schema(service, monkeypatch):
    """The schema of a service with one experiment of every kind of value; a search that is started is only queued."""
    # A service that ends would answer no expensive analysis.
    monkeypatch.setattr("tuner.serve.app.event_frames", ends_soon)
    journal = service.begin("demo")
    losses, call = [2.0, float("inf"), float("nan")], {"action": "continue", "reason": "first"}
    decisions = [call | {"epoch": epoch, "value": value} for epoch, value in enumerate(losses, 1)]
    train(journal, "0", {"x": 1.5, "act": "relu", "on": True}, losses, *decisions, error="boom")
    journal.close()
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", service.app, headers={"Host": "127.0.0.1"})
    # The usual refusals, and 413: a text that is too long may make the whole body too large.
    schema.config.checks.negative_data_rejection.expected_statuses.append("413")
    return schema


@pytest.mark.slow
@pytest.mark.parametrize("tier", TIERS)
def test_every_answer_is_one_that_the_schema_describes(schema, service, tier):
    operations = [operation.ok() for operation in schema.get_all_operations()]
    modes = list(schemathesis.GenerationMode)
    names = ("demo", None)
    pieces = len(operations) * len(modes) * len(names)
    few = tier.settings(16 / pieces, phases=[Phase.explicit, Phase.generate])

    def asking(name):
        def ask(case):
            if name and "name" in case.path_parameters:
                case.path_parameters["name"] = name
            # No schema can say which choices go together (bohb with bohb), and which parameters an experiment has.
            free = case.method == "POST" or case.path.endswith(("/what-if", "/contour", "/importance"))
            headers = {"Authorization": f"Bearer {service.token}", "Host": "127.0.0.1"}
            case.call_and_validate(headers=headers, excluded_checks=[positive_data_acceptance] if free else [])

        return ask

    for operation, mode in itertools.product(operations, modes):
        cases = operation.as_strategy(generation_mode=mode)
        try:
            for name in names:
                few(given(case=cases)(asking(name)))()
        except Unsatisfiable:
            assert mode.is_negative, operation.label  # nothing of it could be wrong: any text is a name
    labels = {operation.label for operation in operations}
    assert len(labels) >= 12 and "POST /api/experiments" in labels
