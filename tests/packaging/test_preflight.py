"""What `make` says first on a machine that lacks something."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("sh", "make", "find", "id", "dirname", "env")


@pytest.fixture
def machine(tmp_path):
    """A PATH with a shell, make and Python, and no compiler; more can be put on it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    put(folder / "python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    return folder


def put(path, text):
    """An executable script."""
    path.write_text(text)
    path.chmod(0o755)


def preflight(folder, **environment):
    """Runs the check with nothing but that PATH."""
    return subprocess.run(
        [str(ROOT / "scripts" / "preflight"), "python3"],
        env={"PATH": str(folder), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def one_line(text):
    """The text, which must be a single line."""
    assert text.count("\n") == 1, text
    return text


def test_a_missing_compiler_is_one_line_with_the_install_command(machine):
    """No log, no traceback: what is missing and what to type."""
    done = preflight(machine)

    assert done.returncode == 1
    assert "no C++ compiler found" in one_line(done.stderr)
    assert "apt-get install -y g++" in done.stderr


def test_a_compiler_named_by_cxx_counts(machine):
    """CXX is honoured as everywhere else, and named where it is not found."""
    put(machine / "my-c++", "#!/bin/sh\n")

    assert preflight(machine, CXX="my-c++").returncode == 0
    assert "looked for other-c++, c++" in one_line(preflight(machine, CXX="other-c++").stderr)


def test_all_present_says_nothing(machine):
    """A good machine sees no word of it."""
    put(machine / "g++", "#!/bin/sh\n")
    done = preflight(machine)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_old_python_is_named_with_its_version(machine):
    """Python 3.10 is refused before anything is installed with it."""
    put(
        machine / "python3",
        '#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.10.4" && exit 0\nexit 1\n',
    )
    put(machine / "g++", "#!/bin/sh\n")

    assert "Python 3.10.4, but Python 3.11 or newer" in one_line(preflight(machine).stderr)


def test_a_python_without_venv_is_told_so(machine):
    """Debian splits venv off; the package is named."""
    put(
        machine / "python3",
        '#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\nexit 0\n',
    )
    put(machine / "g++", "#!/bin/sh\n")

    assert "apt-get install -y python3-venv" in one_line(preflight(machine).stderr)


def test_make_stops_before_it_makes_anything(machine, tmp_path):
    """With no compiler `make demo` ends with that line and leaves no environment behind."""
    environment = {**os.environ, "PATH": str(machine)}
    environment.pop("CXX", None)
    done = subprocess.run(
        ["make", "demo", f"VENV={tmp_path / 'venv'}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode != 0
    assert done.stderr.startswith("kforge_nb: no C++ compiler found")
    assert not (tmp_path / "venv").exists()
