"""A real Chromium, and the servers that it looks at."""

from __future__ import annotations

import os
import re
import time

import pytest

from tests.browser.servers import chromium, serving_lab, serving_page, why_no_browser

OURS = re.compile("kforge|blob:")
"""In a stack: the extension's files by their names, the widget's module by where it comes from."""


@pytest.fixture(scope="session")
def browser():
    """Debian's Chromium, driven by Playwright; without it a skip, but a failure in CI."""
    missing = why_no_browser()
    if missing is not None:
        if os.environ.get("KFORGE_REQUIRE_BROWSER") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    with chromium() as driven:
        yield driven


@pytest.fixture
def page(browser):
    """A fresh page; an error on it fails the test, in JupyterLab one of our own code."""
    context = browser.new_context(viewport={"width": 1100, "height": 1000})
    made = context.new_page()
    errors = []
    made.on("pageerror", lambda error: errors.append(error.stack or str(error)))
    yield made
    lab = "/lab" in made.url
    context.close()
    assert [text for text in errors if not lab or OURS.search(text)] == []


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Address of a page with the shipped bundle and the example run."""
    with serving_page(tmp_path_factory.mktemp("site")) as address:
        yield address


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """Address and folder of a JupyterLab of its own, with no settings of the user's."""
    with serving_lab(tmp_path_factory.mktemp("lab")) as served:
        yield served


@pytest.fixture(scope="session")
def serve_lab():
    """Starts further ones; see ``serving_lab``."""
    return serving_lab


@pytest.fixture(scope="session")
def eventually():
    """Polls what no browser event tells, until it holds."""

    def wait(condition, seconds=60):
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < deadline, "it never came to be"
            time.sleep(0.1)
        return found

    return wait
