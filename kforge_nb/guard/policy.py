"""Shape policy and rests: the two questions that every compile of the guard asks, in one place."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal

from kforge_nb.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import fx

__all__ = ["FIXED_SHAPES", "RESTS", "Rest", "dynamic_for", "rest_compiler"]

Rest = Literal["eager", "inductor", "cudagraphs", "inductor-cudagraphs"]
RESTS: tuple[Rest, ...] = ("eager", "inductor", "cudagraphs", "inductor-cudagraphs")
FIXED_SHAPES = 3
"""So many shapes are compiled one by one. (Dynamo stops at 8, a workload keeps 4 signatures.)"""


def dynamic_for(signatures: Iterable[object]) -> bool | None:
    """The ``dynamic`` argument of ``torch.compile`` for one module.

    A module called with few shapes gets ``False``: every shape keeps its own graph, so A B A never
    turns A symbolic and loses its kernels. One that grows (decode) gets ``None``: its symbolic
    graph keeps the kernels of the regions whose own sizes stand still.

    Args:
        signatures: one hashable value for each known call, equal for calls of equal shapes. A
            module of which nothing is known starts with ``False``; its guarded call changes over
            when it sees more than ``FIXED_SHAPES`` (see ``entry``).
    """
    return False if len(set(signatures)) <= FIXED_SHAPES else None


def rest_compiler(rest: str) -> Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]:
    """The compiler of what is left of a graph.

    Raises:
        BadInput: an unknown rest, or CUDA graphs without a CUDA device.
    """
    import torch

    if rest not in RESTS:
        raise BadInput(f"there is no rest {rest!r}; choose one of {', '.join(RESTS)}")
    if "cudagraphs" in rest and not torch.cuda.is_available():
        raise BadInput(f"rest={rest!r} needs a CUDA device; on a CPU use 'eager' or 'inductor'")
    if rest == "inductor-cudagraphs":
        from torch._inductor.compile_fx import compile_fx

        patched: Any = functools.partial(compile_fx, config_patches={"triton.cudagraphs": True})
        return patched
    from torch._dynamo import lookup_backend

    found: Any = lookup_backend(rest)
    return found
