"""Is an output right? Both the candidate's and eager's error are taken against float64.

An element may be off by ``FACTOR`` times the error that eager itself makes in its row, plus
``ULPS`` units in the last place of the output's dtype at the element, plus ``ULPS`` units of the
arithmetic's precision at the scale of the row. Eager's error in a row is the worst of that row, or
what eager's errors are in nearly all rows in proportion to their scale, or what they are in nearly
all rows of the same plane (the last two dimensions), whichever is most: eager must not set a budget
by luck, and a row that an activation cut down to little still comes from numbers of its plane's
size. Where the rows were made of sizes that have nothing to do with each other, only rows of about
the same inputs are compared (:mod:`kforge_nb.judge.kin`). For the same reason, where elements stand
alone among zeros, eager's error also on inputs close by counts (:mod:`kforge_nb.judge.nearby`).
Where the target sums ``n`` numbers, their sum may be taken in any order, one by one if need be:
``SUM * sqrt(n)`` more units, times how much larger the numbers are than their spread (``Terms``).
An approximation, a lower precision or a dropped term is far outside.
NaNs and infinities must stand where eager has them; where float64 has the other of the two, that
is right as well (a vendor's GELU makes NaN of an infinity). Integers and booleans must be equal: to
what eager has, or, where float64 has another (rounding made a tie of two numbers, and eager took
its first), to that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from kforge_nb.judge.blocks import all_finite, spans
from kforge_nb.judge.budget import FACTOR, SUM, ULPS, Budget, Terms
from kforge_nb.judge.evaluation import ErrorFigure

__all__ = [
    "FACTOR",
    "SUM",
    "ULPS",
    "Expected",
    "OutputCheck",
    "Reach",
    "Terms",
    "check_output",
    "expect",
]

_PLAIN = Terms()
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Expected:
    """What one output must be on one input set.

    ``reference`` is float64 (or the exact dtype of integers), ``tolerance`` float32 of the same
    shape (None: must be equal), ``special`` where eager is not finite (None: nowhere). With
    ``free`` anything may stand there: matrices that are masked or padded with zeros carry NaN and
    infinity to places that the mathematics keeps clear of them. ``open`` where anything may stand
    because of an infinity in a weight (None: no weight holds one): which of NaN and the infinities
    comes of it, and whether an activation cuts it off, depends on the order of honest steps.
    ``scale`` is the root mean square of what is finite.
    """

    reference: torch.Tensor
    eager: torch.Tensor
    tolerance: torch.Tensor | None
    special: torch.Tensor | None
    eager_error: float
    budget: float
    free: bool = False
    scale: float = 0.0
    open: torch.Tensor | None = None

    def to(self, device: str | torch.device) -> Expected:
        """The same on another device."""
        return replace(
            self,
            reference=self.reference.to(device),
            eager=self.eager.to(device),
            tolerance=None if self.tolerance is None else self.tolerance.to(device),
            special=None if self.special is None else self.special.to(device),
            open=None if self.open is None else self.open.to(device),
        )

    def at(self, index: torch.Tensor | slice) -> Expected:
        """Some elements only, by their number in row-major order; int64, or a range (a view)."""

        def taken(values: torch.Tensor) -> torch.Tensor:
            place = index.to(values.device) if isinstance(index, torch.Tensor) else index
            return values.reshape(-1)[place]

        return replace(
            self,
            reference=taken(self.reference),
            eager=taken(self.eager),
            tolerance=None if self.tolerance is None else taken(self.tolerance),
            special=None if self.special is None else taken(self.special),
            open=None if self.open is None else taken(self.open),
        )


@dataclass(frozen=True, slots=True)
class Reach:
    """What of an output depends on a NaN or infinity in a weight, and what on a NaN; booleans."""

    touched: torch.Tensor
    unknown: torch.Tensor

    def to(self, device: str | torch.device) -> Reach:
        """The same on another device."""
        return Reach(self.touched.to(device), self.unknown.to(device))


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
    terms: Terms = _PLAIN,
    nearby: torch.Tensor | None = None,
    kind: torch.Tensor | None = None,
    reach: Reach | None = None,
) -> Expected:
    """Work out the budget of one output from its exact value and eager's value.

    ``nearby``: eager's largest errors on inputs close by, where an element has no others of its
    kind around it to say what eager's error is. ``kind``: which rows come from inputs of the same
    size, where rows have scales of their own (:mod:`kforge_nb.judge.kin`). ``reach``: what depends
    on an infinity in a weight; where eager says infinite, something not finite must come of it.
    """
    if not eager.is_floating_point():
        return Expected(reference, eager.contiguous(), None, None, 0.0, 0.0)
    eager = eager.contiguous()
    exact = reference.to(torch.float64).contiguous()
    finite = all_finite(eager) and all_finite(exact)
    special = None if finite else ~torch.isfinite(eager)
    undecided = None
    if reach is not None:
        reach = reach.to(eager.device)
        special = reach.touched if special is None else special | reach.touched
        undecided = reach.touched & ~reach.unknown & ~eager.isinf()
    made = Budget(exact, eager, None if nearby is None else nearby.to(exact.device), finite, kind)
    tolerance, largest = made.tolerance(terms)
    return Expected(
        exact,
        eager,
        tolerance,
        special,
        _figure(made.error, made.scale),
        _figure(largest, made.scale),
        terms.masked,
        made.scale,
        undecided,
    )


def _figure(error: float, scale: float) -> float:
    """Largest error over the root mean square of the output: one comparable number."""
    worst = math.inf if math.isnan(error) else error
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
    seen = _Outside(expected, expected.tolerance, got)
    figure = ErrorFigure(
        output, case, _figure(seen.error, expected.scale), expected.eager_error, expected.budget
    )
    if seen.bad is None:
        return OutputCheck(figure, None, ())
    wrong = _words(seen.bad, got, expected, output, case, seen.count)
    return OutputCheck(figure, wrong, _worst(seen.bad, got, expected, output, case), seen.excess)


class _Outside:
    """What of an output is outside its budget.

    Attributes:
        error: the largest error.
        count: how many elements are outside.
        bad: which, in the output's shape; None where none is.
        excess: how many times over its budget the worst of them is.
    """

    def __init__(self, expected: Expected, tolerance: torch.Tensor, got: torch.Tensor) -> None:
        self.error, self.excess, self.count = 0.0, 0.0, 0
        self.bad: torch.Tensor | None = None
        self._like = expected.reference
        flat, limit = got.reshape(-1), tolerance.view(-1)
        for at in spans(flat):
            self._add(expected.at(at), limit[at], flat[at], at)

    def _add(
        self, expected: Expected, tolerance: torch.Tensor, got: torch.Tensor, at: slice
    ) -> None:
        error = torch.sub(got, expected.reference).abs_()  # in float64, whatever got is
        bad = ~(error <= tolerance)
        if expected.special is not None:
            bad &= torch.isfinite(expected.reference) & ~expected.special
            error.masked_fill_(expected.special, 0.0)
            places = expected.special.nonzero().view(-1)
            if places.numel():  # few, and comparing NaNs is slow
                bad[places] = _lacking(expected.at(places), got[places])
        largest = float(error.max())
        self.error = max(self.error, math.inf if math.isnan(largest) else largest)
        count = int(bad.sum())
        if not count:
            return
        excess = torch.nan_to_num(error / tolerance, nan=math.inf)[bad].max()
        if expected.special is not None and bool((bad & expected.special).any()):
            excess = torch.tensor(math.inf)
        self.excess = max(self.excess, float(excess))
        if self.bad is None:
            self.bad = torch.zeros_like(self._like, dtype=torch.bool)
        self.bad.view(-1)[at] = bad
        self.count += count


def _lacking(expected: Expected, got: torch.Tensor) -> torch.Tensor:
    """Where something not finite is wanted and does not stand; of the special places alone."""
    if expected.free:
        return torch.zeros_like(got, dtype=torch.bool)
    exact = expected.reference
    lacks = ~((got == expected.eager) | (got.isnan() & expected.eager.isnan()))
    lacks &= ~((exact.isinf() & (got == exact)) | (got.isnan() & exact.isnan()))
    if expected.open is not None:
        lacks &= ~(expected.open | (expected.eager.isinf() & ~torch.isfinite(got)))
    return lacks


def _check_equal(expected: Expected, got: torch.Tensor, output: str, case: str) -> OutputCheck:
    bad = (got != expected.eager) & (got != expected.reference)
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
