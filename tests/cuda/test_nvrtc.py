"""NVRTC as a guest: builds, failures as values, limits, the cache; no GPU needed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kforge_nb.compilers import nvrtc
from kforge_nb.compilers.nvrtc import CompileFailed, CudaBuilt, build_cuda
from kforge_nb.errors import BadInput, ContractBreach, MissingTool

GOOD = """
extern "C" __global__ void twice(const float* x, float* y, int n) {
  __shared__ float room[64];
  const int i = threadIdx.x;
  room[i] = x[i];
  __syncthreads();
  if (i < n) y[i] = 2.0f * room[63 - i];
}
"""


def test_a_build_tells_its_resources(nvrtc_cache: Path) -> None:
    """Registers and shared memory of a kernel come from the assembler's report."""
    built = build_cuda(GOOD, ("twice",), cache=nvrtc_cache, arch="sm_90")
    assert isinstance(built, CudaBuilt), built
    assert built.cubin.read_bytes()[:4] == b"\x7fELF"
    found = built.resources["twice"]
    assert found.registers > 0
    assert found.shared == 256
    assert found.spill_stores == 0


def test_the_second_build_comes_from_the_cache(nvrtc_cache: Path) -> None:
    """Equal sources are compiled once; another architecture is another build."""
    source = GOOD.replace("2.0f", "3.0f")
    first = build_cuda(source, ("twice",), cache=nvrtc_cache, arch="sm_80")
    again = build_cuda(source, ("twice",), cache=nvrtc_cache, arch="sm_80")
    other = build_cuda(source, ("twice",), cache=nvrtc_cache, arch="sm_120")
    assert isinstance(first, CudaBuilt)
    assert isinstance(again, CudaBuilt)
    assert isinstance(other, CudaBuilt)
    assert (again.cached, again.seconds, again.cubin) == (True, 0.0, first.cubin)
    assert again.resources == first.resources
    assert other.cubin != first.cubin


def test_a_damaged_cubin_is_built_again(nvrtc_cache: Path) -> None:
    """A cubin that is not what was written is never handed out."""
    source = GOOD.replace("2.0f", "5.0f")
    first = build_cuda(source, ("twice",), cache=nvrtc_cache, arch="sm_90")
    assert isinstance(first, CudaBuilt)
    first.cubin.write_bytes(b"nonsense")
    again = build_cuda(source, ("twice",), cache=nvrtc_cache, arch="sm_90")
    assert isinstance(again, CudaBuilt)
    assert not again.cached
    assert again.cubin.read_bytes()[:4] == b"\x7fELF"


def test_errors_name_the_line(nvrtc_cache: Path) -> None:
    """A failure is a value, and its short text has the line and its number."""
    failed = build_cuda(
        GOOD.replace("room[63 - i]", "rom[63 - i]"), ("twice",), cache=nvrtc_cache, arch="sm_90"
    )
    assert isinstance(failed, CompileFailed)
    assert 'line 7: error: identifier "rom" is undefined' in failed.distilled
    assert "if (i < n) y[i]" in failed.distilled


def test_a_missing_entry_is_named(nvrtc_cache: Path) -> None:
    """A plan's kernel that the source does not define with C linkage fails the build."""
    failed = build_cuda(GOOD, ("twice", "thrice"), cache=nvrtc_cache, arch="sm_90")
    assert isinstance(failed, CompileFailed)
    assert "thrice" in failed.distilled
    assert "twice" not in failed.distilled


def test_a_compile_without_end_is_stopped(nvrtc_cache: Path) -> None:
    """A source that keeps the compiler busy costs the time limit, no more."""
    endless = """
extern "C" __global__ void k(float* x) {
  float s = x[0];
#pragma unroll
  for (int i = 0; i < 3000; ++i)
#pragma unroll
    for (int j = 0; j < 3000; ++j) s = s * x[i] + x[j];
  x[0] = s;
}
"""
    start = time.monotonic()
    failed = build_cuda(endless, ("k",), cache=nvrtc_cache, arch="sm_90", time_limit=2)
    assert isinstance(failed, CompileFailed)
    assert failed.timed_out
    assert time.monotonic() - start < 20


def test_headers_of_the_short_types_are_found(nvrtc_cache: Path) -> None:
    """Candidates may include cuda_bf16.h and cuda_fp16.h where the runtime's wheel is."""
    if not nvrtc.find_nvrtc().include:
        pytest.skip("the CUDA headers are not installed (nvidia-cuda-runtime)")
    source = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
extern "C" __global__ void k(__nv_bfloat16* x, __half* y) { *y = __float2half(float(*x)); }
"""
    built = build_cuda(source, ("k",), cache=nvrtc_cache, arch="sm_90")
    assert isinstance(built, CudaBuilt), built


def test_an_unknown_architecture_is_the_tools_fault(nvrtc_cache: Path) -> None:
    """A GPU too new for this NVRTC is a missing tool, and the message says what to install."""
    with pytest.raises(MissingTool, match="pip install -U nvidia-cuda-nvrtc"):
        build_cuda(GOOD, ("twice",), cache=nvrtc_cache, arch="sm_199")


def test_bad_requests_are_refused(nvrtc_cache: Path) -> None:
    """Entries that are no identifiers, and architectures that are none, never reach a compiler."""
    with pytest.raises(ContractBreach):
        build_cuda(GOOD, ("twice()",), cache=nvrtc_cache, arch="sm_90")
    with pytest.raises(BadInput):
        build_cuda(GOOD, ("twice",), cache=nvrtc_cache, arch="sm_90 --dlink")


def test_without_nvrtc_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """No library anywhere is a MissingTool with the install command."""
    monkeypatch.setattr(nvrtc, "wheel_folders", list)
    monkeypatch.setattr(nvrtc.Path, "glob", lambda *_: iter(()))
    nvrtc._find.cache_clear()
    with pytest.raises(MissingTool, match="pip install") as caught:
        nvrtc.find_nvrtc()
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    nvrtc._find.cache_clear()


def test_spills_of_each_kernel_are_told(nvrtc_cache: Path) -> None:
    """Where the registers do not suffice, the report says by how many bytes, kernel by kernel."""
    crowded = """
extern "C" __global__ void __launch_bounds__(1024, 2) crowded(const float* x, float* y) {
  float kept[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) kept[i] = x[i * 1024 + threadIdx.x];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 96; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) sum = fmaf(sum, kept[i], kept[(i * 37 + j) % 96]);
  y[threadIdx.x] = sum;
}
"""
    built = build_cuda(GOOD + crowded, ("twice", "crowded"), cache=nvrtc_cache, arch="sm_90")
    assert isinstance(built, CudaBuilt), built
    tight, free = built.resources["crowded"], built.resources["twice"]
    assert tight.registers <= 32
    assert tight.spill_stores > 0
    assert tight.spill_loads > 0
    assert tight.stack >= tight.spill_stores // 2
    assert (free.spill_stores, free.spill_loads, free.stack) == (0, 0, 0)
