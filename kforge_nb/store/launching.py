"""The sizes of a launch plan for the inputs that its target was captured with, to be shown.

A plan speaks of shapes in symbols; a reader wants to know how many blocks of how many threads that
was. Plans in a store may be old or broken: what cannot be worked out is left unsaid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kforge_nb.candidates.plan import plan_from_document, resolve
from kforge_nb.errors import KForgeError
from kforge_nb.targets.target import TensorSpec

__all__ = ["launch_of"]


def launch_of(plan: Any, target: Mapping[str, Any]) -> dict[str, Any] | None:
    """``launch`` of the run document; None where the plan has no sizes for this target.

    Args:
        plan: The plan as plain data.
        target: A target's record: ``inputs`` and ``outputs`` as in the run document.
    """
    if not plan:
        return None
    try:
        inputs, outputs = _specs(target.get("inputs")), _specs(target.get("outputs"))
        found = resolve(plan_from_document(plan), inputs, outputs)
    except (KForgeError, KeyError, TypeError, ValueError):
        return None
    calls = [
        {"name": c.name, "grid": list(c.grid), "block": list(c.block), "shared": c.shared}
        for c in found.calls
    ]
    return {"calls": calls, "symbols": found.symbols, "scratch_bytes": found.scratch_bytes}


def _specs(rows: Iterable[Mapping[str, Any]] | None) -> list[TensorSpec]:
    return [
        TensorSpec(tuple(row["shape"]), tuple(row["stride"]), row["dtype"], row["device"])
        for row in rows or ()
    ]
