"""What a browser needs to look at the view: Chromium, a page with the shipped bundle, a JupyterLab.

No pytest in here: the benchmark of the view and the script that makes pictures use it too.
"""

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
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kforge_nb.view import BUNDLE

__all__ = ["EXAMPLE", "LAB_PYTHON", "chromium", "serving_lab", "serving_page", "why_no_browser"]

HERE = Path(__file__).parent
EXAMPLE = HERE.parent / "store" / "fixtures" / "example.kforge.json"
LAB_PYTHON = os.environ.get("KFORGE_LAB_PYTHON", sys.executable)
"""Runs the JupyterLab that is looked at: of another environment, where another version is meant."""
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def why_no_browser() -> str | None:
    """What is missing, with the cure; None where a browser can be driven."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return 'pip install "playwright>=1.49" (or pip install -e ".[dev]")'
    if _path() is None:
        return "no chromium on this machine; Debian: apt-get install -y chromium"
    if not BUNDLE.is_file():
        return "the view is not built; run `python hatch_build.py`"
    return None


def _path() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def chromium() -> Iterator[Any]:
    """The distribution's Chromium, driven by Playwright; ``why_no_browser`` must be None."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=_path(), args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def serving_page(folder: Path) -> Iterator[str]:
    """Address of a page with the shipped bundle and the example run, until the block ends."""
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
    def log_message(self, *args: Any) -> None:
        """Nothing on stderr."""


@contextmanager
def serving_lab(
    home: Path, python: str | Path = LAB_PYTHON, **environment: str
) -> Iterator[tuple[str, Path]]:
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
    for app in ("LabApp", "JupyterNotebookApp"):  # as window.jupyterapp
        command += [f"--{app}.expose_app_in_browser=True"]
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"JupyterLab ended at its start:\n{log.read_text()}")
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                json.load(answer)
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not come up in {seconds} s:\n{log.read_text()}")
