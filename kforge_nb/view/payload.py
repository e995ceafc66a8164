"""Run documents cut to the size that a widget trait or a notebook output may have.

The whole document always stays in the store and in the saved file. What is left out here comes back
on demand (live view) or is named (saved output).
"""

from __future__ import annotations

from typing import Any

from kforge_nb.store.keeping import bounded, size
from kforge_nb.view.facts import Document

__all__ = ["for_notebook", "for_widget", "size"]

CODE_LIMIT = 4_000
REASON_LIMIT = 1_000
ORIGIN_LIMIT = 400
NOTEBOOK_LIMIT = 2_000_000


def for_widget(document: Document) -> dict[str, Any]:
    """The document without what the widget asks for one node at a time, and with rows bounded.

    Rows that are short enough already stay the same objects.
    """
    targets = [_short_target(t) for t in document["targets"]]
    nodes = [_short_node(n) for n in document["nodes"]]
    return {**document, "details": {}, "targets": targets, "nodes": nodes}


def for_notebook(document: Document, limit: int = NOTEBOOK_LIMIT) -> dict[str, Any]:
    """The document at no more than ``limit`` bytes, as far as leaving out details goes.

    The order in which they go is that of :mod:`kforge_nb.store.keeping`; where the rows alone are
    too large they are cut as for the widget.
    """
    found = bounded(document, limit)
    return for_widget(document) if not found["details"] else found


def _short_target(target: dict[str, Any]) -> dict[str, Any]:
    code = target["code"]
    if len(code) <= CODE_LIMIT:
        return target
    return {**target, "code": f"{code[:CODE_LIMIT]}\n# … {len(code) - CODE_LIMIT} characters more"}


def _short_node(node: dict[str, Any]) -> dict[str, Any]:
    """A row of a few hundred bytes, and never of many thousands."""
    if len(node["reason"]) > REASON_LIMIT:
        node = {**node, "reason": f"{node['reason'][: REASON_LIMIT - 1]}…"}
    if node["origin"] and len(str(node["origin"])) > ORIGIN_LIMIT:
        proposer = node["origin"].get("proposer")
        node = {**node, "origin": {"proposer": proposer} if isinstance(proposer, str) else {}}
    return node
