"""Sources shared by these tests, and one extension built for all that only need to load it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

_PATH = Path(__file__).parent / "sources.py"
_spec = importlib.util.spec_from_file_location("extension_sources", _PATH)
_module = importlib.util.module_from_spec(_spec)
sys.modules["extension_sources"] = _module
_spec.loader.exec_module(_module)


@pytest.fixture(scope="session")
def judge(tmp_path_factory):
    """A judge that takes torch extensions."""
    from kforge_nb.judge.judge import Judge
    from kforge_nb.settings import Settings

    settings = Settings(threads=1, allow_host_code=True)
    with Judge(settings, tmp_path_factory.mktemp("judge")) as opened:
        yield opened
