"""The layout of a graph as installations and measurements use it: first laid out, then cut.

Kernels that were searched in graphs laid out channels-last have their places in such graphs only,
so whoever installs one lays its graphs out again, in the same way, before looking for places.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kforge_nb.guard.marks import as_dynamos
from kforge_nb.targets.channels_last import lay_out

if TYPE_CHECKING:
    from torch import fx

    from kforge_nb.guard.accepted import Accepted

__all__ = ["LAYOUT", "turned", "wants_layout"]

LAYOUT = "channels_last"
"""Stands among the fingerprints of a variant for the layout itself."""


def wants_layout(kernels: Iterable[Accepted]) -> bool:
    """Whether one of these kernels has its places in graphs laid out channels-last."""
    return any(kernel.layout == LAYOUT for kernel in kernels)


def turned(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> fx.GraphModule | None:
    """The graph laid out channels-last, for compilers as ``gm`` is; None where it stays."""
    found = lay_out(gm, example_inputs)
    return as_dynamos(found.gm, gm) if found.changed else None
