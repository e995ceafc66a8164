"""Run a CUDA candidate on the CPU: its source compiled as C++ against ``emulator.h``.

What the emulator cannot know is the GPU itself: speed, memory ordering between blocks, and the last
bits of the hardware's short exponential. What it does check: every index, barrier, reduction and
cast, wide accesses that are not aligned, and writes outside of an output.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.candidates.plan import resolve, validate
from kforge_nb.compilers import cpp
from kforge_nb.targets.target import Target, TensorSpec

__all__ = ["as_cpp", "run_emulated"]

PAD = 256
_ASSEMBLY = {
    r'asm\("cvt\.f32\.f16 %0, %1;" : "=f"\(y\) : "h"\(x\.bits\)\);': "y = from_f16(x.bits);",
    r'asm\("cvt\.rn\.bf16\.f32 %0, %1;" : "=h"\(p->bits\) : "f"\(x\)\);': "p->bits = to_bf16(x);",
    r'asm\("cvt\.rn\.f16\.f32 %0, %1;" : "=h"\(p->bits\) : "f"\(x\)\);': "p->bits = to_f16(x);",
    r'asm\("cvt\.rn\.bf16x2[^;]*;" : [^;]*;': "r = to_bf16(low) | uint32_t(to_bf16(high)) << 16;",
    r'asm\("cvt\.rn\.f16x2[^;]*;" : [^;]*;': "r = to_f16(low) | uint32_t(to_f16(high)) << 16;",
    r'asm\("ex2\.approx[^;]*;" : [^;]*;': "y = exp2f(x);",
    r'asm\("max\.NaN\.f32[^;]*;" : [^;]*;': "r = a != a || b != b ? NAN : a > b ? a : b;",
    r"extern __shared__ float4 room\[\];": "static float4 room[16384];",
    r'asm volatile\("prefetch[^;]*;" : : [^;]*;': "(void)*(const volatile char*)p;",
    r'asm volatile\("cp\.async\.cg[^;]*;" : : [^;]*;': "memcpy(to, from, 16); (void)place;",
    r'asm volatile\("cp\.async\.\w+[^;]*;" : : [^;]*;': "",
    r'asm volatile\("bar\.sync 1, %0;" : : "n"\(READY\) : "memory"\);': "sync_last(READY);",
    r"PATIENCE = \d+;": "PATIENCE = 2;",
    r"(?m)^typedef .* u?int\d+_t;$": "",
    r"(?m)^#define (INFINITY|NAN|INT64_C|INT64_MIN|INT64_MAX)\b.*$": "",
}
_ENTRY = re.compile(r'extern "C" __global__ void __launch_bounds__\([^)]*\) (\w+)\(([^)]*)\)')


def as_cpp(source: str) -> str:
    """The candidate's source as C++ with one entry ``emulate(kernel, blocks, threads, args)``."""
    for pattern, replacement in _ASSEMBLY.items():
        source = re.sub(pattern, replacement, source)
    assert "asm(" not in source, "the emulator does not know all of the assembly"
    cases = []
    for number, found in enumerate(_ENTRY.finditer(source)):
        name, parameters = found[1], found[2].split(", ")
        given = ", ".join(
            f"({p.split('__restrict__')[0].strip()})given[{i}]"
            if "__restrict__" in p
            else f"*(const int*)given[{i}]"
            for i, p in enumerate(parameters)
        )
        cases.append(f"    case {number}: entry_point = [] {{ {name}({given}); }}; break;")
    body = "\n".join(cases)
    driver = f"""
static void* const* given;
extern "C" void emulate(int kernel, int blocks, int threads, void* const* args) {{
  given = args;
  switch (kernel) {{
{body}
  }}
  gridDim.x = blocks, blockDim.x = threads;
  for (int b = 0; b < blocks; ++b) {{
    blockIdx.x = b;
    run_block(threads);
  }}
}}
"""
    header = Path(__file__).with_name("emulator.h").read_text()
    return header + source + driver


class _Guarded:
    """A poisoned tensor of a spec between two guard zones."""

    def __init__(self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> None:
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        size = extent * dtype.itemsize
        raw = torch.full((size + 2 * PAD + 64,), 0xFF, dtype=torch.uint8)
        shift = -raw.data_ptr() % 64 + PAD
        self.before, self.after = raw[:shift], raw[shift + size :]
        self.tensor = raw[shift : shift + size].view(dtype).as_strided(tuple(shape), tuple(stride))

    def intact(self) -> bool:
        return bool((self.before == 0xFF).all()) and bool((self.after == 0xFF).all())


def run_emulated(
    candidate: Candidate, target: Target, inputs: Sequence[torch.Tensor], cache: Path
) -> list[torch.Tensor]:
    """Outputs of all of the plan's kernels, on poisoned outputs and scratch between guards."""
    validate(candidate.plan, "cuda", target.inputs, target.outputs)
    plan = resolve(candidate.plan, target.inputs, target.outputs)
    built = cpp.build(as_cpp(candidate.source), "emulate", cache=cache)
    assert isinstance(built, cpp.Built), f"{built.distilled}\n{candidate.source}"
    outputs = [_buffer(spec) for spec in target.outputs]
    scratch = {}
    for name, buffer in plan.scratch.items():
        strides = torch.empty(buffer.shape, device="meta").stride()
        scratch[name] = _Guarded(buffer.shape, strides, getattr(torch, buffer.dtype))
        if buffer.init == "zero":
            scratch[name].tensor.zero_()
    emulate = ctypes.CDLL(str(built.library)).emulate
    emulate.restype = None
    found = [match[1] for match in _ENTRY.finditer(candidate.source)]
    aligned = [_aligned(tensor) for tensor in inputs]
    for call in plan.calls:
        places = {"input": aligned, "output": [b.tensor for b in outputs]}
        numbers = [ctypes.c_int32(int(arg[1])) for arg in call.args if arg[0] == "i32"]
        left = iter(numbers)
        pointers = [
            ctypes.addressof(next(left))
            if arg[0] == "i32"
            else scratch[arg[1]].tensor.data_ptr()
            if arg[0] == "scratch"
            else places[arg[0]][arg[1]].data_ptr()
            for arg in call.args
        ]
        args = (ctypes.c_void_p * len(pointers))(*pointers)
        emulate(found.index(call.name), call.grid[0], call.block[0], args)
    for buffer in [*outputs, *scratch.values()]:
        assert buffer.intact(), "a kernel wrote outside of its output or scratch"
    return [buffer.tensor for buffer in outputs]


def _buffer(spec: TensorSpec) -> _Guarded:
    return _Guarded(spec.shape, spec.stride, getattr(torch, spec.dtype))


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides that starts on 64 bytes, as the launch op guarantees."""
    copy = _Guarded(tensor.shape, tensor.stride(), tensor.dtype)
    copy.tensor.copy_(tensor)
    return copy.tensor
