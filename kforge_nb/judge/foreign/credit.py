"""Whose work it is: what torch's own operators do earns a candidate no credit. Pure.

A KernelBench file may well leave part of the work to torch. It gets no credit where nothing of the
work is its own: it has no kernel, or it calls every operator that the reference calls beside it.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["partly_torch", "without_credit"]

_SHOWN = 5


def without_credit(
    used: Mapping[str, int], reference: Mapping[str, int], own_kernel: bool
) -> str | None:
    """Why a candidate earns no credit, in words; None if it does.

    Args:
        used: torch's operators that one call of the candidate used, with counts.
        reference: those that the reference uses.
        own_kernel: whether it brought a kernel of its own.
    """
    if not own_kernel:
        if not used:
            return None  # the arithmetic of Python itself: slow, but its own
        return f"it has no kernel of its own: torch's {_names(used)} do the work"
    if reference and all(used.get(name, 0) >= count for name, count in reference.items()):
        return (
            f"beside its kernel it calls all that the reference calls ({_names(reference)}): "
            "torch does the work"
        )
    return None


def partly_torch(used: Mapping[str, int]) -> str | None:
    """What torch does of a candidate's work, in words."""
    return f"torch does a part of its work: {_names(used)}" if used else None


def _names(used: Mapping[str, int]) -> str:
    names = sorted(used, key=lambda name: -used[name])
    return ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
