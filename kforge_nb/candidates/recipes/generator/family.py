"""The generator as a recipe family: the last one, that takes whatever no tuned family knows."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan
from kforge_nb.candidates.recipes.family import Match, Params, default_params, origin_of
from kforge_nb.candidates.recipes.generator import optimise
from kforge_nb.candidates.recipes.generator.ir import Unsupported
from kforge_nb.candidates.recipes.generator.lower import Choices, Lowered, lower
from kforge_nb.candidates.recipes.generator.nest import Nest, plan_nests
from kforge_nb.candidates.recipes.generator.source import ENTRY, write_source
from kforge_nb.candidates.recipes.generator.trace import aten_graph
from kforge_nb.candidates.recipes.generator.vector import Style

if TYPE_CHECKING:
    from torch import fx

    from kforge_nb.targets.target import Target

__all__ = ["GENERATOR", "Generator", "why_not"]

_SIZES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4}
_MOMENTS = {"native_layer_norm", "native_group_norm", "var", "var_mean"}
_SOFTMAX = {"_softmax", "_log_softmax"}
LONG_ROW = 32768
STREAM_BYTES = 32 << 20


class Generator:
    """Writes C++ for element-wise regions with reductions over rows."""

    name = "generated"

    def __init__(self) -> None:
        self._traced: OrderedDict[tuple[str, str], fx.Graph | str] = OrderedDict()

    def match(self, target: Target) -> Match | None:
        """A match whenever a kernel can be written."""
        return None if self.why_not(target) else Match(self.name, target)

    def why_not(self, target: Target) -> str | None:
        """None where a kernel can be written, else the reason in words."""
        try:
            match = Match(self.name, target)
            self._source(match, default_params(self, match))
        except Unsupported as reason:
            return str(reason)
        return None

    def parameters(self, match: Match) -> dict[str, list[Any]]:
        """Values to try, best guess first.

        ``stream``: stores past the caches; ``width``: bits of a vector; ``block``: elements of a
        task; ``lanes``: independent partial sums; ``cache``: keep a row between passes;
        ``moments``: ``chunked`` reads a row once for mean and deviation; ``softmax``: ``online``
        once for maximum and sum; ``rounding``: ``casts`` rounds where the graph casts to a
        shorter type.
        """
        target = match.target
        lowered = self.lowered(target, Choices())
        nests = plan_nests(lowered.outputs, target.outputs)
        reducing = any(nest.reducing for nest in nests)
        written = sum(math.prod(s.shape) * _SIZES.get(s.dtype, 1) for s in target.outputs)
        large = written >= STREAM_BYTES
        found: dict[str, list[Any]] = {"stream": [large, not large], "width": [512, 256]}
        if reducing:
            found["lanes"] = [4, 2, 1]
        else:
            found["block"] = [16384, 4096, 65536]
        if any(optimise.cacheable(nest) for nest in nests):
            found["cache"] = [True, False]
        rows = [n for n in nests if n.reducing]
        long = any(_row_elements(nest) > LONG_ROW for nest in rows)
        if lowered.operators & _MOMENTS and reducing:
            found["moments"] = ["chunked", "two_pass"] if long else ["two_pass", "chunked"]
        if lowered.operators & _SOFTMAX and reducing:
            found["softmax"] = ["online", "two_pass"] if long else ["two_pass", "online"]
        if any(s.dtype in ("bfloat16", "float16") for s in [*target.inputs, *target.outputs]):
            found["rounding"] = ["free", "casts"]
        return found

    def emit(self, match: Match, params: Params) -> Candidate:
        """Source and plan for one choice of parameters."""
        target = match.target
        names = [*target.input_names, *target.output_names]
        kernel = Kernel(ENTRY, (*names, "i32:nthreads"))
        shown = ", ".join(f"{name}={value}" for name, value in params.items())
        return Candidate(
            language="cpp",
            source=self._source(match, params),
            plan=LaunchPlan((kernel,)),
            title=f"generated ({shown})",
            origin=origin_of(match, params),
        )

    def _source(self, match: Match, params: Params) -> str:
        target = match.target
        if not target.device.startswith("cpu"):
            raise Unsupported(f"the C++ generator writes for the CPU, not for {target.device}")
        choices = Choices(
            moments=params.get("moments", "two_pass"),
            softmax=params.get("softmax", "two_pass"),
            rounding=params.get("rounding", "free"),
        )
        lowered = self.lowered(target, choices)
        stream = range(len(target.outputs)) if params.get("stream") else ()
        style = Style(
            stream=frozenset(stream),
            width=params.get("width", 0),
            block=params.get("block", 16384),
            lanes=params.get("lanes", 4),
        )
        return write_source(
            plan_nests(lowered.outputs, target.outputs),
            target.inputs,
            target.outputs,
            style,
            cache=params.get("cache", True),
            title=f"{target.name}, {target.granularity}",
        )

    def lowered(self, target: Target, choices: Choices) -> Lowered:
        """The target in the generator's language; raises Unsupported with the reason."""
        try:
            return lower(target, choices, self._graph(target))
        except RecursionError:
            raise Unsupported("its expressions are nested too deeply") from None

    def _graph(self, target: Target) -> fx.Graph:
        """The target's ATen graph; the last few are kept, as a search asks for the same again."""
        key = (target.fingerprint, target.device)
        if key not in self._traced:
            try:
                self._traced[key] = aten_graph(target)
            except Unsupported as reason:
                self._traced[key] = str(reason)
            while len(self._traced) > 32:
                self._traced.popitem(last=False)
        found = self._traced[key]
        if isinstance(found, str):
            raise Unsupported(found)
        return found


def _row_elements(nest: Nest) -> int:
    """Iterations of the longest loop over a row."""
    loops = [loop for v in nest.variants for sweep in v.passes for loop in sweep.loops]
    return max((math.prod(s.size for s in loop.symbols) for loop in loops), default=0)


GENERATOR = Generator()
"""The one instance that proposers use."""


def why_not(target: Target) -> str | None:
    """Why the generator cannot write a kernel for the target, or None if it can."""
    return GENERATOR.why_not(target)
