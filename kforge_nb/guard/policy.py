"""Shape policy and rests: the two questions that every compile of the guard asks, in one place."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal

from kforge_nb.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import fx

    from kforge_nb.guard.replay import Lane, Replay

__all__ = [
    "ALONE",
    "FIXED_SHAPES",
    "RECORDS",
    "RESTS",
    "TRACED",
    "Rest",
    "RestName",
    "dynamic_for",
    "graphs_possible",
    "rest_compiler",
]

RestName = Literal["eager", "inductor", "cudagraphs", "inductor-cudagraphs"]
RESTS: tuple[RestName, ...] = ("eager", "inductor", "cudagraphs", "inductor-cudagraphs")
RECORDS: dict[str, RestName] = {"cudagraphs": "eager", "inductor-cudagraphs": "inductor"}
"""What a rest with CUDA graphs records: calls of the graphs that another rest compiles."""
TRACED: dict[str, RestName] = {"inductor": "eager"}
"""What a rest may compile after the trace: graphs that another rest has traced."""
ALONE: dict[str, str] = {
    "eager": 'torch.compile(model, backend="eager")',
    "inductor": "torch.compile(model)",
    "cudagraphs": 'torch.compile(model, backend="cudagraphs")',
    "inductor-cudagraphs": 'torch.compile(model, mode="reduce-overhead")',
}
"""What to call to have a rest without any kernel, which needs nothing of kforge."""
FIXED_SHAPES = 3
"""So many shapes are compiled one by one. (Dynamo stops at 8, a workload keeps 4 signatures.)"""


def dynamic_for(signatures: Iterable[object]) -> bool | None:
    """The ``dynamic`` argument of ``torch.compile`` for one module.

    A module called with few shapes gets ``False``: every shape keeps its own graph, so A B A never
    turns A symbolic and loses its kernels. One that grows (decode) gets ``None``: its symbolic
    graph keeps the kernels of the regions whose own sizes stand still.

    Args:
        signatures: one hashable value for each known call, equal for calls of equal shapes. A
            module of which nothing is known starts with ``False``; its guarded call changes over
            when it sees more than ``FIXED_SHAPES`` (see ``entry``).
    """
    return False if len(set(signatures)) <= FIXED_SHAPES else None


class Rest:
    """Compiles what is left of a graph; called as a Dynamo backend is.

    ``replays`` are the graphs that run as CUDA graphs, in the order in which they were compiled.

    Raises:
        BadInput: an unknown rest, or CUDA graphs without a CUDA device.
    """

    def __init__(self, name: str) -> None:
        if name not in RESTS:
            raise BadInput(f"there is no rest {name!r}; choose one of {', '.join(RESTS)}")
        if "cudagraphs" in name and not graphs_possible():
            raise BadInput(f"rest={name!r} needs a CUDA device; on a CPU use 'eager' or 'inductor'")
        self.name = name
        self.replays: list[Replay] = []
        self._lane: Lane | None = None

    def __call__(self, gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        """The graph, compiled; raises whatever the compiler raises."""
        from kforge_nb.guard.short import shorten

        short = shorten(gm, as_python="inductor" not in self.name)
        run = _compiler(self.name)(short, example_inputs)
        return self.record(run, gm, example_inputs) if "cudagraphs" in self.name else run

    def record(
        self, run: Callable[..., Any], gm: fx.GraphModule, example_inputs: list[Any]
    ) -> Replay:
        """CUDA graphs over ``run``, which computes ``gm``; recorded when it is first called."""
        from kforge_nb.guard.replay import Lane, Replay

        self._lane = self._lane or Lane()
        self.replays.append(Replay(run, gm, example_inputs, self._lane))
        return self.replays[-1]

    def release(self) -> None:
        """Give back the memory of all recordings; the next calls record anew."""
        for replay in self.replays:
            replay.release()

    @property
    def unrecorded(self) -> list[str]:
        """Why graphs run without a recording, each reason once."""
        return list(dict.fromkeys(r.why_not for r in self.replays if r.why_not))


def graphs_possible() -> bool:
    """Whether this machine has a device that records CUDA graphs."""
    import torch

    return torch.cuda.is_available()


def rest_compiler(rest: str) -> Rest:
    """The compiler of what is left of a graph.

    Raises:
        BadInput: an unknown rest, or CUDA graphs without a CUDA device.
    """
    return Rest(rest)


def _compiler(rest: str) -> Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]:
    """What compiles below the recording."""
    from torch._dynamo import lookup_backend

    if rest == "inductor-cudagraphs":
        from torch._inductor.compile_fx import compile_fx

        patched: Any = functools.partial(compile_fx, config_patches={"triton.cudagraphs": False})
        return patched
    found: Any = lookup_backend("inductor" if rest == "inductor" else "eager")
    return found
