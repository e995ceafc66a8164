"""By how much each element of an output may be off: the rule of correctness, in numbers.

Two passes over an output, block by block: one for eager's errors and the sizes of each row, one for
the tolerance of each element. Why it is what it is stands in :mod:`kforge_nb.judge.correctness`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kforge_nb.judge.blocks import tiles
from kforge_nb.judge.kin import raised

__all__ = ["FACTOR", "SUM", "ULPS", "Budget", "Terms"]

FACTOR = 4.0
ULPS = 8.0
SUM = 4.0
_EXACT = 16.0
_EQUAL = 2.0  # a half for each number, and four times that for what an activation makes of it
_QUANTILE_LIMIT = 16_000_000


@dataclass(frozen=True, slots=True)
class Terms:
    """What makes an honest sum inexact: how many numbers, and their size over their spread.

    ``equal``: nearly all numbers are the same, so that rounding goes the same way every time.
    ``size``: of the inputs' largest values; float64 itself is only exact to that scale's last bits.
    ``masked``: the target multiplies matrices and masks or fills them itself.
    ``apart``: rows are of such different scales that the size of others in the plane says nothing.
    ``alone``: nearly all inputs are zeros, so that other rows say nothing of a row's errors.
    ``short``: rows hold few numbers, so that what the worst hundredth of them has says nothing.
    ``double``: the target computes in float64 throughout; else a float64 output is only as exact as
    the float32 that it was made of.
    """

    summands: int = 0
    condition: float = 1.0
    equal: bool = False
    size: float = 0.0
    masked: bool = False
    apart: bool = False
    alone: bool = False
    short: bool = False
    double: bool = True

    @property
    def units(self) -> float:
        """Units in the last place that the order of summation may cost."""
        units = math.sqrt(self.summands) * (SUM + self.condition - 1.0)
        return max(units, _EQUAL * self.summands) if self.equal else units


class Budget:
    """Eager's errors and the sizes of one output, row by row; from them what may be off.

    With ``kind`` (see :mod:`kforge_nb.judge.kin`) a row is as large as the largest of its kind.

    Attributes:
        error: eager's largest error.
        scale: root mean square of what is finite.
    """

    def __init__(
        self,
        exact: torch.Tensor,
        eager: torch.Tensor,
        nearby: torch.Tensor | None,
        finite: bool,
        kind: torch.Tensor | None = None,
    ) -> None:
        columns = exact.shape[-1] if exact.dim() else 1
        self._shape = exact.shape
        self._exact, self._eager = (t.view(-1, columns) if t.numel() else t.view(0, 1)
                                    for t in (exact, eager))  # fmt: skip
        self._nearby = None if nearby is None else nearby.reshape(self._exact.shape)
        self._finite = finite
        self.error = 0.0
        self._worst = exact.new_zeros(len(self._exact), 1)
        squares = torch.zeros_like(self._worst)
        for rows, part in tiles(self._exact):
            error, size = self._error_and_size(rows, part)
            self.error = max(self.error, float(error.max()))
            if self._nearby is not None:
                error = torch.maximum(error, self._nearby[rows, part])
            worst = self._worst[rows]
            torch.maximum(worst, error.amax(-1, keepdim=True), out=worst)
            squares[rows] += size.square_().sum(-1, keepdim=True)
        squares /= columns
        self._row = squares.sqrt()
        if kind is not None and self._row.numel():
            self._row = raised(self._row, kind)
        self.scale = float(squares.mean().sqrt()) if squares.numel() else 0.0

    def _error_and_size(self, rows: slice, part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        exact, eager = self._exact[rows, part], self._eager[rows, part]
        error, size = torch.sub(eager, exact).abs_(), exact.abs()
        if not self._finite:
            kept = torch.isfinite(eager) & torch.isfinite(exact)
            error, size = torch.where(kept, error, 0.0), torch.where(kept, size, 0.0)
        return error, size

    def tolerance(self, terms: Terms) -> tuple[torch.Tensor, float]:
        """How far off each element may be, float32 of the output's shape; and the largest."""
        dtype = self._eager.dtype
        info = torch.finfo(dtype)
        exact = dtype is torch.float64 and terms.double
        work = torch.finfo(torch.float64 if exact else torch.float32).eps
        always = _EXACT * torch.finfo(torch.float64).eps * terms.size + _least(dtype)
        base = FACTOR * self._usual_worst(terms) + work * ULPS * self._row + always
        rounding = (1.0 if info.eps > 1e-4 else ULPS) * info.eps
        found = torch.empty_like(self._exact, dtype=torch.float32)
        largest = 0.0
        # Equal numbers make whole rows equal, which an addend may cancel to little all at once.
        summed = self._row.clamp_min(self.scale) if terms.equal else self._row
        for rows, part in tiles(self._exact):
            size = self._error_and_size(rows, part)[1]
            value = torch.maximum(summed[rows], size).mul_(work * terms.units)
            value.add_(base[rows]).add_(size, alpha=rounding)
            largest = max(largest, float(value.max()))
            found[rows, part] = value
        return found.view(self._shape), largest

    def _usual_worst(self, terms: Terms) -> torch.Tensor:
        """Eager's error in each row: that of the row, of nearly all rows, of its plane."""
        worst = self._worst
        if terms.alone or worst.numel() == 0:
            return worst
        if not terms.short:
            worst = torch.maximum(worst, _usual(worst, self._row) * self._row)
        if terms.apart or len(self._shape) < 3 or self._shape[-2] < 2:
            return worst
        planes = worst.view(*self._shape[:-1], 1)
        return torch.maximum(planes, _most(planes)).view(-1, 1)


def _least(dtype: torch.dtype) -> float:
    """What may be taken for nothing, as units that flush subnormals do; in float16 none does.

    There a ten thousandth is subnormal, and a softmax of many numbers has little else.
    """
    info = torch.finfo(dtype)
    return ULPS * info.tiny * info.eps if dtype is torch.float16 else 4 * info.tiny


def _most(worst: torch.Tensor) -> torch.Tensor:
    """The 90th percentile over the second last dimension (torch's own takes 16M numbers)."""
    if worst.numel() <= _QUANTILE_LIMIT:
        return worst.quantile(0.9, dim=-2, keepdim=True)
    at = math.ceil(0.9 * worst.shape[-2])
    return worst.kthvalue(at, dim=-2, keepdim=True).values


def _usual(worst: torch.Tensor, row: torch.Tensor) -> float:
    """Eager's error in proportion to the row's scale, at the 99th percentile of the rows."""
    shares = (worst / row)[row > 0].reshape(-1)
    if shares.numel() == 0:
        return 0.0
    at = min(shares.numel(), math.ceil(0.99 * shares.numel()))
    return float(shares.kthvalue(at).values)
