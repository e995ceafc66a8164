"""Short forms of launches: the last step before a graph is compiled.

Everything that rewrites graphs knows one form of a launch, ``launch(inputs, handle)`` with lists on
both ways. Building and taking apart these lists is a third of what a call costs the host, so where
a kernel has few inputs and outputs the graph that finally runs calls ``launch.in1`` … instead.
A graph that runs as Python calls the op's own C function; the Python object around it, of which
compilers need to know, costs as much again.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from kforge_nb.guard import launch
from kforge_nb.guard.marks import as_dynamos

__all__ = ["direct", "shorten"]


def direct(count: int, outputs: int = 1) -> Callable[..., Any]:
    """The C function of a short form: ``f(*inputs, handle)``, a tensor or a tuple of them."""
    return _direct(count, outputs)


@functools.cache
def _direct(count: int, outputs: int) -> Callable[..., Any]:
    launch.load()
    op = _overload(count, outputs)
    function = functools.partial(getattr(op, "_op", op))
    named: Any = function  # a graph's code needs a name to call it by
    named.__name__, named.__module__ = f"launch_{launch.short_name(count, outputs)}", "kforge"
    return function


def _overload(count: int, outputs: int) -> Any:
    return getattr(torch.ops.kforge.launch, launch.short_name(count, outputs))


def shorten(gm: fx.GraphModule, *, as_python: bool = False) -> fx.GraphModule:
    """A copy in which launches that have a short form use it; ``gm`` itself if there is none.

    Args:
        gm: a graph as the backend rewrites it.
        as_python: the graph will run as it is; no compiler will read it.
    """
    found = [node for node in gm.graph.nodes if _has_short_form(node)]
    if not found:
        return gm
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    chosen = set(found)
    single = {node for node in found if _outputs(node) == 1}
    for node in gm.graph.nodes:
        if node in chosen:
            inputs, handle = node.args
            op = (direct if as_python else _overload)(len(inputs), _outputs(node))
            env[node] = graph.call_function(op, (*(env[given] for given in inputs), handle))
            env[node].meta = {k: v for k, v in node.meta.items() if k not in _OF_THE_LIST}
        elif node.target is operator.getitem and node.args[0] in single:
            env[node] = env[node.args[0]]
            env[node].meta |= {k: v for k, v in node.meta.items() if k in _OF_THE_LIST}
        else:
            env[node] = graph.node_copy(node, env.__getitem__)
    graph.lint()
    result = fx.GraphModule(gm, graph)
    result.meta = dict(getattr(gm, "meta", {}))
    return as_dynamos(result, gm)


_OF_THE_LIST = ("val", "example_value", "tensor_meta")
"""What a node's ``meta`` says of its value; with one output a short form has the element's."""


def _outputs(node: fx.Node) -> int:
    """How many outputs the kernel of a launch has."""
    return len(launch.kernel(int(str(node.args[1]))).outputs)


def _has_short_form(node: fx.Node) -> bool:
    """Whether a node launches a kernel of few inputs and outputs, which are taken one by one."""
    if str(node.target) != "kforge.launch.default" or node.kwargs:  # the op may not be loaded yet
        return False
    inputs, handle = node.args
    if not isinstance(inputs, list | tuple) or not isinstance(handle, int):
        return False
    outputs = _outputs(node)
    taken = all(
        user.target is operator.getitem and user.args[1] in range(outputs) for user in node.users
    )
    return taken and (len(inputs), outputs) in launch.SHORT
