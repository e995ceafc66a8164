"""Values for judging: captured tensors redrawn, and values that are hard for a kernel.

A redrawn tensor looks like the one that was seen (sign, spread, special values, integer range) but
shares nothing else with it: a kernel that learned the seen values, or a weight that happened to be
all ones, is found out. All randomness comes from a generator that the caller seeds secretly, on the
device of the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kforge_nb.judge.blocks import spans
from kforge_nb.judge.roles import is_mask, main_inputs
from kforge_nb.targets.target import TensorSpec

__all__ = [
    "EMPTY_ROWS",
    "HARD_SETS",
    "MASKED_ROWS",
    "SIDED",
    "TIED",
    "distinct",
    "fill",
    "hard_set",
    "lay_out",
    "masks",
    "redraw",
    "redraw_flat",
]

Tensors = list[torch.Tensor]
SIDED, TIED = "one-sided rows", "ties"
MASKED_ROWS, EMPTY_ROWS = "masked rows", "empty rows"
_SOME_ROWS = 0.2
_FAR = 1e4
"""A mean of rows with a spread of 1: its square loses all digits of the variance in float32."""


def lay_out(flat: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """A tensor of ``spec``'s shape and strides whose elements come from ``flat`` in order."""
    result = torch.empty_strided(spec.shape, spec.stride, dtype=flat.dtype, device=flat.device)
    count = result.numel()
    if any(stride == 0 and size > 1 for size, stride in zip(spec.shape, spec.stride, strict=True)):
        base = [1 if stride == 0 else size for size, stride in
                zip(spec.shape, spec.stride, strict=True)]  # fmt: skip
        inner = torch.empty_strided(base, spec.stride, dtype=flat.dtype, device=flat.device)
        inner.copy_(flat[: inner.numel()].view(base))
        return inner.expand(spec.shape).as_strided(spec.shape, spec.stride)
    if count:
        result.copy_(flat[:count].view(spec.shape))
    return result


def redraw_flat(seen: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """``count`` new values of ``seen``'s dtype that look like its values.

    Integers and booleans are drawn from the values seen (indices stay valid). Masks (few values,
    one of them hugely negative or infinite; or zero and one other) likewise. Constants are spread
    around their value with its sign kept. Other floats are drawn from the values seen, scaled by
    0.8 to 1.25 each.
    """
    values = seen.reshape(-1)
    found = torch.zeros(count, dtype=seen.dtype, device=seen.device)
    if values.numel() == 0:
        return found
    draw = _drawer(values)
    here: dict[str, Any] = {"generator": generator, "device": seen.device}
    for at in spans(found):
        found[at] = draw(found[at].numel(), here)
    return found


def _drawer(values: torch.Tensor) -> Callable[[int, dict[str, Any]], torch.Tensor]:
    """How new values are drawn for those seen, so many at once."""

    def pick(count: int, here: dict[str, Any]) -> torch.Tensor:
        return values[torch.randint(values.numel(), (count,), **here)]

    if not values.is_floating_point():
        return pick
    if is_mask(values):
        return pick
    sample = values[:4096].to(torch.float64)
    distinct = torch.unique(sample[~sample.isnan()])
    constant = float(distinct[0]) if distinct.numel() else 1.0

    def spread(count: int, here: dict[str, Any]) -> torch.Tensor:
        noise = torch.rand(count, dtype=torch.float32, **here)
        return constant * (0.5 + noise) if constant != 0 else noise - 0.5

    def scaled(count: int, here: dict[str, Any]) -> torch.Tensor:
        noise = torch.rand(count, dtype=torch.float32, **here)
        return pick(count, here).to(torch.float32).mul_(noise.mul_(0.45).add_(0.8))

    return spread if distinct.numel() <= 1 else scaled


def redraw(seen: Sequence[torch.Tensor], generator: torch.Generator) -> Tensors:
    """A new set of inputs with the shapes, strides and looks of ``seen``."""
    return [lay_out(redraw_flat(t, max(t.numel(), 1), generator), TensorSpec.of(t)) for t in seen]


def _scale(seen: Tensors, generator: torch.Generator, pick: Callable[[torch.dtype], float]) -> None:
    for tensor in _main(seen):
        flat = torch.randn(
            tensor.shape, generator=generator, dtype=torch.float32, device=tensor.device
        )
        fill(tensor, flat.to(torch.float64) * pick(tensor.dtype))


def _main(tensors: Tensors) -> Tensors:
    return [tensors[i] for i in main_inputs(tensors)]


def distinct(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that has memory of its own: a view, one long where it is expanded."""
    if 0 not in tensor.stride():
        return tensor
    return tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())]


def fill(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Write values into a tensor that may be expanded (stride 0)."""
    if 0 in tensor.stride():
        values = values[tuple(slice(0, 1) if s == 0 else slice(None) for s in tensor.stride())]
    distinct(tensor).copy_(values.to(tensor.dtype))


def _zeros(tensors: Tensors, _: torch.Generator) -> None:
    for tensor in _main(tensors):
        fill(tensor, torch.zeros(tensor.shape, device=tensor.device))


def _huge(tensors: Tensors, generator: torch.Generator) -> None:
    _scale(tensors, generator, lambda dtype: 100.0 if dtype is torch.float16 else 1e8)


def _large(tensors: Tensors, generator: torch.Generator) -> None:
    _scale(tensors, generator, lambda _: 30.0)


def _tiny(tensors: Tensors, generator: torch.Generator) -> None:
    _scale(tensors, generator, lambda dtype: 1e-4 if dtype is torch.float16 else 1e-20)


def _offset(tensors: Tensors, generator: torch.Generator) -> None:
    """Rows whose mean is far above their spread: naive variances cancel."""
    for tensor in _main(tensors):
        noise = torch.randn(
            tensor.shape, generator=generator, dtype=torch.float32, device=tensor.device
        )
        middle = 30.0 if tensor.dtype in (torch.float16, torch.bfloat16) else _FAR
        fill(tensor, middle + noise)


def _impulses(tensors: Tensors, generator: torch.Generator) -> None:
    """Zeros with single non-zero elements at random places, among them the last."""
    for tensor in _main(tensors):
        values = torch.zeros(tensor.numel(), device=tensor.device)
        count = max(1, min(64, tensor.numel() // 64))
        here: dict[str, Any] = {"generator": generator, "device": tensor.device}
        places = torch.randint(tensor.numel(), (count,), **here)
        values[places] = 4.0 * torch.randn(count, **here) + 1.0
        values[-1] = 7.0
        fill(tensor, values.view(tensor.shape))


def _specials(tensors: Tensors, generator: torch.Generator) -> None:
    """NaN and infinities of both signs at a few random places, half of them where rows end.

    Loops that take several numbers at once have another piece of code for the first or the last.
    """
    for tensor in _main(tensors):
        here: dict[str, Any] = {"generator": generator, "device": tensor.device}
        values = torch.randn(tensor.numel(), **here)
        count = max(1, min(24, tensor.numel() // 32))
        columns = tensor.shape[-1] if tensor.dim() else 1
        rows = tensor.numel() // columns if columns else 0
        order = torch.arange(count, device=tensor.device)
        row = torch.randint(max(1, rows), (count,), **here)
        if rows >= 2 * count:  # each in a row of its own
            row = (row[0] + order * (rows // count)) % rows
        column = torch.randint(max(1, columns), (count,), **here)
        column = torch.where(order < count // 2, order % 2 * (columns - 1), column)
        kinds = torch.tensor([float("nan"), float("inf"), float("-inf")], device=tensor.device)
        values[row * columns + column] = kinds[order % 3]
        fill(tensor, values.view(tensor.shape))


def _infinite(tensors: Tensors, generator: torch.Generator) -> None:
    """Only negative infinities, as masks put them there."""
    for tensor in _main(tensors):
        here: dict[str, Any] = {"generator": generator, "device": tensor.device}
        values = torch.randn(tensor.numel(), **here)
        values[torch.rand(tensor.numel(), **here) < 0.1] = float("-inf")
        fill(tensor, values.view(tensor.shape))


def _empty_rows(tensors: Tensors, generator: torch.Generator) -> None:
    """Rows of which a mask has left nothing, among others."""
    for tensor in _main(tensors):
        here: dict[str, Any] = {"generator": generator, "device": tensor.device}
        rows = (*tensor.shape[:-1], 1) if tensor.dim() else ()
        values = torch.randn(tensor.shape, **here)
        fill(tensor, values.masked_fill(torch.rand(rows, **here) < _SOME_ROWS, float("-inf")))


def _masked_rows(tensors: Tensors, generator: torch.Generator) -> None:
    """Masks of which some rows hold one value alone, as those of padding do."""
    for tensor in tensors:
        if not masks([tensor]):
            continue
        rows = (*tensor.shape[:-1], 1)
        here: dict[str, Any] = {"generator": generator, "device": tensor.device}
        one = tensor.reshape(-1)[torch.randint(tensor.numel(), rows, **here)]
        fill(tensor, torch.where(torch.rand(rows, **here) < _SOME_ROWS, one, tensor))


def masks(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether any of these is a mask that has rows: booleans, or floats of few values."""
    return any(
        tensor.dim() > 0
        and tensor.shape[-1] > 1
        and (tensor.dtype is torch.bool or (tensor.is_floating_point() and is_mask(tensor)))
        for tensor in tensors
    )


def _tails(tensors: Tensors, generator: torch.Generator) -> None:
    """Sizes from a thousandth to thirty, both signs: where an approximation leaves its range."""
    for tensor in _main(tensors):
        here: dict[str, Any] = {"generator": generator, "device": tensor.device}
        size = torch.exp(torch.rand(tensor.shape, **here) * 10.3 - 6.9)
        fill(tensor, size * (2.0 * torch.randint(2, tensor.shape, **here) - 1.0))


def _scaled(tensors: Tensors, generator: torch.Generator) -> None:
    """Rows from a thousandth to a thousand: none may hide its errors behind a larger one."""
    for tensor in _main(tensors):
        here: dict[str, Any] = {"generator": generator, "device": tensor.device}
        rows = (*tensor.shape[:-1], 1) if tensor.dim() else ()
        size = torch.exp(torch.rand(rows, **here) * 13.8 - 6.9)
        fill(tensor, size * torch.randn(tensor.shape, **here))


def _sided(tensors: Tensors, generator: torch.Generator) -> None:
    """Rows of one sign and one size up to sixteen: a tail is compared with nothing but itself."""
    for tensor in _main(tensors):
        here: dict[str, Any] = {"generator": generator, "device": tensor.device}
        rows = (*tensor.shape[:-1], 1) if tensor.dim() else ()
        which, size = torch.rand(rows, **here), torch.rand(rows, **here)
        size = torch.where(which < 0.4, torch.exp(size * 9.7 - 6.9), size * 16.0)
        size = torch.where(which > 0.7, 14.0 + size / 8.0, size)  # the end of the range, often
        size = size * (2.0 * torch.randint(2, rows, **here) - 1.0)
        fill(tensor, size * (0.9 + 0.2 * torch.rand(tensor.shape, **here)))


def _tied(tensors: Tensors, generator: torch.Generator) -> None:
    """Halves of whole numbers, so that each stands there often; zeros of both signs."""
    for tensor in _main(tensors):
        here: dict[str, Any] = {"generator": generator, "device": tensor.device}
        size = torch.randint(9, tensor.shape, **here) * 0.5
        fill(tensor, size * (2.0 * torch.randint(2, tensor.shape, **here) - 1.0))


HARD_SETS: dict[str, Callable[[Tensors, torch.Generator], None]] = {
    "offset": _offset,
    "specials": _specials,
    "impulses": _impulses,
    "tails": _tails,
    SIDED: _sided,
    TIED: _tied,
    "scaled rows": _scaled,
    "large": _large,
    "zeros": _zeros,
    "huge": _huge,
    "tiny": _tiny,
    "negative infinities": _infinite,
    MASKED_ROWS: _masked_rows,
    EMPTY_ROWS: _empty_rows,
}
"""Hard value sets by name, most telling first. Those that eager does not define are left out."""


def hard_set(name: str, seen: Sequence[torch.Tensor], generator: torch.Generator) -> Tensors:
    """Redrawn inputs with the main inputs replaced by the hard values called ``name``."""
    tensors = redraw(seen, generator)
    HARD_SETS[name](tensors, generator)
    return tensors
