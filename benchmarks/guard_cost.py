"""What Dynamo's guards cost a call of a model with many weights, and what leaving them out would.

``python -m benchmarks.guard_cost [--layers N] [--json [FILE]]``: a toy of N layers with 16 weights
and biases each, one thread of the CPU, so small that a call is host time. Sides: the model itself,
its graph called directly, compiled with all guards, without those on weights, without any, and with
Dynamo's recursive dict tags on; and what a check of our own in Python would take that sees the same
of each weight.
"""

from __future__ import annotations

import argparse
import operator
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from benchmarks.report import add_json_option, make_report, measure_row, write_report
from kforge_nb.guard.entry import fresh_entry

__all__ = ["main"]

ROUNDS, CALLS = 40, 10
Call = Callable[[], object]


class Layer(nn.Module):
    """Eight small modules with a weight and a bias each."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(size), nn.LayerNorm(size)
        self.q, self.k, self.v, self.o = (nn.Linear(size, size) for _ in range(4))
        self.up, self.down = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Same shape out as in."""
        h = self.first(x)
        x = x + self.o(self.q(h) * self.k(h) + self.v(h))
        return x + self.down(torch.relu(self.up(self.second(x))))


def _backend(gm: Any, example_inputs: Sequence[Any]) -> Any:
    """The graph as it is."""
    del example_inputs
    return gm.forward


def _compiled(model: nn.Module, x: torch.Tensor, **more: Any) -> Call:
    """The model as ``apply()`` compiles it with an eager rest, with other guards."""
    entry = fresh_entry("guard_cost")
    compiled = torch.compile(entry, backend=more.pop("backend", _backend), dynamic=False, **more)
    torch.testing.assert_close(compiled(model, (x,), {}), model(x))
    compiled(model, (x,), {})  # tags are taken on the first call that only checks
    return lambda: compiled(model, (x,), {})


def _without_weights(guards: Sequence[Any]) -> list[bool]:
    return [not isinstance(guard.value, nn.Parameter) for guard in guards]


def _without_any(guards: Sequence[Any]) -> list[bool]:
    return [False] * len(guards)


def _sides(model: nn.Module, x: torch.Tensor) -> dict[str, Call]:
    graphs: list[tuple[Any, list[Any]]] = []

    def keep(gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        graphs.append((gm, list(example_inputs)))
        return _backend(gm, example_inputs)

    _compiled(model, x, backend=keep)
    forward, inputs = graphs[0][0].forward, graphs[0][1]
    weights = tuple(model.parameters())
    known = [(w.dtype, w.device, w.requires_grad, w.shape) for w in weights]
    sides: dict[str, Call] = {
        "the model itself": lambda: model(x),
        "its graph, called directly": lambda: forward(*inputs),
        "compiled": _compiled(model, x),
        "compiled, no guards on weights": _compiled(
            model, x, options={"guard_filter_fn": _without_weights}
        ),
        "compiled, no guards at all": _compiled(
            model, x, options={"guard_filter_fn": _without_any}
        ),
        "a check: the same objects": lambda: all(map(operator.is_, weights, weights)),
        "a check: dtype, device, gradient, sizes": lambda: (
            [(w.dtype, w.device, w.requires_grad, w.shape) for w in weights] == known
        ),
    }
    with _tags():
        sides["compiled, dict tags"] = _compiled(model, x)
    return sides


def _tags() -> Any:
    """Torch's own short cut for guards on modules, off by default from 2.12 on."""
    config: Any = torch._dynamo.config
    if not hasattr(config, "use_recursive_dict_tags_for_guards"):
        return nullcontext()
    return config.patch(use_recursive_dict_tags_for_guards=True)


def main() -> int:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    add_json_option(parser)
    parser.add_argument("--layers", type=int, default=24)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*(Layer() for _ in range(options.layers))).eval()
    with torch.no_grad():
        sides = _sides(model, torch.randn(4, 16))
        samples: dict[str, list[float]] = {name: [] for name in sides}
        order, rng = list(sides), random.Random(0)
        for _ in range(ROUNDS):
            rng.shuffle(order)
            for name in order:
                start = time.perf_counter()
                for _ in range(CALLS):
                    sides[name]()
                samples[name].append((time.perf_counter() - start) / CALLS * 1e6)
    rows = []
    for name, found in samples.items():
        low, _, high = statistics.quantiles(found, n=4)
        rows.append(
            measure_row(name, statistics.median(found), "us", low=low, high=high, n=len(found))
        )
    count = sum(1 for _ in model.parameters())
    write_report(make_report("guard_cost", rows, notes=[f"{count} weights"]), options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
