"""Float64 runs of models with discrete choices: eager chooses, so that only rounding counts.

A mixture-of-experts model picks experts by top-k. Where two scores are nearly equal, float64 may
pick another expert, and then the two outputs differ for a reason that is no error. Here the indices
of every top-k are recorded from the graph in its own precision and used again in float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from kforge_nb.targets.float64 import Float64Interpreter
from kforge_nb.targets.operators import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["RoutedFloat64"]

_CHOICES = ("topk",)


class RoutedFloat64(Float64Interpreter):
    """A float64 interpreter whose top-k choices are those of the graph in its own precision.

    With ``on_cpu`` it runs there, whatever devices the graph names; ``watch`` is called before each
    node and may raise.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        inputs: Sequence[Any],
        *,
        on_cpu: bool = False,
        watch: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(gm, on_cpu=on_cpu)
        self._watch = watch
        self.choices: dict[str, torch.Tensor] = {}
        self.agreements: list[float] = []
        if any(_chooses(node) for node in gm.graph.nodes):
            recorder = _Recorder(gm)
            with torch.no_grad():
                recorder.run(*inputs)
            self.choices = {
                name: choice.cpu() if on_cpu else choice
                for name, choice in recorder.choices.items()
            }

    def run_node(self, n: fx.Node) -> Any:
        """One node; a choice takes eager's indices and this run's values at them."""
        if self._watch is not None:
            self._watch()
        result = super().run_node(n)
        if n.name not in self.choices:
            return result
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        eager = self.choices[n.name]
        dim = int(kwargs.get("dim", args[2] if len(args) > 2 else -1))
        own = result[1]
        same = (own.sort(dim).values == eager.sort(dim).values).double().mean()
        self.agreements.append(float(same))
        source = args[0] if args else kwargs["input"]
        return (source.double().gather(dim, eager), eager)

    def remarks(self) -> list[str]:
        """Fallbacks used, and how often float64 would have chosen alike."""
        found = list(dict.fromkeys(self.notes))
        if self.agreements:
            worst = min(self.agreements)
            found.append(
                f"routing was pinned to eager's; float64 alone agrees on {worst:.1%} at least"
            )
        return found


class _Recorder(fx.Interpreter):
    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm, garbage_collect_values=True)
        self.choices: dict[str, torch.Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if _chooses(n):
            self.choices[n.name] = result[1]
        return result


def _chooses(node: fx.Node) -> bool:
    return node.op in ("call_function", "call_method") and describe(node).name in _CHOICES
