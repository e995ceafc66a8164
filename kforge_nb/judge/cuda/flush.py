"""The kernel that empties the second-level cache before a timed call, on both sides alike.

It reads three times what the cache holds. Reading rather than writing, so that nothing is left to
be written back at the expense of the call that comes next.
"""

from __future__ import annotations

from pathlib import Path

from kforge_nb.compilers.nvrtc import CudaBuilt, build_cuda
from kforge_nb.errors import MissingTool

__all__ = ["FLUSH_SOURCE", "build_flush"]

FLUSH_SOURCE = """
extern "C" __global__ void flush(const uint4* x, unsigned* sink, unsigned long long n) {
  unsigned s = 0;
  for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < n;
       i += (unsigned long long)gridDim.x * blockDim.x) {
    const uint4 q = x[i];
    s ^= q.x ^ q.y ^ q.z ^ q.w;
  }
  if (s == 0x9e3779b9u) *sink = s;
}
"""
"""``flush(const uint4* memory, unsigned* sink, unsigned long long vectors)``; 256 threads."""


def build_flush(cache: Path, arch: str | None = None) -> Path:
    """The cubin of ``flush`` for an architecture such as ``sm_90`` (that of the device); cached.

    Raises:
        MissingTool: NVRTC is missing, too old for the architecture, or cannot compile this.
    """
    built = build_cuda(FLUSH_SOURCE, ("flush",), cache=cache, arch=arch)
    if not isinstance(built, CudaBuilt):
        raise MissingTool(f"NVRTC could not compile the judge's own kernel: {built.distilled}")
    return built.cubin
