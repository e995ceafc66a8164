"""What a run's document shows: tables, plots, the report of the guard, files. Changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from kforge_nb.run.pictures import Pictures
from kforge_nb.run.report import GuardSummary
from kforge_nb.store import document

if TYPE_CHECKING:
    from kforge_nb.run.source import Source

__all__ = ["RunView"]


class RunView(Pictures):
    """The reading half of :class:`kforge_nb.Run`."""

    def __init__(self, source: Source) -> None:
        self._source = source

    # -- how it stands ---------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The run's name."""
        return str(self._brief()["name"])

    @property
    def id(self) -> str:
        """The run's id, unique in its store."""
        return str(self._brief()["id"])

    @property
    def state(self) -> str:
        """One of profiling, searching, guarding, done, stopped, failed, interrupted."""
        return str(self._brief()["state"])

    @property
    def document(self) -> dict[str, Any]:
        """The whole run document as it is now (see docs/run-document.md)."""
        return self._document()

    def _document(self, *, details: bool = True) -> dict[str, Any]:
        return self._source.document(details=details)

    # -- reports and files -----------------------------------------------------------------

    @property
    def guard(self) -> GuardSummary:
        """What was installed in the model and what was not, and how the whole model fares."""
        return GuardSummary(self._document(details=False))

    def save(self, path: str | Path, *, redact: bool = False) -> Path:
        """Writes the run as one document, or as a page (:meth:`to_html`) where the name is .html.

        ``redact`` leaves out sources, names and values of your code. Returns the path.
        """
        target = Path(path).expanduser()
        data = self._document()
        if target.suffix == ".html":
            return document.write(target, self._page(data, full=False, redact=redact))
        return document.save(target, data, redact=redact)

    @overload
    def to_html(self, path: None = None, *, full: bool = ..., redact: bool = ...) -> str: ...
    @overload
    def to_html(self, path: str | Path, *, full: bool = ..., redact: bool = ...) -> Path: ...
    def to_html(
        self, path: str | Path | None = None, *, full: bool = False, redact: bool = False
    ) -> str | Path:
        """The run as one HTML page with the whole view in it, for any browser, without network.

        Args:
            path: The file to write; without it the page is returned as text.
            full: Every source, log and prompt; else as much as a notebook keeps (about 2 MB).
            redact: Leave out sources, names and values of your code.

        Returns:
            The path, or the text.

        Raises:
            StoreError: The file cannot be written.
        """
        text = self._page(self._document(), full=full, redact=redact)
        return text if path is None else document.write(Path(path).expanduser(), text)

    @staticmethod
    def _page(data: dict[str, Any], *, full: bool, redact: bool) -> str:
        from kforge_nb.view.page import page_of
        from kforge_nb.view.payload import for_notebook

        shown = document.redacted(data) if redact else data
        return page_of(shown if full else for_notebook(shown))

    def _repr_mimebundle_(self, **_kwargs: Any) -> dict[str, Any]:
        """The saved view only: a widget in a saved notebook is an error message later on."""
        from kforge_nb.view.static import bundle

        return bundle(self._document())

    def _brief(self) -> dict[str, Any]:
        """The run's own record, without its nodes."""
        record = self._source.record
        return record.run if record else self._source.document(details=False)
