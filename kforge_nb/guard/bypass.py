"""Find compiled parents: Dynamo traces through a child and ignores its own compiled call."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kforge_nb.guard.entry import GuardedCall

__all__ = ["compiled_parents"]


def compiled_parents(guarded: Sequence[GuardedCall]) -> list[str]:
    """One sentence for each guarded module that stands inside another compiled module.

    Looks at every live module of the process, which takes a fraction of a second; for reports only.
    """
    ours = {id(call.module): call for call in guarded}
    own_calls = {id(call) for call in guarded}
    found = {
        f"{type(child).__name__} is inside {type(parent).__name__}, which was compiled on its own: "
        "calls through the parent do not reach kforge (apply to the parent)"
        for parent in _compiled_modules(own_calls)
        for child in parent.modules()
        if id(child) in ours and child is not parent
    }
    return sorted(found)


def _compiled_modules(own_calls: set[int]) -> Iterable[torch.nn.Module]:
    for thing in gc.get_objects():
        if not issubclass(type(thing), torch.nn.Module):
            continue
        if isinstance(thing, torch._dynamo.OptimizedModule):
            yield thing._orig_mod
            continue
        compiled = thing.__dict__.get("_compiled_call_impl")
        if compiled is not None and id(compiled) not in own_calls:
            yield thing
