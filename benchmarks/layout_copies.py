"""How many layout copies Inductor puts around an opaque op between convolutions, by the op's tag.

``python -m benchmarks.layout_copies [--json FILE]``

A chain of convolution, batch norm and ReLU is compiled for the CPU, where Inductor lays activations
out channels-last as it does on a GPU. The norm with its ReLU is left to Inductor, or is one op that
asks for its inputs as the graph was traced (the launch op's tag), in the same order of strides, or
takes them as they come and answers in their layout. Passes over whole activations are counted in
the code that Inductor generates: no clock is read.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.report import Row, add_json_option, make_report, measure_row, write_report

__all__ = ["main"]

LAYERS = 4
SHAPE = (2, 64, 28, 28)
TAGS = {
    "exact strides": torch.Tag.needs_exact_strides,
    "stride order": torch.Tag.needs_fixed_stride_order,
    "flexible": torch.Tag.flexible_layout,
}


def _norm(x: torch.Tensor, *state: torch.Tensor) -> torch.Tensor:
    mean, variance, weight, bias = state
    return torch.relu(nn.functional.batch_norm(x, mean, variance, weight, bias))


def _as_traced(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return torch.empty(SHAPE, dtype=x.dtype, device=x.device)


def _as_it_comes(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def _ops(library: torch.library.Library) -> dict[str, Callable[..., torch.Tensor]]:
    """The norm as Inductor's own code, and as an op with each tag."""
    found: dict[str, Callable[..., torch.Tensor]] = {"none": _norm}
    for number, (name, tag) in enumerate(TAGS.items()):
        fake = _as_it_comes if name == "flexible" else _as_traced
        schema = f"op{number}(Tensor x, Tensor m, Tensor v, Tensor w, Tensor b) -> Tensor"
        library.define(schema, tags=(tag, torch.Tag.pt2_compliant_tag))

        def run(x: Any, *state: Any, _fake: Any = fake) -> Any:
            return _fake(x).copy_(_norm(x, *state))

        library.impl(f"op{number}", run, "CPU")
        torch.library.register_fake(f"layout_copies::op{number}", fake, lib=library)
        found[name] = getattr(torch.ops.layout_copies, f"op{number}")
    return found


class _Chain(nn.Module):
    def __init__(self, norm: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.norm = norm
        self.convs = nn.ModuleList(nn.Conv2d(64, 64, 3, padding=1) for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.BatchNorm2d(64) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            state = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
            x = self.norm(conv(x), *state)
        return x


def _passes(norm: Callable[..., torch.Tensor]) -> int:
    """Passes of Inductor's own over whole activations in the compiled chain."""
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = _Chain(norm).eval(), torch.randn(SHAPE)
    with torch.inference_mode():
        found, codes = run_and_get_code(torch.compile(model), x)
        torch.testing.assert_close(found, model(x), rtol=1e-3, atol=1e-3)
    return _counted(codes[0].partition("def call")[2])


def _counted(body: str) -> int:
    """Calls of generated kernels that touch an activation; names of buffers are passed on."""
    shape = re.escape(str(SHAPE))
    large: set[str] = set()
    count = 0
    for line in body.splitlines():
        made = re.match(rf"\s*(\w+) = empty_strided_cpu\({shape}", line)
        seen = re.match(rf"\s*assert_size_stride\((\w+), {shape}", line)
        moved = re.match(r"\s*(\w+) = (\w+)(; del \w+)?( |$)", line)
        large |= {found[1] for found in (made, seen) if found}
        if moved and moved[2] in large:
            large.add(moved[1])
        call = re.match(r"\s*cpp_fused\w*\(([^)]*)\)", line)
        count += bool(call and large.intersection(re.split(r",\s*", call[1])))
    return count


def main() -> int:
    """Compile the chain in each way and report the passes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_json_option(parser)
    options = parser.parse_args()
    library = torch.library.Library("layout_copies", "DEF")
    rows: list[Row] = [
        measure_row(f"norm as an op, {name}", _passes(norm), "passes", layers=LAYERS)
        for name, norm in _ops(library).items()
    ]
    write_report(make_report("layout_copies", rows), options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
