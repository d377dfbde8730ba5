"""Debian's chromium, and an experiment that it shows."""

import shutil
from types import SimpleNamespace

import pytest

from tests.serve.conftest import serving


@pytest.fixture(scope="module")
def chromium():
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    from playwright import sync_api

    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(chromium):
    """A page of a session of its own; an error of its scripts fails the test."""
    context = chromium.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert not errors, errors


@pytest.fixture
def acting(service):
    """A service that starts searches as noted jobs; `link` signs in."""
    with serving(service.app) as served:
        link = f"{served.url}signin?code={service.app.state.keys.code}"
        yield SimpleNamespace(**vars(service), url=served.url, link=link)


@pytest.fixture
def written(viewer):
    """An experiment of six trials in the viewer's folder; its journal."""
    from browsing import write_experiment

    journal = write_experiment(viewer.results)
    yield journal
    journal.close()


@pytest.fixture
def demo(page, viewer, written):
    """The page of the experiment; its journal."""
    from browsing import opened

    opened(page, viewer)
    return written
