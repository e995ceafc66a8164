"""How many bytes and operations a target needs at least."""

from __future__ import annotations

from math import prod

import torch

from kforge_nb.targets.operators import describe
from kforge_nb.targets.target import Target, TensorSpec

__all__ = ["compute_dtype", "flops_of", "moved_bytes"]

_FREE = {"view", "factory", "move", "opaque"}


def moved_bytes(target: Target) -> int:
    """Bytes of all inputs read once and all outputs written once; broadcast axes count once."""
    return sum(_bytes(s) for s in (*target.inputs, *target.outputs))


def _bytes(spec: TensorSpec) -> int:
    sizes = [n for n, stride in zip(spec.shape, spec.stride, strict=True) if stride != 0 or n == 0]
    return prod(sizes) * getattr(torch, spec.dtype).itemsize


def flops_of(target: Target, inputs: list[torch.Tensor]) -> int:
    """Operations of the reference on ``inputs``.

    Products, convolutions and attention by torch's flop counter; every other operator counts one
    operation per element that it reads or writes, whichever is more.
    """
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    elements = _ElementCounter(target.graph)
    with torch.no_grad(), counter:
        elements.run(*inputs)
    return int(counter.get_total_flops()) + elements.total


class _ElementCounter(torch.fx.Interpreter):
    def __init__(self, gm: torch.fx.GraphModule) -> None:
        super().__init__(gm)
        self.total = 0

    def run_node(self, n: torch.fx.Node) -> object:
        sizes = [
            self.env[s].numel()
            for s in n.all_input_nodes
            if s in self.env and isinstance(self.env[s], torch.Tensor)
        ]
        result = super().run_node(n)
        if n.op.startswith("call") and describe(n).kind not in (*_FREE, "vendor"):
            written = result.numel() if isinstance(result, torch.Tensor) else 0
            self.total += max([written, *sizes])
        return result


def compute_dtype(target: Target) -> str:
    """The floating dtype of the largest input: which peak applies."""
    floats = [s for s in target.inputs if s.dtype.startswith(("float", "bfloat"))]
    largest = max(floats, key=lambda s: prod(s.shape), default=None)
    return largest.dtype if largest is not None else "float32"
