"""Is the model's output still as close to the truth as eager's? Whole graphs against float64.

Each graph of a call runs three times on the same inputs: in plain eager, with the rest and kernels
in question, and in float64 by an interpreter that upcasts lazily. For each input the two errors
give a ratio; over at least eight inputs the median ratio may be at most 1.05, and an error of 0
must stay 0. One input and a factor of two would let a scale error of 1% in every norm pass.

Where the output is small, a classifier's ten numbers, the two roundings differ by chance and a
single ratio is off by a tenth or more: a median of eight would turn away every third honest kernel.
So a median above the limit that may be chance asks for more inputs before it counts.

Where a GPU's memory does not suffice for float64, that run takes place on the CPU, and the note
says so; if time does not suffice for that either, the input counts as not compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from kforge_nb.guard.measure import free_memory
from kforge_nb.guard.redraw import fidelity_calls
from kforge_nb.guard.routing import RoutedFloat64
from kforge_nb.guard.shadow import relative_error
from kforge_nb.targets.dataflow import analyse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kforge_nb.guard.measure import Model, Timer
    from kforge_nb.guard.switch import Site
    from kforge_nb.workload.calls import ModuleCall

__all__ = ["LIMIT", "Fidelity", "check_fidelity"]

LIMIT = 1.05
MOST_INPUTS = 64
"""So many inputs are tried before a median that is not clearly above the limit counts as above."""


@dataclass(slots=True)
class Fidelity:
    """The verdict over all inputs.

    ``ratio`` is the median over inputs of (our error / eager's error), both against
    float64; None where nothing could be compared. ``inputs`` says where each came from.
    """

    ratio: float | None
    ratios: list[float]
    inputs: dict[str, int]
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether the kernels may stay."""
        return self.ratio is not None and self.ratio <= LIMIT and max(self.ratios) < math.inf

    @property
    def figure(self) -> str:
        """The verdict's number in words, such as ``1.210× eager's own error``."""
        if self.ratio is None:
            return "nothing could be compared"
        if max(self.ratios) == math.inf:
            return "an error where eager has none"
        return f"{self.ratio:.3f}× eager's own error"

    @property
    def note(self) -> str:
        """Inputs and remarks in words."""
        told = ", ".join(f"{count} {origin}" for origin, count in self.inputs.items() if count)
        return "; ".join([f"inputs: {told or 'none'}", *self.notes])

    def to_document(self) -> dict[str, Any]:
        """Plain JSON; an infinite ratio (an error where eager has none) is written as a string."""
        return {
            "ratio": _json(self.ratio),
            "ratios": [_json(r) for r in self.ratios],
            "inputs": dict(self.inputs),
            "limit": LIMIT,
            "note": self.note,
        }


def _json(value: float | None) -> float | str | None:
    return "inf" if value is not None and math.isinf(value) else value


def check_fidelity(
    model: Model,
    enabled: frozenset[str],
    timer: Timer,
    *,
    inputs: Sequence[Any] = (),
    seed: int = 0,
    least: int = 8,
    progress: Callable[[str], None] | None = None,
) -> Fidelity:
    """Compare the model with these kernels and without, both against float64.

    Args:
        model: the measured model; its backend's spy is used and put back.
        enabled: fingerprints of the kernels that run.
        timer: when it is over, the inputs done so far must do; the note says how many.
        inputs: the user's own inputs, see :func:`kforge_nb.guard.redraw.user_call`.
        seed: of the redraws.
        least: how many inputs each module gets at least; about ``MOST_INPUTS`` where chance may
            have put the median above the limit.
        progress: told in words what is being done.

    Raises:
        BadInput: an input of the user's is not understood.
        Stopped: Stop was pressed.
    """
    found = Fidelity(None, [], {"cell": 0, "user": 0, "redrawn": 0})
    calls = fidelity_calls(model.calls, inputs, seed, least)
    batch, tried, planned = 0, 0, len(calls)
    while calls:
        for origin, call in calls:
            timer.check()
            if timer.left <= 0 and found.ratios:
                found.notes.append(f"time was over after {tried} of {planned} inputs")
                return found
            tried += 1
            if progress is not None:
                progress(f"fidelity: input {tried} of {planned} ({origin})")
            ratio = _one_input(model, enabled, call, found.notes, timer)
            if ratio is not None:
                found.ratios.append(ratio)
                found.ratio = float(np.median(found.ratios))
                found.inputs[origin] += 1
        batch += 1
        more = _is_open(found) and len(found.ratios) < MOST_INPUTS
        drawn = fidelity_calls(model.calls, (), seed + batch) if more else []
        calls = [(origin, call) for origin, call in drawn if origin == "redrawn"]
        planned += len(calls)
    return found


def _is_open(found: Fidelity) -> bool:
    """Whether a median above the limit may be chance: the limit is within two standard errors."""
    ratios = np.array(found.ratios)
    if found.good or len(ratios) < 2 or not np.isfinite(ratios).all():
        return False
    error = 1.25 * float(np.std(ratios, ddof=1)) / math.sqrt(len(ratios))
    return float(np.median(ratios)) - 2 * error <= LIMIT


class _NoTime(Exception):
    """A float64 run on the CPU would take too long."""


def _one_input(
    model: Model, enabled: frozenset[str], call: ModuleCall, notes: list[str], timer: Timer
) -> float | None:
    """Ratio of the two errors of one call over all its graphs, None where nothing was compared."""
    backend = model.backend
    errors: list[tuple[float, float]] = []

    def spy(site: Site, args: tuple[Any, ...]) -> Any:
        return _compare_site(site, args, enabled, errors, notes, timer)

    backend.spy = spy
    try:
        call.run(model.runner(call))
    except _NoTime:
        return None
    finally:
        backend.spy = None
    if not errors:
        return None
    plain = math.sqrt(sum(e * e for e, _ in errors))
    ours = math.sqrt(sum(e * e for _, e in errors))
    if plain == 0:
        return 1.0 if ours == 0 else math.inf
    return ours / plain


def _compare_site(
    site: Site,
    args: tuple[Any, ...],
    enabled: frozenset[str],
    errors: list[tuple[float, float]],
    notes: list[str],
    timer: Timer,
) -> Any:
    """Run one graph three times, note both errors of each output, hand on the plain outputs."""
    kernels = site.present(enabled)
    if not kernels and site.owner.rest == "eager":
        return site.gm.forward(*args)
    written = _written(site)
    ours = _leaves(site.variant(kernels)(*_copied(args, written)))
    exact = _exact(site, args, notes, timer)
    result = site.gm.forward(*args)
    for mine, plain, truth in zip(ours, _leaves(result), exact, strict=True):
        if plain.is_floating_point():
            values = (value.to(truth.device) for value in (plain, mine))
            plain_error, our_error = (relative_error(value, truth) for value in values)
            errors.append((plain_error, our_error))
    return result


def _exact(site: Site, args: tuple[Any, ...], notes: list[str], timer: Timer) -> list[torch.Tensor]:
    """The graph's outputs in float64: where it runs, or on the CPU where memory is short."""
    try:
        return _in_float64(site, args, notes, timer.check, on_cpu=False)
    except torch.OutOfMemoryError:
        device = next((v.device for v in args if isinstance(v, torch.Tensor)), "the device")
        _note(notes, f"float64 did not fit into {device}'s memory, so it ran on the CPU")
    free_memory()

    def watch() -> None:
        timer.check()
        if timer.left <= 0:
            _note(notes, "float64 on the CPU did not end in time for some inputs")
            raise _NoTime

    return _in_float64(site, args, notes, watch, on_cpu=True)


def _in_float64(
    site: Site,
    args: tuple[Any, ...],
    notes: list[str],
    watch: Callable[[], None],
    *,
    on_cpu: bool,
) -> list[torch.Tensor]:
    written = _written(site)
    given = _copied(args, written)
    if on_cpu:
        given = tuple(v.cpu() if isinstance(v, torch.Tensor) else v for v in given)
    interpreter = RoutedFloat64(site.gm, _copied(args, written), on_cpu=on_cpu, watch=watch)
    with torch.no_grad():
        exact = _leaves(interpreter.run(*given))
    for text in interpreter.remarks():
        _note(notes, text)
    return exact


def _note(notes: list[str], text: str) -> None:
    if text not in notes:
        notes.append(text)


def _leaves(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _written(site: Site) -> set[int]:
    """Places of the inputs that the graph writes to."""
    if site.written is None:
        mutated = set(analyse(site.gm, site.example_inputs).mutated_placeholders())
        names = [n for n in site.gm.graph.nodes if n.op == "placeholder"]
        site.written = {i for i, node in enumerate(names) if node in mutated}
    return site.written


def _copied(args: tuple[Any, ...], written: set[int]) -> tuple[Any, ...]:
    return tuple(
        value.clone() if i in written and isinstance(value, torch.Tensor) else value
        for i, value in enumerate(args)
    )
