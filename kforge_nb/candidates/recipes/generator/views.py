"""Views, slices, concatenation and padding: changes of index, nothing is moved."""

from __future__ import annotations

import math
from typing import Any

from kforge_nb.candidates.recipes.generator.index import Ix, floordiv, mod, weighted_sum
from kforge_nb.candidates.recipes.generator.ir import Const, Node, Piecewise, Unsupported, View
from kforge_nb.candidates.recipes.generator.lower import Call, Handler, cast, point

__all__ = ["TABLE", "broadcast_index", "reshape", "row_major", "spread", "unsqueeze_at"]

Index = tuple[Ix, ...]


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def spread(linear: Ix, shape: tuple[int, ...]) -> Index:
    """The index in ``shape`` of the element at position ``linear`` in row-major order."""
    index = []
    for dim, (size, stride) in enumerate(zip(shape, row_major(shape), strict=True)):
        quotient = floordiv(linear, stride)
        index.append(Ix() if size == 1 else quotient if dim == 0 else mod(quotient, size))
    return tuple(index)


def broadcast_index(index: Index, shape: tuple[int, ...]) -> Index:
    """``index`` of a result, cut down to an argument of ``shape`` that is broadcast to it."""
    tail = index[len(index) - len(shape) :]
    return tuple(Ix() if size == 1 else ix for ix, size in zip(tail, shape, strict=True))


def reshape(node: Node, shape: tuple[int, ...]) -> Node:
    """The same elements in row-major order under another shape."""
    if node.shape == shape:
        return node
    source, strides = node.shape, row_major(shape)

    def index(at: Index) -> Index:
        return spread(weighted_sum(at, strides), source)

    return View(shape, node.dtype, node, index)


def unsqueeze_at(node: Node, dim: int) -> Node:
    """A dimension of size 1 put in at ``dim``."""
    shape = (*node.shape[:dim], 1, *node.shape[dim:])
    return View(shape, node.dtype, node, lambda at: at[:dim] + at[dim + 1 :])


def _source(call: Call) -> Node:
    source = call.args[0]
    if not isinstance(source, Node):
        raise Unsupported(f"{call.name} of something that is no tensor")
    return source


def _reshape(call: Call) -> Node:
    return reshape(_source(call), call.shape)


def _same(call: Call) -> Node:
    source = _source(call)
    explicit = call.name == "_to_copy" and call.choices.rounding == "casts"
    return cast(source, call.dtype, explicit=explicit)


def _permute(call: Call) -> Node:
    source = _source(call)
    ndim = len(source.shape)
    if call.name == "permute":
        order = [dim % ndim for dim in call.args[1]]
    else:
        order = list(range(ndim))
        first, second = (call.args[1], call.args[2]) if call.name == "transpose" else (0, -1)
        if ndim > 1:
            first, second = first % ndim, second % ndim
            order[first], order[second] = order[second], order[first]

    def index(at: Index) -> Index:
        found = [Ix()] * ndim
        for position, dim in enumerate(order):
            found[dim] = at[position]
        return tuple(found)

    return View(call.shape, source.dtype, source, index)


def _expand(call: Call) -> Node:
    source = _source(call)
    return View(call.shape, source.dtype, source, lambda at: broadcast_index(at, source.shape))


def _slice(call: Call) -> Node:
    source = _source(call)
    dim = call.arg(1, "dim", 0) % len(source.shape)
    size, start, step = source.shape[dim], call.arg(2, "start"), call.arg(4, "step", 1)
    first = 0 if start is None else max(0, min(size, start + size if start < 0 else start))
    return _shifted(source, call.shape, dim, first, step)


def _shifted(node: Node, shape: tuple[int, ...], dim: int, first: int, step: int) -> Node:
    def index(at: Index) -> Index:
        return (*at[:dim], at[dim] * step + first, *at[dim + 1 :])

    return View(shape, node.dtype, node, index)


def _narrow(node: Node, dim: int, first: int, length: int) -> Node:
    shape = (*node.shape[:dim], length, *node.shape[dim + 1 :])
    return _shifted(node, shape, dim, first, 1)


def _drop(node: Node, dim: int, at: int) -> Node:
    shape = node.shape[:dim] + node.shape[dim + 1 :]
    return View(shape, node.dtype, node, lambda ix: (*ix[:dim], Ix((), at), *ix[dim:]))


def _select(call: Call) -> Node:
    source = _source(call)
    dim = call.args[1] % len(source.shape)
    return _drop(source, dim, call.args[2] % source.shape[dim])


def _split(call: Call) -> tuple[Node, ...]:
    source = _source(call)
    dim = call.arg(2, "dim", 0) % len(source.shape)
    size = source.shape[dim]
    if isinstance(call.args[1], int):
        step = call.args[1]
        lengths = [min(step, size - first) for first in range(0, size, step)]
    else:
        lengths = list(call.args[1])
    firsts = [sum(lengths[:k]) for k in range(len(lengths))]
    return tuple(_narrow(source, dim, f, n) for f, n in zip(firsts, lengths, strict=True))


def _unbind(call: Call) -> tuple[Node, ...]:
    source = _source(call)
    dim = call.arg(1, "dim", 0) % len(source.shape)
    return tuple(_drop(source, dim, at) for at in range(source.shape[dim]))


def _cat(call: Call) -> Node:
    pieces = [p for p in call.args[0] if p.shape != (0,)]
    dim = call.arg(1, "dim", 0) % len(call.shape)
    return _joined(pieces, dim, call.shape, call.dtype)


def _joined(pieces: list[Node], dim: int, shape: tuple[int, ...], dtype: str) -> Node:
    starts, total = [], 0
    kept = [cast(p, dtype) for p in pieces if p.shape[dim]]
    for piece in kept:
        starts.append(total)
        total += piece.shape[dim]
    return Piecewise(shape, dtype, dim, tuple(kept), tuple(starts))


def _stack(call: Call) -> Node:
    dim = call.arg(1, "dim", 0) % len(call.shape)
    return _joined([unsqueeze_at(p, dim) for p in call.args[0]], dim, call.shape, call.dtype)


def _pad(call: Call) -> Node:
    node, pads = _source(call), list(call.args[1])
    value = call.arg(2, "value", 0)
    ndim = len(node.shape)
    for position in range(len(pads) // 2):
        before, after = pads[2 * position], pads[2 * position + 1]
        dim = ndim - 1 - position
        if before < 0 or after < 0:
            first = max(0, -before)
            length = node.shape[dim] + min(0, before) + min(0, after)
            node = _narrow(node, dim, first, length)
        pieces: list[Node] = [node]
        if before > 0:
            pieces.insert(0, Const(_sized(node, dim, before), node.dtype, value))
        if after > 0:
            pieces.append(Const(_sized(node, dim, after), node.dtype, value))
        if len(pieces) > 1:
            total = sum(p.shape[dim] for p in pieces)
            node = _joined(pieces, dim, _sized(node, dim, total), node.dtype)
    return node


def _sized(node: Node, dim: int, size: int) -> tuple[int, ...]:
    return (*node.shape[:dim], size, *node.shape[dim + 1 :])


def _flip(call: Call) -> Node:
    source = _source(call)
    dims = {dim % len(source.shape) for dim in call.args[1]}

    def index(at: Index) -> Index:
        return tuple(
            ix * -1 + (size - 1) if dim in dims else ix
            for dim, (ix, size) in enumerate(zip(at, source.shape, strict=True))
        )

    return View(call.shape, source.dtype, source, index)


def _repeat(call: Call) -> Node:
    source = _source(call)

    def index(at: Index) -> Index:
        tail = at[len(at) - len(source.shape) :]
        return tuple(mod(ix, size) for ix, size in zip(tail, source.shape, strict=True))

    return View(call.shape, source.dtype, source, index)


def _scatter(call: Call) -> Node:
    base, patch = _source(call), call.args[1]
    dim = call.arg(2, "dim", 0) % len(base.shape)
    size = base.shape[dim]
    if call.name == "select_scatter":
        first, step, patch = call.args[3] % size, 1, unsqueeze_at(patch, dim)
    else:
        start, step = call.arg(3, "start"), call.arg(5, "step", 1)
        first = 0 if start is None else max(0, min(size, start + size if start < 0 else start))
    if step != 1:
        raise Unsupported("writing into every n-th element of a slice")
    after = first + patch.shape[dim]
    pieces = [_narrow(base, dim, 0, first), patch, _narrow(base, dim, after, size - after)]
    return _joined(pieces, dim, base.shape, base.dtype)


def _overwrite(call: Call) -> Node:
    return point("copy", call.dtype, call.shape, cast(call.args[1], call.dtype))


def _as_strided(call: Call) -> Any:
    raise Unsupported(f"{call.name} of {math.prod(call.shape)} elements with free strides")


TABLE: dict[str, Handler] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "squeeze", "_reshape_alias"), _reshape),
    "unsqueeze": _reshape,
    **dict.fromkeys(
        ("clone", "alias", "_to_copy", "contiguous", "detach", "lift_fresh", "positive"), _same
    ),
    **dict.fromkeys(("permute", "transpose", "t"), _permute),
    "expand": _expand,
    "slice": _slice,
    "select": _select,
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    "unbind": _unbind,
    "cat": _cat,
    "stack": _stack,
    "constant_pad_nd": _pad,
    "flip": _flip,
    "repeat": _repeat,
    **dict.fromkeys(("slice_scatter", "select_scatter"), _scatter),
    "copy": _overwrite,
    "as_strided": _as_strided,
}
