"""A plain IPython shell with the extension loaded, and what it printed."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """An InteractiveShell of its own in an empty folder, with kforge_nb loaded."""
    monkeypatch.chdir(tmp_path)
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance()
    made.history_manager.enabled = False
    made.run_line_magic("load_ext", "kforge_nb")
    yield made
    made.run_line_magic("unload_ext", "kforge_nb")
    InteractiveShell.clear_instance()
