"""A real Chromium, and the servers that it looks at."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kforge_nb.view import BUNDLE

HERE = Path(__file__).parent
EXAMPLE = HERE.parent / "store" / "fixtures" / "example.kforge.json"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def _skip(reason):
    """Skips, but fails where the browser tests must run (in CI)."""
    if os.environ.get("KFORGE_REQUIRE_BROWSER") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def browser():
    """Debian's Chromium, driven by Playwright."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        _skip("no chromium on this machine; Debian: apt-get install -y chromium")
    if not BUNDLE.is_file():
        _skip("the view is not built; run `python hatch_build.py`")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser):
    """A fresh page; an error on it fails the test."""
    context = browser.new_context(viewport={"width": 1100, "height": 1000})
    made = context.new_page()
    errors = []
    made.on("pageerror", lambda error: errors.append(str(error)))
    yield made
    context.close()
    assert errors == []


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Address of a page with the shipped bundle and the example run."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(HERE / "page.html", folder / "index.html")
    shutil.copy(EXAMPLE, folder / "document.json")
    shutil.copy(BUNDLE, folder / "widget.js")
    handler = partial(_Quiet, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        """Nothing on stderr."""


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """Address and folder of a JupyterLab of its own, with no settings of the user's."""
    with serving_lab(tmp_path_factory.mktemp("lab")) as served:
        yield served


@pytest.fixture(scope="session")
def serve_lab():
    """Starts further ones; see ``serving_lab``."""
    return serving_lab


@contextmanager
def serving_lab(home, python=sys.executable, **environment):
    """Address and folder of a JupyterLab that this Python runs, until the block ends."""
    folder = home / "notebooks"
    folder.mkdir()
    news = home / "settings" / "@jupyterlab" / "apputils-extension"
    news.mkdir(parents=True)
    (news / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')
    names = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    places = {name: str(home / part) for name, part in names.items()}
    port = _free_port()
    command = [str(python), "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={folder}",
    ]
    command += ["--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True"]
    command += ["--LabApp.expose_app_in_browser=True"]  # as window.jupyterapp
    log = (home / "lab.log").open("w")
    server = subprocess.Popen(
        command,
        env={**os.environ, **places, **environment},
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        _wait_for(f"http://127.0.0.1:{port}/api/status", server, home / "lab.log")
        yield f"http://127.0.0.1:{port}/", folder
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:  # Jupyter Server waits for ever for a kernel at its start
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        log.close()


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_for(url, server, log, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                json.load(answer)
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"JupyterLab did not come up in {seconds} s:\n{log.read_text()}")
