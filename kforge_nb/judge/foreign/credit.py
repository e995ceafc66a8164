"""Whose work it is: what torch's own operators do earns a candidate no credit. Pure.

A KernelBench file may well leave part of the work to torch. It gets no credit where nothing of the
work is its own: it has no kernel, or it calls every operator that the reference calls beside it, or
it has one of torch's large operators do what the reference does in another way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["partly_torch", "without_credit"]

_SHOWN = 5
_LARGE = {
    "attention": re.compile(r"attention|scaled_dot_product"),
    "norm": re.compile(r"(layer|group|rms|batch|instance)_norm"),
    "softmax": re.compile(r"softmax"),
    "loss": re.compile(r"nll_loss|cross_entropy"),
    "recurrence": re.compile(r"lstm|gru|rnn"),
    "product": re.compile(
        r"(^|_)(convolution|conv(_depthwise)?[123]d|conv_transpose[123]d|linear|matmul|einsum|dot"
        r"|mv|addmv|mm|addmm|bmm|baddbmm|addbmm)(_|$)"
    ),
}
"""Operators of aten that are a whole kernel's work, by what they do; the first that fits."""
_INSIDE = {"attention": {"product", "softmax"}, "recurrence": {"product"}, "loss": {"softmax"}}
"""What large work consists of: a candidate may well take it apart."""


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
    asked = {_work(name) for name in reference}
    asked |= {inside for work in asked for inside in _INSIDE.get(work, ())}
    large = {name: count for name, count in used.items() if _work(name) not in {"", *asked}}
    if large:
        return f"torch's {_names(large)} does work that the reference does step by step"
    return None


def _work(name: str) -> str:
    """Which kind of large work an operator of aten does; empty if it does none."""
    return next((work for work, words in _LARGE.items() if words.search(name)), "")


def partly_torch(used: Mapping[str, int]) -> str | None:
    """What torch does of a candidate's work, in words."""
    return f"torch does a part of its work: {_names(used)}" if used else None


def _names(used: Mapping[str, int]) -> str:
    names = sorted(used, key=lambda name: -used[name])
    return ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
