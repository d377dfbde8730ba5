"""schemathesis asks each route for what its schema allows and forbids, alone and in sequences in which one answer names
what the next request asks for, and finds no answer that the schema has not."""

import contextlib
import itertools

import pytest
from fuzzing import TIERS
from hypothesis import Phase, given
from hypothesis.errors import Flaky, Unsatisfiable
from hypothesis.stateful import run_state_machine_as_test

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

from schemathesis.specs.openapi.checks import positive_data_acceptance  # noqa: E402

from tuner.serve.reading import stream  # noqa: E402

STEPS = 8  # requests of a sequence at most


@pytest.fixture
def schema(service, monkeypatch):
    """The schema of a service with one experiment of every kind of value; a search that is started is only queued."""

    # A stream ends once it has sent what there is; a service that ends would answer no expensive analysis.
    def few(journal, after, *_, **__):
        looks = itertools.count()
        return stream.event_frames(journal, after, lambda: next(looks) > 1, pause_s=0)

    monkeypatch.setattr("tuner.serve.app.event_frames", few)
    journal = service.begin("demo")
    journal.write("trial_started", "0", config={"x": 1.5, "act": "relu", "on": True}, resources={"CPU": 1}, node="n")
    for epoch, value in enumerate([2.0, float("inf"), float("nan")], 1):
        journal.write("report", "0", epoch=epoch, metrics={"loss": value})
        rung = {"rung": None, "bracket": None, "cutoff": None, "recorded": 0}
        journal.write("decision", "0", epoch=epoch, value=value, action="continue", reason="first", **rung)
    journal.write("trial_failed", "0", error="boom", kind="user", will_retry=False)
    journal.write("trial_ended", "0", status="failed", reason="boom")
    journal.close()
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", service.app, headers={"Host": "127.0.0.1"})
    # The usual refusals, and 413: a text that is too long may make the whole body too large.
    schema.config.checks.negative_data_rejection.expected_statuses.append("413")
    return schema


def headers_of(service):
    return {"Authorization": f"Bearer {service.token}", "Host": "127.0.0.1"}


def excluded(case):
    """Which choices go together (bohb with bohb, a grace period below the epochs), and which parameters an experiment
    has, no schema can say."""
    asks = case.method == "POST" or case.path.endswith(("/what-if", "/contour", "/importance"))
    return [positive_data_acceptance] if asks else []


def asking(service, name):
    """What asks for a case, of the experiment of that name, and checks the answer."""

    def ask(case):
        if name and "name" in case.path_parameters:
            case.path_parameters["name"] = name
        case.call_and_validate(headers=headers_of(service), excluded_checks=excluded(case))

    return ask


@pytest.mark.parametrize("tier", TIERS)
def test_every_answer_is_one_that_the_schema_describes(schema, service, tier):
    operations = [operation.ok() for operation in schema.get_all_operations()]
    modes = list(schemathesis.GenerationMode)
    names = ("demo", None)
    few = tier.settings(
        "routes", pieces=len(operations) * len(modes) * len(names), phases=[Phase.explicit, Phase.generate]
    )
    for operation, mode in itertools.product(operations, modes):
        cases = operation.as_strategy(generation_mode=mode)
        try:
            for name in names:
                few(given(case=cases)(asking(service, name)))()
        except Unsatisfiable:
            assert mode.is_negative, operation.label  # nothing of it could be wrong: any text is a name
    labels = {operation.label for operation in operations}
    assert len(labels) >= 12 and "POST /api/experiments" in labels


@pytest.mark.parametrize("tier", TIERS)
def test_what_one_answer_names_can_be_asked_for_next(schema, service, tier):
    asked, wrong = set(), []

    class Sequence(schema.as_state_machine()):
        def setup(self):
            for search in service.searches.all():
                service.searches.forget(search.name)

        def get_call_kwargs(self, case):
            return {"headers": headers_of(service)}

        def validate_response(self, response, case, additional_checks=(), **kwargs):
            asked.add((case.method, case.path, response.status_code))
            try:
                case.validate_response(response, excluded_checks=excluded(case))
            except Exception as error:
                wrong.append(error)
                raise

    few = tier.settings("sequences", stateful_step_count=STEPS)
    with contextlib.suppress(Flaky):  # what schemathesis has learnt of the links decides which it takes next
        run_state_machine_as_test(Sequence, settings=few)
    assert not wrong, wrong[0]
    assert ("GET", "/api/experiments", 200) in asked


def test_a_started_search_is_stopped_by_the_name_in_its_answer(schema, service):
    """Random sequences seldom start a search: most bodies are refused."""

    def ask(method, path, status, **parts):
        case = schema[path][method].Case(**parts)
        answer = case.call_and_validate(headers=headers_of(service), excluded_checks=excluded(case))
        assert answer.status_code == status
        return answer.json()

    started = ask("POST", "/api/experiments", 202, body={"space": "quadratic"}, media_type="application/json")
    named = {"path_parameters": {"name": started["name"]}}
    stop = "/api/experiments/{name}/stop"
    assert ask("POST", stop, 202, **named)["name"] == started["name"]
    assert ask("POST", stop, 404, **named)  # it had not begun, so nothing of it is left
