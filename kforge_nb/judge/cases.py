"""The input sets that a candidate must compute rightly, with what is expected on each.

Everything here stays in the judge's process: expected values never enter a candidate's. The seed
comes from the operating system and is not kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import fx

from kforge_nb.errors import BadInput
from kforge_nb.judge.blocks import largest_size
from kforge_nb.judge.correctness import Expected, Reach, Terms, check_output, expect
from kforge_nb.judge.draws import (
    EMPTY_ROWS,
    HARD_SETS,
    MASKED_ROWS,
    SIDED,
    TIED,
    hard_set,
    masks,
    redraw,
)
from kforge_nb.judge.kin import kin
from kforge_nb.judge.nearby import nearby_errors, secret_generator, short, sparse
from kforge_nb.judge.sides import ALWAYS, NOT_FINITE, Sides
from kforge_nb.judge.sums import sums_of
from kforge_nb.targets.float64 import reference
from kforge_nb.targets.onhost import OnHost
from kforge_nb.targets.operators import describe
from kforge_nb.targets.target import Target

__all__ = ["CAPTURED", "Case", "build_cases", "make_case", "moved", "secret_generator", "weakness"]

CAPTURED = "captured"
"""What the names of the cases begin with whose inputs were not drawn."""
MEMORY_LIMIT = 768 << 20
_CAPTURED, _REDRAWN = 2, 2
_ALWAYS = 4  # hard sets that are kept however large the tensors are
_LARGEST = 1e4
_PRODUCTS = frozenset(
    {"matmul", "mm", "bmm", "addmm", "baddbmm", "linear", "einsum", "linalg_solve_triangular"}
)
_MASKS = frozenset(
    {"tril", "triu", "masked_fill", "masked_scatter", "where", "setitem", "pad",
     "constant_pad_nd", "linalg_solve_triangular"}
)  # fmt: skip
"""What keeps parts of a matrix clear of others, or fills it by and by."""
_BY_HAND = frozenset({"mul", "sum", "setitem"})  # a recurrence multiplied out step by step
_EQUAL = frozenset({"impulses", "zeros"})
_APART = "scaled rows"
_CANCELLING = frozenset({"gelu", "erf"})
"""``1 + erf`` has few digits far to the left, in eager and in others not the same ones."""
_NO_ORDER = frozenset({"topk", "sort", "argsort", "kthvalue", "median", "mode", "unique"})
"""Which of two equal numbers comes first is not said."""
_STEPS = frozenset(
    {"round", "sign", "where", "lt", "le", "gt", "ge", "eq", "ne", "threshold", "hardshrink",
     "heaviside"}
)  # fmt: skip
"""What jumps at one number, which drawn numbers hardly ever are."""
_LEAVES_OUT = frozenset({"softmax", "log_softmax", "logsumexp", "cross_entropy", "amax", "max"})
"""What takes negative infinities for nothing, and must say what nothing at all is."""
_MAY_BE_INFINITE = frozenset({"specials", "negative infinities", EMPTY_ROWS})
_DEFINED = ("redrawn", NOT_FINITE)  # whatever eager makes of them
_MOST_ALONE = 4  # sets of one input each

_Make = Callable[[fx.GraphModule, str, Sequence[torch.Tensor]], "Case"]
_Draw = Callable[[list[torch.Tensor], torch.Generator], list[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Case:
    """One input set by name, and what each output must be."""

    name: str
    inputs: list[torch.Tensor]
    expected: list[Expected]

    def to(self, device: str | torch.device) -> Case:
        """The same on another device (itself if it is there already)."""
        if all(t.device == torch.device(device) for t in (*self.inputs, *self._exact)):
            return self
        inputs = [moved(t, device) for t in self.inputs]
        return replace(self, inputs=inputs, expected=[e.to(device) for e in self.expected])

    @property
    def _exact(self) -> list[torch.Tensor]:
        return [e.reference for e in self.expected]

    @property
    def bytes(self) -> int:
        """Memory that it holds, about."""
        inputs = sum(t.untyped_storage().nbytes() for t in self.inputs)
        return inputs + sum(
            e.eager.numel() * (e.eager.element_size() + 12 if e.tolerance is not None else 8)
            for e in self.expected
        )


def moved(tensor: torch.Tensor, device: str | torch.device) -> torch.Tensor:
    """A tensor on a device, its strides kept (also those of expanded and overlapping tensors)."""
    if tensor.device == torch.device(device):
        return tensor
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    extent = 1 + last if tensor.numel() else 0
    flat = tensor.as_strided((extent,), (1,), tensor.storage_offset()).to(device)
    return flat.as_strided(tensor.shape, tensor.stride())


def make_case(
    graph: fx.GraphModule, name: str, inputs: Sequence[torch.Tensor], exact_on: str | None = None
) -> Case:
    """Run eager and float64 on one set; raises whatever eager raises on it.

    ``exact_on`` names the CPU for float64 and all else (only eager still runs where the inputs are,
    and needs no more memory there than it does by itself): a way out where that device is full.
    Eager's errors on inputs close by are then those that the CPU makes in the same dtypes.
    """
    host = exact_on is not None
    with torch.no_grad():
        eager = _listed(graph(*inputs))
        if exact_on is not None:
            inputs = [moved(t, exact_on) for t in inputs]
            eager = [moved(t, exact_on) for t in eager]
        beside = nearby_errors(graph, inputs, eager, cut=name == SIDED, on_host=host)
        sums = sums_of(graph, inputs, eager, on_host=host)
        reach: list[Reach | None] = [None] * len(eager)
        if name.startswith(NOT_FINITE):
            reach = _reach(graph, inputs, host)
        exact = reference(graph, inputs, on_cpu=host)
    names = {describe(node).name for node in graph.graph.nodes}
    masked = (bool(names & _PRODUCTS) and bool(names & _MASKS)) or names >= _BY_HAND
    terms = Terms(
        sums.most, _condition(inputs), name in _EQUAL, _size(inputs), masked, name == _APART,
        sparse(inputs) or name == SIDED, short(inputs), sums.double,
    )  # fmt: skip
    kinds = [kin(inputs, low) if name == _APART else None for low in eager]
    rows = zip(exact, eager, beside, kinds, reach, strict=True)
    made = [expect(high, low, terms, near, kind, far) for high, low, near, kind, far in rows]
    return Case(name, list(inputs), made)


def _listed(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def _reach(
    graph: fx.GraphModule, inputs: Sequence[torch.Tensor], on_host: bool
) -> list[Reach | None]:
    """What each output would be if an infinity in the inputs were NaN, and if it were 1."""

    def unknown(value: float) -> list[torch.Tensor | None]:
        changed = [t.masked_fill(t == math.inf, value) if t.is_floating_point() else t
                   for t in inputs]  # fmt: skip
        outputs = _listed(OnHost(graph).run(*changed) if on_host else graph(*changed))
        return [t.isnan().contiguous() if t.is_floating_point() else None for t in outputs]

    pairs = zip(unknown(math.nan), unknown(1.0), strict=True)
    return [None if a is None or b is None else Reach(a, b) for a, b in pairs]


def _condition(inputs: Sequence[torch.Tensor]) -> float:
    """How much larger than their spread the values in a row of the largest input are."""
    floats = [t for t in inputs if t.is_floating_point() and t.dim() > 0 and t.numel() > 0]
    if not floats:
        return 1.0
    largest = max(floats, key=torch.Tensor.numel)
    rows = largest.reshape(-1, largest.shape[-1])[:256].to(torch.float64)
    size, spread = rows.square().mean(-1).sqrt(), rows.std(-1, correction=0)
    shares = (size / spread)[torch.isfinite(size) & (spread > 0)]
    return min(1e4, max(1.0, float(shares.median()))) if shares.numel() else 1.0


def _size(inputs: Sequence[torch.Tensor]) -> float:
    """The largest finite value of the largest input; what masks hold counts as ten thousand."""
    floats = [t for t in inputs if t.is_floating_point() and t.numel() > 0]
    if not floats:
        return 0.0
    return min(_LARGEST, largest_size(max(floats, key=torch.Tensor.numel)))


def build_cases(
    target: Target,
    generator: torch.Generator,
    *,
    memory: int = MEMORY_LIMIT,
    make: _Make = make_case,
    keep: Callable[[Case], Any] = lambda case: case,
    captured: Sequence[Case] = (),
) -> list[Any]:
    """Captured, redrawn and hard input sets of a target, captured ones first.

    Hard sets that eager does not define (it raises, or overflows) are left out, and so are the
    less telling ones where all together would need more than ``memory`` bytes. ``make`` makes one
    case, and of those that count what ``keep`` gives for them is in the result. The generator is on
    the target's device. ``captured``: the cases of captured inputs, where they were made before;
    nothing in them is drawn, so they are the same.

    Raises:
        BadInput: the target has no captured inputs, or eager itself fails on them.
    """
    cases, first = (list(captured), captured[0]) if captured else _seen(target, make, keep)
    left = memory // max(first.bytes, 1) - len(cases)
    base = first.inputs
    names = _hard_names(target.graph, base, first)
    del first  # what ``keep`` did not keep of it is not to be in the way of the next ones
    if base and base[0].device != generator.device:  # the device was full
        generator = secret_generator(str(base[0].device))
    sides = Sides(target.graph, base)
    adder = _Adder(cases, make, keep, target, base, generator)
    both = left > _REDRAWN + _ALWAYS and not sides.names
    for i in range(_REDRAWN if both else 1):
        adder.add(f"redrawn {i}", redraw)
    for name in sides.names:
        if name in ALWAYS or len(cases) < left:
            adder.add_sides(sides, name)
    for index, name in enumerate(names):
        if index < _ALWAYS or len(cases) < left:
            adder.add(name, partial(hard_set, name))
        else:  # no room for all: one of those that are left, nobody knows which
            rest = names[index:]
            one = int(torch.randint(len(rest), (1,), generator=generator, device=generator.device))
            adder.add(rest[one], partial(hard_set, rest[one]))
            break
    return cases


def _seen(target: Target, make: _Make, keep: Callable[[Case], Any]) -> tuple[list[Any], Case]:
    """What is kept of the cases of captured inputs, and the first of them whole."""
    cases: list[Any] = []
    first = None
    for case in _captured(target, make):
        first = first or case
        cases.append(keep(case))
    if first is None:
        raise BadInput(f"target {target.name} has no captured inputs to judge with")
    return cases, first


def _captured(target: Target, make: _Make) -> Iterator[Case]:
    seen = target.captured.sets(_CAPTURED) if target.captured is not None else []
    try:
        for i, inputs in enumerate(seen):
            yield make(target.graph, f"{CAPTURED} {i}", inputs)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as problem:
        raise BadInput(f"target {target.name} fails on its own captured inputs: {problem}") from (
            problem
        )


def _hard_names(graph: fx.GraphModule, inputs: Sequence[torch.Tensor], seen: Case) -> list[str]:
    """The hard sets that say something of a target, most telling first.

    Rows of one sign are for targets that sum nothing: there an element comes from numbers of its
    own row's size alone, unless the function itself cancels there. Ties are for results that are
    no numbers but places or truths, and for functions that jump. Masks have a set of their own.
    """
    outputs = [expected.eager for expected in seen.expected]
    names = {describe(node).name for node in graph.graph.nodes}
    plain = sums_of(graph, inputs, outputs).most == 0
    left_out = {TIED, MASKED_ROWS}
    left_out |= set() if plain and not names & _CANCELLING else {SIDED}
    left_out |= set() if names & _LEAVES_OUT and not names & _PRODUCTS else {EMPTY_ROWS}
    placed = any(not t.is_floating_point() for t in outputs) and not names & _NO_ORDER
    first = [TIED] if placed or (plain and names & _STEPS) else []
    first += [MASKED_ROWS] if masks(inputs) else []
    return first + [name for name in HARD_SETS if name not in left_out]


class _Adder:
    """Makes cases of input sets and keeps those of which something can be asked.

    Sets are drawn from ``base`` on its device, or on the CPU where that has no room for it.
    """

    def __init__(
        self,
        cases: list[Any],
        make: _Make,
        keep: Callable[[Case], Any],
        target: Target,
        base: Sequence[torch.Tensor],
        generator: torch.Generator,
    ) -> None:
        self._cases, self._make, self._keep, self._target = cases, make, keep, target
        self._base, self._generator = list(base), generator

    def add(self, name: str, draw: _Draw) -> Case | None:
        """The case, if eager defines it."""
        inputs = self._drawn(draw)
        try:
            case = self._make(self._target.graph, name, inputs)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError):
            return None  # eager does not define these values: nothing can be asked there
        infinite = any(e.special is not None for e in case.expected)
        if infinite and name not in _MAY_BE_INFINITE and not name.startswith(_DEFINED):
            return None
        self._cases.append(self._keep(case))
        return case

    def _drawn(self, draw: _Draw) -> list[torch.Tensor]:
        try:
            return draw(self._base, self._generator)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
        return draw([moved(t, "cpu") for t in self._base], secret_generator())

    def add_sides(self, sides: Sides, name: str) -> None:
        """The set of all other inputs, and those of one each where that tells too little."""
        telling = self._telling(self.add(name, partial(sides.draw, name)))
        for alone in sides.alone(name, self._base if telling else None)[:_MOST_ALONE]:
            self.add(alone, partial(sides.draw, alone))

    @staticmethod
    def _telling(case: Case | None) -> bool:
        return case is not None and any(_tells(e) for e in case.expected)


def _tells(expected: Expected) -> bool:
    """Whether some of an output can be compared in numbers."""
    return expected.special is None or not bool(expected.special.all())


def weakness(cases: Sequence[Case]) -> str | None:
    """How a candidate that computes nothing would pass on every case; None if it would not."""
    first = cases[0]
    tricks = ["all zeros", "one constant"]
    tricks += [f"its input in{i}" for i in range(len(first.inputs))]
    for case in cases:
        tricks = [trick for trick in tricks if _passes(trick, case, first)]
        if not tricks:
            return None
    return tricks[0]


def _passes(trick: str, case: Case, first: Case) -> bool:
    try:
        return _would_pass(trick, case, first)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
    return _would_pass(trick, case.to("cpu"), first)


def _would_pass(trick: str, case: Case, first: Case) -> bool:
    for index, expected in enumerate(case.expected):
        fake = _fake(trick, case, first.expected[index], expected)
        if fake is None or check_output(expected, fake, "", "").wrong is not None:
            return False
    return True


def _fake(trick: str, case: Case, first: Expected, expected: Expected) -> torch.Tensor | None:
    like = expected.eager
    if trick == "all zeros":
        return torch.zeros_like(like)
    if trick == "one constant":
        value = first.eager.reshape(-1)[:1].to(like.device)
        return value.expand(like.numel()).reshape(like.shape) if value.numel() else None
    given = case.inputs[int(trick.removeprefix("its input in"))]
    same = given.dtype == like.dtype and given.numel() == like.numel()
    return given.reshape(like.shape) if same else None
