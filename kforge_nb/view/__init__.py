"""Everything that shows a run: the live widget, static HTML and SVG, text, matplotlib plots.

This room reads run documents (plain dicts of the schema ``kforge.run/1``) and nothing else. The
live side is :func:`kforge_nb.view.live.open_view`; the still side is
:func:`kforge_nb.view.static.bundle`, :mod:`kforge_nb.view.plots` and
:func:`kforge_nb.view.text.summary`. The browser's part is TypeScript in ``labextension/``.
"""

from pathlib import Path

__all__ = ["BUNDLE", "PAGE"]

BUNDLE = Path(__file__).parent.parent / "static" / "widget.js"
"""The built view; made when the package is built, missing where that step was skipped."""

PAGE = BUNDLE.with_name("page.html")
"""The built stand-alone page, which lacks only a run; missing where that step was skipped."""
