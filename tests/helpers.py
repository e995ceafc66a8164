"""Small tools that tests of several rooms share: a target from a plain function."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from kforge_nb.targets.target import Occurrence, Target, TensorSpec

__all__ = ["float64_of", "make_target", "trace"]


def trace(fn: Callable[..., Any], *inputs: torch.Tensor) -> fx.GraphModule:
    """Trace ``fn`` to a graph with placeholders ``in0 …`` that returns a tuple of tensors."""
    names = [f"in{i}" for i in range(len(inputs))]
    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    proxies = [fx.Proxy(graph.placeholder(name), tracer) for name in names]
    result = fn(*proxies)
    values = result if isinstance(result, tuple | list) else (result,)
    graph.output(tuple(value.node for value in values))
    graph.eliminate_dead_code()
    graph.lint()
    return fx.GraphModule(torch.nn.Module(), graph)


def make_target(
    fn: Callable[..., Any],
    *inputs: torch.Tensor,
    family: str = "other",
    name: str | None = None,
    calls: int = 1,
) -> Target:
    """A target that computes ``fn`` on tensors like ``inputs`` (strides and dtypes are kept).

    ``fn`` is called with ``fx`` proxies, so it must be straight-line code.
    """
    gm = trace(fn, *inputs)
    outputs = gm(*inputs)
    specs = tuple(TensorSpec.of(t) for t in inputs)
    body = "\n".join([gm.code, repr(specs)])
    title = name or getattr(fn, "__name__", "target")
    return Target(
        fingerprint=hashlib.sha256(body.encode()).hexdigest(),
        name=title.strip("<>"),
        family=family,
        granularity="region",
        graph=gm,
        inputs=specs,
        outputs=tuple(TensorSpec.of(t) for t in outputs),
        occurrences=[Occurrence(0, "", tuple(n.name for n in gm.graph.nodes), calls)],
    )


def float64_of(fn: Callable[..., Any], *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """``fn`` on float64 copies of the floating inputs: the exact result to compare with."""
    result = fn(*(t.double() if t.is_floating_point() else t for t in inputs))
    return result if isinstance(result, tuple) else (result,)
