"""The wheel, installed where neither its sources nor Node are, opened in a browser."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "tests" / "store" / "fixtures" / "example.kforge.json"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Python of an environment with the wheel; what it depends on is borrowed from this one."""
    pytest.importorskip("build")
    home = tmp_path_factory.mktemp("wheel")
    quiet(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", home, ROOT)
    quiet(sys.executable, "-m", "venv", "--without-pip", home / "venv")
    python = home / "venv" / "bin" / "python"
    site = home / "venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    # Folders named in a .pth bring their packages but not their own .pth files, so what is
    # installed here in place (this package) is not seen there.
    borrowed = site / "site-packages" / "borrowed.pth"
    borrowed.write_text(sysconfig.get_path("purelib") + "\n")
    wheel = next(home.glob("*.whl"))
    assert zipfile.is_zipfile(wheel)
    quiet(
        sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel
    )
    return python


def quiet(*command):
    """Runs a command; what it said is shown where it fails."""
    done = subprocess.run(map(str, command), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_installed_wheel_shows_a_run(installed, serve_lab, page, tmp_path):
    """No Node on the path, no checkout: listed OK, and a saved run opens in the viewer."""
    prefix = installed.parents[1]
    where = quiet(installed, "-P", "-c", "import kforge_nb; print(kforge_nb.__file__)").strip()
    assert Path(where).is_relative_to(prefix)
    assert shutil.which("node", path=str(installed.parent)) is None

    lab_files = Path(sys.prefix) / "share" / "jupyter" / "lab"
    environment = {"PATH": str(installed.parent), "JUPYTERLAB_DIR": str(lab_files)}
    with serve_lab(tmp_path, installed, JUPYTER_PATH="", **environment) as (address, folder):
        listing = subprocess.run(
            [str(installed), "-m", "jupyterlab.labextensions", "list"],
            env={**os.environ, **environment, "JUPYTER_DATA_DIR": str(tmp_path / "data")},
            capture_output=True,
            text=True,
            check=True,
        )
        said = listing.stdout + listing.stderr
        assert any("kforge-nb v" in line and "OK" in line for line in said.splitlines()), said
        assert str(prefix / "share" / "jupyter" / "labextensions") in said
        shutil.copy(EXAMPLE, folder / "minilm.kforge.json")
        page.goto(f"{address}lab/tree/minilm.kforge.json?reset")
        page.locator(".kforge-viewer").get_by_role("region", name="Run minilm").wait_for(
            timeout=60_000
        )
