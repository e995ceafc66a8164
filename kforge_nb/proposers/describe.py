"""The facts of a request in words and tables, as prompts show them.

Everything here turns plain values into text: the graph with the shape of each value, the tensors
with their strides, the machine with its roofline, what the judge found. Nothing is left in that a
terminal or a parser could trip over, and nothing that the judge decides by.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.plan import DTYPE_BYTES
from kforge_nb.judge.evaluation import Evaluation, Verdict

if TYPE_CHECKING:
    from kforge_nb.proposers.protocol import Attempt, Request
    from kforge_nb.targets.target import Target, TensorSpec

__all__ = [
    "FEEDBACK",
    "attempts",
    "clean",
    "compiler_output",
    "figures",
    "flags",
    "graph_code",
    "headers",
    "machine",
    "mismatches",
    "places",
    "tensors",
]

FEEDBACK = "feedback"
"""What the names of input sets begin with that a proposer may see values of."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_FREED = re.compile(r";(?:\s+\w+ =)+ None\b")
_SHORT = {"float32": "f32", "float64": "f64", "bfloat16": "bf16", "float16": "f16"}
_MAX_NODES = 400
_MAX_PLACES = 4
_ISA = {
    "AVX512": "AVX-512 (F, BW, DQ, VL, CD) with FMA and F16C: 16 floats a vector, 32 registers",
    "AVX2": "AVX2 with FMA and F16C: 8 floats a vector, 16 registers",
    "DEFAULT": "no more than the base instruction set is known of it",
}
_CUDA_HEADERS = (
    "cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "mma.h", "math_constants.h", "cuda_pipeline.h",
    "cuda_pipeline_primitives.h", "vector_types.h", "vector_functions.h",
)  # fmt: skip


def headers(language: str) -> list[str]:
    """The headers that a candidate may include and that are there."""
    if language == "cuda":
        return list(_CUDA_HEADERS)
    from kforge_nb.judge.policy import ALLOWED_HEADERS

    arm = ("arm_neon.h", "arm_sve.h", "arm_bf16.h", "arm_fp16.h")
    return sorted(h for h in ALLOWED_HEADERS if h not in arm)


def flags(language: str) -> str:
    """What the compiler is called with."""
    if language == "cuda":
        from kforge_nb.compilers.nvrtc import OPTIONS

        return " ".join(option for option in OPTIONS if "ptxas" not in option)
    from kforge_nb.compilers.cpp import FLAGS

    return " ".join(FLAGS)


def clean(text: str, limit: int) -> str:
    """Without control characters and marks that turn the direction of text; cut in the middle."""
    plain = _CONTROL.sub("�", text.replace("\r\n", "\n").replace("\r", "\n"))
    if len(plain) <= limit:
        return plain
    half = limit // 2
    return f"{plain[:half]}\n… ({len(plain) - 2 * half} characters left out) …\n{plain[-half:]}"


def graph_code(target: Target) -> str:
    """The graph as Python, with the dtype and shape of each value where they can be worked out."""
    known = _values(target)
    lines = []
    for line in target.graph.code.strip().splitlines():
        code = _FREED.sub("", line.rstrip())
        if not code.strip():
            continue
        name = re.match(r"\s*(\w+) = ", code)
        note = known.get(name[1]) if name else None
        lines.append(f"{code}  # {note}" if note else code)
    return clean("\n".join(lines), 40_000)


def _values(target: Target) -> dict[str, str]:
    """Shape and dtype by node name, worked out without data; empty where an operator cannot."""
    import torch
    from torch import fx

    if len(target.graph.graph.nodes) > _MAX_NODES:
        return {}
    found: dict[str, str] = {}

    class Watch(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            if isinstance(value, torch.Tensor) and n.op != "placeholder":
                dtype = str(value.dtype).removeprefix("torch.")
                found[n.name] = f"{_SHORT.get(dtype, dtype)}{list(value.shape)}"
            return value

    given = [
        torch.empty_strided(s.shape, s.stride, dtype=getattr(torch, s.dtype), device="meta")
        for s in target.inputs
    ]
    try:
        with torch.no_grad():
            Watch(target.graph).run(*given)
    except (RuntimeError, NotImplementedError, ValueError, TypeError):
        return found  # an operator that does not know tensors without data: the rest goes unsaid
    return found


def places(target: Target) -> str:
    """Module paths of a few occurrences."""
    paths = list(dict.fromkeys(o.module_path for o in target.occurrences if o.module_path))
    more = len(paths) - _MAX_PLACES
    shown = [clean(path, 200) for path in paths[:_MAX_PLACES]]
    return "\n".join([*shown, *([f"and {more} more"] if more > 0 else [])])


def tensors(target: Target) -> list[dict[str, str]]:
    """One row for each input and output."""
    named = [
        *zip(target.input_names, target.inputs, strict=True),
        *zip(target.output_names, target.outputs, strict=True),
    ]
    return [
        {
            "name": name,
            "dtype": spec.dtype,
            "shape": str(list(spec.shape)),
            "stride": str(list(spec.stride)),
            "layout": _layout(spec),
        }
        for name, spec in named
    ]


def _layout(spec: TensorSpec) -> str:
    if not spec.shape:
        return "one element"
    size = math.prod(spec.shape) * DTYPE_BYTES.get(spec.dtype, 8)
    expected, dense = 1, True
    for length, stride in zip(reversed(spec.shape), reversed(spec.stride), strict=True):
        dense = dense and (length == 1 or stride == expected)
        expected *= length
    broadcast = any(s == 0 and n > 1 for n, s in zip(spec.shape, spec.stride, strict=True))
    how = "contiguous" if dense else "broadcast" if broadcast else "not contiguous"
    return f"{how}, {_size(size)}"


def _size(count: float) -> str:
    for unit in ("bytes", "KiB"):
        if count < 10_000:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} MiB"


def machine(request: Request) -> list[str]:
    """Device, threads, caches, bandwidth, roofline and what eager takes, each a line."""
    facts, lines = request.device, []
    name = clean(str(facts.get("name", "")), 120)
    if request.target.device.startswith("cuda"):
        lines.append(f"GPU: {name or 'unknown'}, architecture {facts.get('arch', 'unknown')}")
        if facts.get("multiprocessors"):
            lines.append(f"{facts['multiprocessors']} multiprocessors")
    else:
        lines.append(f"CPU: {name or 'unknown'}; `nthreads` will be {facts.get('threads', '?')}")
        isa = str(facts.get("isa", "DEFAULT"))
        lines.append(f"Instruction set: {_ISA.get(isa, clean(isa, 40))}")
    caches = facts.get("cache_kb") or {}
    if caches:
        shown = ", ".join(f"{clean(str(k), 8)} {_size(int(v) * 1024)}" for k, v in caches.items())
        lines.append(f"Caches: {shown}")
    if facts.get("bandwidth_gbs"):
        lines.append(f"A copy moves {float(facts['bandwidth_gbs']):.4g} GB/s (read plus written)")
    lines.append(f"At least {_moved(request.target) / 1e6:.4g} MB have to be moved")
    if request.roofline_us:
        lines.append(f"Roofline: a call takes at least about {request.roofline_us:.4g} µs here")
    if request.baseline_us:
        lines.append(f"Eager takes {request.baseline_us:.4g} µs")
    return lines


def _moved(target: Target) -> int:
    from kforge_nb.judge.physics import moved_bytes

    return moved_bytes(target)


def compiler_output(found: Evaluation, limit: int) -> str:
    """What the compiler said, where it is why the candidate failed."""
    if found.verdict is not Verdict.COMPILE_FAILED:
        return ""
    return clean(found.log, limit)


def mismatches(found: Evaluation, limit: int) -> str:
    """Wrong elements of feedback input sets: place, expected and got. Others are never shown."""
    rows = [m for m in found.mismatches if str(m.get("input_set", "")).startswith(FEEDBACK)]
    return "\n".join(
        clean(
            f"{m.get('output')}{m.get('index')}: got {m.get('got')}, eager {m.get('eager')}, "
            f"exact {m.get('float64')} ({m.get('input_set')})",
            300,
        )
        for m in rows[:limit]
    )


def figures(parent: Attempt, request: Request) -> list[str]:
    """Speed, bandwidth against the roofline, registers and spills, as lines."""
    found, lines = parent.evaluation, []
    timed = found.against("eager")
    if timed is not None:
        lines.append(
            f"{timed.ours_us:.4g} µs a call, eager {timed.against_us:.4g} µs: {timed.ratio:.3g} "
            f"times as fast (95% interval {timed.low:.3g} to {timed.high:.3g})"
        )
        if request.roofline_us:
            lines.append(f"The roofline is {request.roofline_us:.4g} µs")
    if found.bandwidth_gbs:
        share = f", {found.roofline_share:.0%} of a copy's" if found.roofline_share else ""
        lines.append(f"It moves {found.bandwidth_gbs:.4g} GB/s{share}")
    if found.repeatable is False:
        lines.append("A second call on the same inputs gave other bits")
    lines += _kernels(found.resources.get("kernels"))
    return lines


def _kernels(found: Any) -> list[str]:
    """Registers, spills, shared memory and occupancy of CUDA kernels."""
    if not isinstance(found, dict):
        return []
    known = ("registers", "spill_stores", "spill_loads", "stack", "shared", "occupancy")
    return [
        clean(f"{name}: " + ", ".join(f"{k} {data[k]}" for k in known if k in data), 200)
        for name, data in found.items()
        if isinstance(data, dict)
    ]


def attempts(siblings: Sequence[Attempt], limit: int) -> str:
    """One line for each earlier attempt, the fastest first, then failures."""
    ranked = sorted(siblings, key=lambda a: -(a.evaluation.speedup or 0.0))
    lines = [_attempt(a) for a in ranked[:limit]]
    if limit and len(ranked) > limit:
        lines.append(f"and {len(ranked) - limit} more")
    return "\n".join(lines)


def _attempt(attempt: Attempt) -> str:
    found = attempt.evaluation
    strategy = attempt.candidate.origin.get("strategy")
    move = f" [{strategy}]" if isinstance(strategy, str) else ""
    came = f"{found.speedup:.3g} times eager" if found.speedup else found.reason.split("\n", 1)[0]
    title = attempt.candidate.title or "no title"
    return clean(f"- {title}{move}: {found.verdict}, {came}", 400).replace("\n", " ")
