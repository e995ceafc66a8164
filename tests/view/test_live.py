"""Views that a run ends before they are shown; their life in a kernel is in test_kernel.py."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell

from kforge_nb.view import live

SAVED = {"application/vnd.kforge.run+json", "text/html", "text/plain"}


@pytest.fixture
def shown(monkeypatch):
    """What a front end has in the cell's output, newest last."""
    sent = []

    class Handle:
        def update(self, mime, raw):
            assert raw
            sent.append(mime)

    def display(mime, **_):
        sent.append(mime)
        return Handle()

    shell = InteractiveShell.instance()
    monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: shell)
    monkeypatch.setattr("IPython.display.display", display)
    yield sent
    InteractiveShell.clear_instance()


@pytest.mark.parametrize("kind", ["widget", "static"])
def test_a_view_shown_after_the_end_shows_the_saved_run(shown, document, kind):
    """A run may end between the making and the showing of its view: its last word stays."""
    if kind == "static":
        view = live.StaticView("pip install anywidget")
    else:
        if live.why_no_widget() is not None:
            pytest.skip("the view is not built")
        view = live.WidgetView(document["details"].get, lambda _given: None)
    view.finish(document)
    assert shown == []
    view.display({**document, "state": "searching"})

    assert set(shown[-1]) == SAVED
    assert "saved while the run went on" not in shown[-1]["text/html"]
