"""The types of the page's scripts: TypeScript's compiler checks them, and they agree with the API's schema."""

import re
import shutil
import subprocess

import pytest

from tuner.serve.page import HERE

TSC = shutil.which("tsc")


@pytest.mark.skipif(TSC is None, reason="there is no TypeScript compiler: apt-get install node-typescript")
def test_the_types_of_the_scripts_are_right():
    done = subprocess.run([TSC, "--project", str(HERE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_script_is_checked_and_reached_from_the_page_and_writes_texts_as_texts():
    texts = {path.name: path.read_text() for path in HERE.glob("*.js")}
    assert all(text.startswith("// @ts-check\n") for text in texts.values())
    markup = ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(")
    assert not any(way in text for way in markup for text in texts.values())
    reached, imported = set(), {"page.js"}
    while imported:
        reached |= imported
        names = {name for each in imported for name in re.findall(r'from "\./(.*?)"', texts[each])}
        imported = {name for name in names if not name.startswith("vendor/")} - reached
    assert reached == set(texts)


def test_the_types_of_answers_are_those_of_the_schema(service):
    schemas = service.anyone.get("/api/openapi.json").json()["components"]["schemas"]
    text = (HERE / "api.d.ts").read_text()
    bodies = dict(re.findall(r"^export interface (\w+) \{(.*?)\}$", text, re.M | re.S))
    plain = {name: re.sub(r"\{[^{}]*\}", "", body) for name, body in bodies.items()}  # without types within types
    typed = {name: set(re.findall(r"(?:^|;)\s*(\w+)\??:", body)) for name, body in plain.items()}
    assert {"Summary", "Changes", "TrialRow", "DecisionRow", "WhatIf", "OneTrial"} <= set(typed)
    for name in set(typed) - {"Figure", "Option"}:  # parts of Plotly's and of OpenAPI's own schema
        fields = set(schemas[name]["properties"])
        assert typed[name] <= fields if name.endswith(("Row", "Setting", "Fate")) else typed[name] == fields, name
