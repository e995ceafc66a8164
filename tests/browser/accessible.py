"""What axe-core finds of WCAG 2 A and AA in parts of a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

__all__ = ["violations"]

AXE = Path(__file__).parents[2] / "labextension" / "node_modules" / "axe-core" / "axe.min.js"
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
RUN = "([where, tags]) => axe.run({include: where}, {runOnly: {type: 'tag', values: tags}})"


def violations(page: Any, *where: str) -> list[tuple[str, list[str]]]:
    """Rules that are broken inside these selectors, contrast included, with the elements."""
    if not AXE.is_file():
        pytest.skip("axe-core is not installed; run `make view`")
    page.add_script_tag(path=str(AXE))
    found = page.evaluate(RUN, [list(where), WCAG])
    assert found["passes"]
    return [
        (problem["id"], [node["html"][:200] for node in problem["nodes"]])
        for problem in found["violations"]
    ]
