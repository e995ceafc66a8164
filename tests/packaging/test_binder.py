"""The folder that Binder builds from says the same as the rest of the repository."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
BINDER = ROOT / "binder"


def test_torch_is_the_pinned_one_without_cuda():
    """An image with CUDA's libraries would be refused for its size."""
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]

    assert f"torch=={pinned}+cpu" in (BINDER / "requirements.txt").read_text().splitlines()


def test_python_is_one_that_the_package_takes():
    """Binder's Python is not older than the oldest that is supported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=")
    chosen = (BINDER / "runtime.txt").read_text().strip().removeprefix("python-")

    assert [*map(int, chosen.split("."))] >= [*map(int, oldest.split("."))]


def test_the_last_step_can_run():
    """It is executable, is valid shell, and asks for extras that there are."""
    step = BINDER / "postBuild"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]

    assert os.access(step, os.X_OK)
    subprocess.run(["bash", "-n", step], check=True)
    asked = re.findall(r"\.\[([\w,-]+)\]", step.read_text())
    assert asked
    assert set(asked[0].split(",")) <= set(extras)
