"""Is an output right? Both the candidate's and eager's error are taken against float64.

An element may be off by ``FACTOR`` times the error that eager itself makes in its row, plus
``ULPS`` units in the last place of the output's dtype at the element, plus ``ULPS`` units of the
arithmetic's precision at the scale of the row. Eager's error in a row is the worst of that row, or
what eager's errors are in nearly all rows in proportion to their scale, or what they are in nearly
all rows of the same plane (the last two dimensions), whichever is most: eager must not set a budget
by luck, and a row that an activation cut down to little still comes from numbers of its plane's
size (not where the rows were made of sizes that have nothing to do with each other). For the same
reason, where elements stand alone among zeros, eager's error also on inputs close by counts
(:mod:`kforge_nb.judge.nearby`). Where the target sums ``n`` numbers, their sum may be taken in any
order, one by one if need be: ``SUM * sqrt(n)`` more units, times how much larger the numbers are
than their spread (``Terms``). An approximation, a lower precision or a dropped term is far outside.
NaNs and infinities must stand where eager has them, integers and booleans must be equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from kforge_nb.judge.evaluation import ErrorFigure

__all__ = ["FACTOR", "SUM", "ULPS", "Expected", "OutputCheck", "Terms", "check_output", "expect"]

FACTOR = 4.0
ULPS = 8.0
SUM = 4.0
_SHOWN = 4
_EXACT = 16.0
_QUANTILE_LIMIT = 16_000_000


@dataclass(frozen=True, slots=True)
class Terms:
    """What makes an honest sum inexact: how many numbers, and their size over their spread.

    ``equal``: nearly all numbers are the same, so that rounding goes the same way every time.
    ``size``: of the inputs' largest values; float64 itself is only exact to that scale's last bits.
    ``masked``: the target multiplies matrices and masks or fills them itself.
    ``apart``: rows are of such different scales that the size of others in the plane says nothing.
    """

    summands: int = 0
    condition: float = 1.0
    equal: bool = False
    size: float = 0.0
    masked: bool = False
    apart: bool = False

    @property
    def units(self) -> float:
        """Units in the last place that the order of summation may cost."""
        units = SUM * math.sqrt(self.summands)
        return (max(units, self.summands / 2) if self.equal else units) * self.condition


@dataclass(frozen=True, slots=True)
class Expected:
    """What one output must be on one input set.

    ``reference`` is float64 (or the exact dtype of integers), ``tolerance`` float32 of the same
    shape (None: must be equal), ``special`` where eager is not finite (None: nowhere). With
    ``free`` anything may stand there: matrices that are masked or padded with zeros carry NaN and
    infinity to places that the mathematics keeps clear of them. ``scale`` is the root mean square
    of what is finite.
    """

    reference: torch.Tensor
    eager: torch.Tensor
    tolerance: torch.Tensor | None
    special: torch.Tensor | None
    eager_error: float
    budget: float
    free: bool = False
    scale: float = 0.0

    def to(self, device: str | torch.device) -> Expected:
        """The same on another device."""
        return replace(
            self,
            reference=self.reference.to(device),
            eager=self.eager.to(device),
            tolerance=None if self.tolerance is None else self.tolerance.to(device),
            special=None if self.special is None else self.special.to(device),
        )

    def at(self, index: torch.Tensor) -> Expected:
        """Some elements only, by their number in row-major order; int64."""

        def taken(values: torch.Tensor) -> torch.Tensor:
            return values.reshape(-1)[index.to(values.device)]

        return replace(
            self,
            reference=taken(self.reference),
            eager=taken(self.eager),
            tolerance=None if self.tolerance is None else taken(self.tolerance),
            special=None if self.special is None else taken(self.special),
        )


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """Verdict on one output: figure for the evaluation, what is wrong, and the worst elements.

    ``excess`` is how many times over the budget the worst element is (1: just inside).
    """

    figure: ErrorFigure
    wrong: str | None
    worst: tuple[dict[str, Any], ...]
    excess: float = 1.0


def expect(
    reference: torch.Tensor,
    eager: torch.Tensor,
    terms: Terms = Terms(),
    nearby: torch.Tensor | None = None,
) -> Expected:
    """Work out the budget of one output from its exact value and eager's value.

    ``nearby``: eager's largest errors on inputs close by, where an element has no others of its
    kind around it to say what eager's error is.
    """
    if not eager.is_floating_point():
        return Expected(reference, eager.contiguous(), None, None, 0.0, 0.0)
    eager = eager.contiguous()
    exact = reference.to(torch.float64).contiguous()
    finite = torch.isfinite(eager) & torch.isfinite(exact)
    special = None if bool(finite.all()) else ~torch.isfinite(eager)
    error = (eager.to(torch.float64) - exact).abs()
    magnitude = exact.abs()
    if special is not None:
        error = torch.where(finite, error, 0.0)
        magnitude = torch.where(finite, magnitude, 0.0)
    usual = error if nearby is None else torch.maximum(error, nearby.to(error.device))
    tolerance = _tolerance(usual, magnitude, eager.dtype, terms, alone=nearby is not None)
    scale = _scale(magnitude)
    return Expected(
        exact,
        eager,
        tolerance.to(torch.float32),
        special,
        _figure(error, scale),
        _figure(tolerance, scale),
        terms.masked,
        scale,
    )


def _tolerance(
    error: torch.Tensor,
    magnitude: torch.Tensor,
    dtype: torch.dtype,
    terms: Terms,
    *,
    alone: bool = False,
) -> torch.Tensor:
    info = torch.finfo(dtype)
    work = torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).eps
    if error.dim() == 0 or error.numel() == 0:
        worst, row = error, magnitude
    else:
        worst = error.amax(-1, keepdim=True)
        row = magnitude.square().mean(-1, keepdim=True).sqrt()
        if not alone:
            worst = torch.maximum(worst, _usual(worst, row) * row)
        if not alone and not terms.apart and error.dim() >= 3 and error.shape[-2] > 1:
            worst = torch.maximum(worst, _most(worst))
    rounding = (1.0 if info.eps > 1e-4 else ULPS) * info.eps * magnitude
    sums = work * (ULPS * row + terms.units * torch.maximum(row, magnitude))
    exact = _EXACT * torch.finfo(torch.float64).eps * terms.size
    return FACTOR * worst + rounding + sums + exact + 4 * info.tiny


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


def _scale(magnitude: torch.Tensor) -> float:
    return float(magnitude.square().mean().sqrt()) if magnitude.numel() else 0.0


def _figure(error: torch.Tensor, scale: float) -> float:
    """Largest error over the root mean square of the output: one comparable number."""
    if error.numel() == 0:
        return 0.0
    worst = float(error.max())
    worst = math.inf if math.isnan(worst) else worst
    return worst / scale if scale > 0 else worst


def check_output(expected: Expected, got: torch.Tensor, output: str, case: str) -> OutputCheck:
    """Compare one output of the candidate; on the CPU where a GPU has no room for that.

    Args:
        expected: from :func:`expect`.
        got: the candidate's output, same dtype, shape and device.
        output: its name (``out0``).
        case: name of the input set.
    """
    try:
        return _compare(expected, got, output, case)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
    return _compare(expected.to("cpu"), got.cpu(), output, case)


def _compare(expected: Expected, got: torch.Tensor, output: str, case: str) -> OutputCheck:
    if expected.tolerance is None:
        return _check_equal(expected, got, output, case)
    error = torch.sub(got, expected.reference).abs_()  # in float64, whatever got is
    bad = ~(error <= expected.tolerance)
    wrong = None
    if expected.special is not None:
        same = (got == expected.eager) | (got.isnan() & expected.eager.isnan())
        lacks = torch.zeros_like(same) if expected.free else ~same
        bad = torch.where(expected.special, lacks, bad & torch.isfinite(expected.reference))
        error = torch.where(expected.special, 0.0, error)
    count = int(bad.sum())
    if count:
        wrong = _words(bad, got, expected, output, case, count)
    figure = ErrorFigure(
        output, case, _figure(error, expected.scale), expected.eager_error, expected.budget
    )
    if wrong is None:
        return OutputCheck(figure, None, ())
    excess = torch.nan_to_num(error / expected.tolerance, nan=float("inf"))[bad].max()
    if expected.special is not None and bool((bad & expected.special).any()):
        excess = torch.tensor(float("inf"))
    worst = _worst(bad, got, expected, output, case)
    return OutputCheck(figure, wrong, worst, float(excess))


def _check_equal(expected: Expected, got: torch.Tensor, output: str, case: str) -> OutputCheck:
    bad = got != expected.eager
    count = int(bad.sum())
    figure = ErrorFigure(output, case, float(count), 0.0, 0.0)
    if not count:
        return OutputCheck(figure, None, ())
    words = f"{output} differs from eager in {count} of {bad.numel()} elements on {case}"
    return OutputCheck(figure, words, _worst(bad, got, expected, output, case), math.inf)


def _words(
    bad: torch.Tensor, got: torch.Tensor, expected: Expected, output: str, case: str, count: int
) -> str:
    share = f"{count} of {bad.numel()} elements"
    missing = bad & got.isnan() & ~expected.eager.isnan()
    if int(missing.sum()) == count:
        return (
            f"{output} is NaN in {share} on {case} where eager is not (unwritten, or an overflow)"
        )
    if expected.special is not None and int((bad & expected.special).sum()) == count:
        return f"{output} lacks eager's NaNs or infinities in {share} on {case}"
    return (
        f"{output} is outside its error budget in {share} on {case} "
        f"({FACTOR:g} times eager's own error against float64, and a few units in the last place)"
    )


def _worst(
    bad: torch.Tensor, got: torch.Tensor, expected: Expected, output: str, case: str
) -> tuple[dict[str, Any], ...]:
    """A few wrong elements, spread over the output, as plain data."""
    places = bad.reshape(-1).nonzero().reshape(-1)
    step = max(1, places.numel() // _SHOWN)
    rows = []
    for flat in places[::step][:_SHOWN].tolist():
        index = _unravel(flat, bad.shape)
        rows.append(
            {
                "output": output,
                "input_set": case,
                "index": index,
                "got": str(got[tuple(index)].item()),
                "eager": str(expected.eager[tuple(index)].item()),
                "float64": str(expected.reference[tuple(index)].item()),
            }
        )
    return tuple(rows)


def _unravel(flat: int, shape: Sequence[int]) -> list[int]:
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return index[::-1]
