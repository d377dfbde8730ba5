"""schemathesis asks each route for what its schema allows and forbids, and finds no answer that the schema has not."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

from schemathesis.specs.openapi.checks import positive_data_acceptance  # noqa: E402

from tuner.serve import stream  # noqa: E402

FEW = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
def schema(service, monkeypatch):
    """The schema of a service with one experiment of every kind of value; a search that is started is only queued."""
    monkeypatch.setattr("tuner.serve.stream.PAUSE_S", 0.01)
    # A stream ends once it has sent what there is; a service that ends would answer no costly question.
    monkeypatch.setattr("tuner.serve.app.follow", lambda journal, after, _: stream.follow(journal, after, lambda: True))
    journal = service.begin("demo")
    journal.write("trial_started", "0", config={"x": 1.5, "act": "relu", "on": True}, resources={"CPU": 1}, node="n")
    for epoch, value in enumerate([2.0, float("inf"), float("nan")], 1):
        journal.write("report", "0", epoch=epoch, metrics={"loss": value})
        rung = {"rung": None, "bracket": None, "cutoff": None, "recorded": 0}
        journal.write("decision", "0", epoch=epoch, value=value, action="continue", reason="first", **rung)
    journal.write("trial_failed", "0", error="boom", kind="user", will_retry=False)
    journal.write("trial_ended", "0", status="failed", reason="boom")
    journal.close()
    return schemathesis.openapi.from_asgi("/api/openapi.json", service.app, headers={"Host": "127.0.0.1"})


@pytest.mark.parametrize("name", ["demo", None])
def test_every_answer_is_one_that_the_schema_describes(schema, service, name):
    headers = {"Authorization": f"Bearer {service.token}", "Host": "127.0.0.1"}
    labels = []

    def ask(case):
        if name and "name" in case.path_parameters:
            case.path_parameters["name"] = name
        # Which choices go together (bohb with bohb, a grace period below the epochs), and which parameters an
        # experiment has, no schema can say.
        asks = case.method == "POST" or case.path.endswith(("/what-if", "/contour", "/importance"))
        case.call_and_validate(headers=headers, excluded_checks=[positive_data_acceptance] if asks else [])

    for found in schema.get_all_operations():
        operation = found.ok()
        for mode in schemathesis.GenerationMode:
            try:
                FEW(given(case=operation.as_strategy(generation_mode=mode))(ask))()
            except Unsatisfiable:
                assert mode.is_negative, operation.label  # nothing of it could be wrong: any text is a name
        labels.append(operation.label)
    assert len(labels) >= 12 and "POST /api/experiments" in labels
