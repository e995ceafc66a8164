"""Bring a target's graph to ATen operators without mutation: one spelling of every operation.

Graphs come as Dynamo writes them: functions, operators, tensor methods, in-place forms. Running the
graph on fake tensors under ``functionalize`` and ``make_fx`` with the core decompositions leaves a
small set of operators, each with the shape and dtype of its result, in about 20 ms.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from kforge_nb.candidates.recipes.generator.ir import Unsupported
from kforge_nb.targets.target import Target, TensorSpec

__all__ = ["aten_graph"]

MAX_NODES = 250
_KEEP = (  # lowered here directly, better than their decompositions
    "silu", "gelu", "elu", "leaky_relu", "log_sigmoid_forward", "softplus", "mish",
    "hardswish", "hardsigmoid",
)  # fmt: skip


@lru_cache(maxsize=1)
def _decompositions() -> dict[Any, Any]:
    table = dict(core_aten_decompositions())
    for name in _KEEP:
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            table.pop(getattr(packet, overload), None)
    return table


def _fake(spec: TensorSpec) -> torch.Tensor:
    dtype = getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise Unsupported(f"an input has the unknown dtype {spec.dtype}")
    # Fake tensors of a GPU need a torch that knows GPUs; elsewhere the CPU's tell the same.
    device = spec.device if torch.cuda.is_available() else "cpu"
    return torch.empty_strided(spec.shape, spec.stride, dtype=dtype, device=device)


def aten_graph(target: Target) -> fx.Graph:
    """The target's graph in ATen operators, free of mutation; raises Unsupported (why)."""
    if any(math.prod(spec.shape) == 0 for spec in [*target.inputs, *target.outputs]):
        raise Unsupported("a tensor of the region is empty")
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            inputs = [_fake(spec) for spec in target.inputs]
            function = torch.func.functionalize(target.graph, remove="mutations_and_views")
            traced = make_fx(function, decomposition_table=_decompositions())(*inputs)
    except Unsupported:
        raise
    except Exception as problem:  # whatever an operator's fake implementation raises
        first = str(problem).strip().splitlines()
        raise Unsupported(
            f"the graph could not be traced: {type(problem).__name__}: {first[0] if first else ''}"
        ) from problem
    traced.graph.eliminate_dead_code()
    if len(traced.graph.nodes) > MAX_NODES:
        raise Unsupported(f"the region has {len(traced.graph.nodes)} nodes, over {MAX_NODES}")
    return traced.graph
