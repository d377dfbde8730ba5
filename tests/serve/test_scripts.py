"""The types of the page's scripts: TypeScript's compiler checks them, and they agree with the API's schema."""

import re
import shutil
import subprocess

import pytest

from tuner.serve.page import HERE

TSC = shutil.which("tsc")
needs_tsc = pytest.mark.skipif(TSC is None, reason="there is no TypeScript compiler: apt-get install node-typescript")


def checked(folder):
    return subprocess.run([TSC, "--project", str(folder)], capture_output=True, text=True)


@needs_tsc
def test_the_types_of_the_scripts_are_right():
    done = checked(HERE)
    assert done.returncode == 0, done.stdout


@needs_tsc
@pytest.mark.slow
def test_wrong_types_are_noticed(tmp_path):
    shutil.copytree(HERE, tmp_path / "web")
    wrong = {
        "page.js": ("summary.num_samples", "summary.num_sample"),
        "tables.js": ("value: (t) => t.epochs,", "value: (t) => t.epochs.length,"),
        "insight.js": ('at("importance")', "at(3)"),
    }
    for name, (before, after) in wrong.items():
        script = tmp_path / "web" / name
        assert before in script.read_text()
        script.write_text(script.read_text().replace(before, after))
    found = checked(tmp_path / "web").stdout
    assert all(f"{name}(" in found for name in wrong)


def test_every_script_is_checked_and_reached_from_the_page():
    texts = {path.name: path.read_text() for path in HERE.glob("*.js")}
    assert all(text.startswith("// @ts-check\n") for text in texts.values())
    reached, imported = set(), {"page.js"}
    while imported:
        reached |= imported
        imported = {name for each in imported for name in re.findall(r'from "\./(.*?)"', texts[each])} - reached
    assert reached == set(texts)


def test_the_types_of_answers_are_those_of_the_schema(service):
    schemas = service.anyone.get("/api/openapi.json").json()["components"]["schemas"]
    text = (HERE / "api.d.ts").read_text()
    bodies = dict(re.findall(r"^export interface (\w+) \{(.*?)\}$", text, re.M | re.S))
    plain = {name: re.sub(r"\{[^{}]*\}", "", body) for name, body in bodies.items()}  # without types within types
    typed = {name: set(re.findall(r"(?:^|;)\s*(\w+)\??:", body)) for name, body in plain.items()}
    assert {"Summary", "Changes", "TrialRow", "DecisionRow", "WhatIf", "OneTrial"} <= set(typed)
    for name in set(typed) - {"Figure", "Option"}:  # parts of Plotly's and of OpenAPI's own schema
        assert typed[name] == set(schemas[name]["properties"]), name
