"""What happened at run time, as the run document tells it: in all, and for each installed kernel.

The guard counts by kernel (``Applied.counters()``); the document has one row a decision, so a
kernel's counters stand there, and the sums with the calls of the model in ``counters``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kforge_nb.store.clean import clean
from kforge_nb.store.schema import fit

__all__ = ["with_counters"]

_SUMS = ("launches", "replayed", "copies", "shadowed", "fallbacks", "calls")


def with_counters(
    document: Mapping[str, Any], counters: Mapping[str, Any] | None
) -> dict[str, Any]:
    """A document whose decisions and ``counters`` say what the guard has counted.

    ``counters`` is what ``Applied.counters()`` gives; without ``kernels`` in it, or None where
    nothing was counted, the document keeps what it says.
    """
    told = clean(dict(counters or {}))
    kernels = told.get("kernels")
    if not isinstance(kernels, list):
        return dict(document)
    own = {
        row["fingerprint"]: fit(row, "counted")
        for row in kernels
        if isinstance(row, dict) and isinstance(row.get("fallbacks"), dict) and "fingerprint" in row
    }
    decisions = [
        {**d, "counters": own[d["fingerprint"]]} if d["fingerprint"] in own else d
        for d in document["decisions"]
    ]
    sums = fit({key: told[key] for key in _SUMS if key in told}, "facts")
    return {**document, "decisions": decisions, "counters": sums}
