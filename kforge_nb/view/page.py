"""A run as one HTML page: the whole view with the run inside, for a browser and nothing else.

The page is built with the view (``static/page.html``) and lacks only a run. It opens from a file;
its policy lets no script run but the view's own and nothing reach the network. Below the view, for
readers that run no script, stands the summary that notebooks keep.
"""

from __future__ import annotations

import json
import re
from html import escape

from kforge_nb.view import PAGE
from kforge_nb.view.facts import Document
from kforge_nb.view.static import to_html

__all__ = ["page_of"]

_MARK = re.compile(r"\{\{(title|summary|document)\}\}")
_PLAIN = (
    '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{{title}}</title>'
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "style-src 'unsafe-inline'\"></head>\n<body><main>{{summary}}</main></body>\n</html>\n"
)


def page_of(document: Document) -> str:
    """The page of a valid document; without the built view, the summary alone.

    Everything of the document is data there: it stands as JSON in which no tag can begin.
    """
    template = PAGE.read_text("utf-8") if PAGE.is_file() else _PLAIN
    parts = {
        "title": escape(f"kforge run {document['name']}", quote=True),
        "summary": to_html(document),
        "document": json.dumps(document, ensure_ascii=False, allow_nan=False).replace(
            "<", "\\u003c"
        ),
    }
    text = _MARK.sub(lambda mark: parts[mark[1]], template)
    return text.encode("utf-8", "replace").decode("utf-8")  # JSON may hold half a character
