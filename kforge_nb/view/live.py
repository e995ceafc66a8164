"""The view of a run while it runs: the widget where it can be shown, static HTML where it cannot.

::

    view = open_view(details, command)   # in the launching cell
    view.display()
    view.publish(make_document)          # from any thread, after each event
    view.finish(document)                # the live view becomes the saved view

At the end the output of the cell is replaced by the static bundle, because a saved notebook that
holds a widget shows an error once its kernel is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kforge_nb.view import BUNDLE
from kforge_nb.view.outbox import Outbox
from kforge_nb.view.static import bundle

__all__ = ["LiveView", "NoView", "StaticView", "WidgetView", "open_view", "why_no_widget"]

Document = Mapping[str, Any]
Details = Callable[[str], Mapping[str, Any] | None]
Command = Callable[[Mapping[str, Any]], None]
Prompts = Callable[[], list[dict[str, Any]]]

STATIC_INTERVAL_S = 1.0


class LiveView(Protocol):
    """What a run needs of its view. All methods but ``display`` are safe from any thread."""

    def display(self, document: Document | None = None) -> None:
        """Shows the view in the running cell; call it on the thread that runs the cell.

        ``document`` is what a notebook shows that is saved now and read where no kernel is.
        """

    def publish(self, document: Document | Callable[[], Document]) -> None:
        """Shows a newer document soon; a function is called when it is due."""

    def finish(self, document: Document) -> None:
        """Shows the last document and leaves the saved view behind."""


class NoView:
    """Where nothing can be displayed: scripts and plain terminals."""

    def display(self, document: Document | None = None) -> None:
        """Nothing to show it on."""

    def publish(self, document: Document | Callable[[], Document]) -> None:
        """Nothing to show it on."""

    def finish(self, document: Document) -> None:
        """Nothing to show it on."""


class StaticView:
    """Static HTML, renewed once a second: for notebooks without the widget."""

    def __init__(self, note: str) -> None:
        self._note = note
        self._handle = _Handle()
        self._outbox = Outbox(self._write, interval=STATIC_INTERVAL_S)

    def display(self, document: Document | None = None) -> None:  # noqa: ARG002
        """Says in one line why the view is static, and shows a place for it."""
        text = f"The live view is not available ({self._note}); showing a static one."
        self._handle.show({"text/plain": text})

    def publish(self, document: Document | Callable[[], Document]) -> None:
        """Renews the HTML soon."""
        self._outbox.put("doc", document)

    def finish(self, document: Document) -> None:
        """Renews it a last time, with the document inside."""
        self._outbox.close()
        self._handle.replace(bundle(document))

    def _write(self, values: Mapping[str, Any]) -> None:
        shown = bundle(values["doc"])
        self._handle.replace({k: v for k, v in shown.items() if k.startswith("text/")})


class WidgetView:
    """The widget, replaced by the static bundle at the end; the widget itself stays open."""

    def __init__(self, details: Details, command: Command, prompts: Prompts = list) -> None:
        from kforge_nb.view.widget import Publisher

        self._publisher = Publisher(details, command, prompts)
        self._handle = _Handle()

    @property
    def widget(self) -> Any:
        """The widget, for hosts that place it themselves."""
        return self._publisher.widget

    def display(self, document: Document | None = None) -> None:
        """Shows the widget in the running cell, with the saved view of ``document`` beside it.

        A front end that knows widgets takes the widget; a page that has none, such as a notebook
        that was saved in the middle and is read on the web, has the HTML.
        """
        saved = {} if document is None else bundle(_as_saved_now(document))
        self._handle.show(self._publisher.widget, saved)

    def publish(self, document: Document | Callable[[], Document]) -> None:
        """Renews the traits, at most four times a second."""
        self._publisher.publish(document)

    def finish(self, document: Document) -> None:
        """Last traits first, for pages that open later; then the saved view.

        A page that was closed at that moment, and opens while the kernel lives, is sent it then.
        """
        self._publisher.publish(document)
        self._publisher.flush()
        saved = bundle(document)
        self._handle.replace(saved)
        self._publisher.on_open(lambda: self._handle.replace(saved))


class _Handle:
    """IPython's display handle; a replacement that comes before the first show is kept for it.

    A run may end between the moment its view is known to it and the moment that view is shown.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handle: Any = None
        self._early: dict[str, Any] | None = None

    def show(self, thing: Any, beside: Mapping[str, Any] | None = None) -> None:
        """Displays a MIME bundle or an object in the running cell, more types ``beside`` it."""
        from IPython.core.getipython import get_ipython
        from IPython.display import display

        metadata: dict[str, Any] = {}
        if not isinstance(thing, dict):
            shell: Any = get_ipython()
            thing, metadata = shell.display_formatter.format(thing)
        with self._lock:
            mime = {**thing, **(beside or {})}  # a summary says more than an object's address
            self._handle = display(mime, metadata=metadata, raw=True, display_id=True)
            early, self._early = self._early, None
            if early is not None:
                self._handle.update(early, raw=True)

    def replace(self, mime: Mapping[str, Any]) -> None:
        """Replaces what is shown, wherever it was shown, from any thread."""
        with self._lock:
            if self._handle is None:
                self._early = dict(mime)
            else:
                self._handle.update(dict(mime), raw=True)


def _as_saved_now(document: Document) -> dict[str, Any]:
    """The document for a notebook that is saved while the run goes on, which it says."""
    note = f"This was saved while the run went on; %kforge show {document['name']} shows it now."
    workload = document["workload"]
    return {**document, "workload": {**workload, "notes": [note, *workload["notes"]]}}


def open_view(details: Details, command: Command, prompts: Prompts = list) -> LiveView:
    """The best view that this process can show.

    ``details(node_id)`` gives the details of one node for a click, ``prompts()`` what waits for an
    answer of the user. ``command(given)`` gets what a button or a box asks for, as
    ``{"name": "stop"}``. All three run on threads of the view.
    """
    if not _in_notebook():
        return NoView()
    missing = why_no_widget()
    return WidgetView(details, command, prompts) if missing is None else StaticView(missing)


def why_no_widget() -> str | None:
    """Why the live widget cannot be shown, with the cure; None where it can."""
    try:
        import anywidget  # noqa: F401
    except ImportError:
        return "pip install anywidget"
    if not BUNDLE.is_file():
        return "kforge_nb/static/widget.js is not built: python hatch_build.py"
    return None


def _in_notebook() -> bool:
    """Whether a Jupyter kernel runs this process."""
    import sys

    if "IPython" not in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None
