"""A real Chromium, and the servers that it looks at."""

from __future__ import annotations

import contextlib
import os
import re
import time
import urllib.error
import urllib.request

import pytest

from tests.browser.servers import chromium, serving_lab, serving_page, why_no_browser

OURS = re.compile("kforge|blob:")
"""In a stack: the extension's files by their names, the widget's module by where it comes from."""
FRONT_ENDS = {"lab": "lab/tree", "notebook7": "notebooks"}


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
    lab = re.search("/(lab|notebooks|tree)/", made.url) is not None
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
def notebook_in(lab):
    """Opens a notebook of that JupyterLab's folder, in it or in Notebook 7 on the same server."""
    with contextlib.closing(_asked(f"{lab[0]}tree")) as answer:
        there = answer.status == 200

    def opened(front_end, page, path):
        if front_end == "notebook7" and not there:
            pytest.skip('no Notebook 7 in that environment: pip install "notebook>=7.2"')
        page.goto(f"{lab[0]}{FRONT_ENDS[front_end]}/{path}?reset")
        kernel = "jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel"
        page.wait_for_function(f"window.{kernel}?.status === 'idle'", timeout=60_000)

    return opened


def _asked(address):
    try:
        return urllib.request.urlopen(address, timeout=30)
    except urllib.error.HTTPError as answer:
        return answer


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
