"""Channels-last inputs brought to planes first, for operators whose output is in planes.

CUDA's group norm answers in planes whatever its input's layout is: torch copies the input first. So
does this: each channels-last input is turned into scratch, and the kernels for planes read that.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from kforge_nb.candidates.candidate import Scratch
from kforge_nb.candidates.recipes.cuda import emit
from kforge_nb.candidates.recipes.families.rowcode import CTYPES

if TYPE_CHECKING:
    from kforge_nb.targets.target import Target, TensorSpec

__all__ = ["last_inputs", "turn_entries", "with_planes"]

_SIDE = 64


def _planes(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides))


def _is_last(spec: TensorSpec) -> bool:
    """Whether a tensor is dense with its channels last, and not in planes.

    It has four dimensions, or three: an image whose pixels are one row, as attention views it.
    """
    if len(spec.shape) not in (3, 4) or spec.shape[1] == 1 or prod(spec.shape[2:]) == 1:
        return False
    n, c, *sizes = spec.shape
    moved = _planes((n, *sizes, c))
    dense = (moved[0], 1, *moved[1:-1])
    pairs = zip(spec.shape, spec.stride, dense, strict=True)
    return spec.dtype in ("float32", "float16", "bfloat16") and all(
        size == 1 or found == wanted for size, found, wanted in pairs
    )


def last_inputs(target: Target) -> list[int]:
    """Inputs that have to be turned; empty where the outputs are not all in planes."""
    if any(spec.stride != _planes(spec.shape) for spec in target.outputs):
        return []
    return [i for i, spec in enumerate(target.inputs) if _is_last(spec)]


def with_planes(target: Target) -> Target:
    """The target as it looks once its channels-last inputs have been turned."""
    turned = set(last_inputs(target))
    inputs = tuple(
        replace(spec, stride=_planes(spec.shape)) if i in turned else spec
        for i, spec in enumerate(target.inputs)
    )
    return replace(target, inputs=inputs)


def turn_entries(target: Target) -> tuple[list[emit.Entry], dict[str, Scratch], dict[str, str]]:
    """Kernels that turn the inputs, their scratch, and what later kernels read instead."""
    import torch

    entries: list[emit.Entry] = []
    scratch: dict[str, Scratch] = {}
    names: dict[str, str] = {}
    for index in last_inputs(target):
        spec = target.inputs[index]
        n, c = spec.shape[:2]
        pixels = prod(spec.shape[2:])
        kind, name = CTYPES[getattr(torch, spec.dtype)], f"turned{index}"
        body = (
            f"  __shared__ {kind} tile[{_SIDE} * ({_SIDE} + 4 / sizeof({kind}))];\n"
            f"  turn<{kind}, {n}, {c}, {pixels}>(x{index}, {name}, tile);"
        )
        grid = n * -(-c // _SIDE) * -(-pixels // _SIDE)
        pointers = [(f"const {kind}* ", f"x{index}"), (f"{kind}* ", name)]
        entries.append(emit.Entry(f"kf_turn{index}", pointers, body, grid, 256))
        scratch[name] = Scratch(spec.dtype, tuple(str(size) for size in spec.shape))
        names |= {f"x{index}": f"in{index}", f"in{index}": name}
    return entries, scratch, names
