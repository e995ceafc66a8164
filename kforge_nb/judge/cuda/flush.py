"""The judge's own kernels: what empties the second-level cache, and what stages secret inputs.

The flush reads three times what the cache holds, on both sides alike. Reading rather than writing,
so that nothing is left to be written back at the expense of the call that comes next.
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

typedef unsigned long long u64;
typedef unsigned u32;

__device__ __forceinline__ u64 seed_of(u64 secret, u64 tick, u64 call) {
  u64 z = secret + 0x9e3779b97f4a7c15ull * ((tick << 40) + call + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

__device__ __forceinline__ u32 draw(u64 seed, u32 i, u32 of) {
  u32 h = i * 0x9e3779b1u + (u32)seed;
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h ^= (u32)(seed >> 32);
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  h ^= h >> 16;
  return __umulhi(h, of);
}

#define FIRST (blockIdx.x * (u64)blockDim.x + threadIdx.x)
#define STEP ((u64)gridDim.x * blockDim.x)

extern "C" __global__ void tick(u64* clock) { ++*clock; }

extern "C" __global__ void stage(const unsigned char* from, unsigned char* to, const u64* clock,
                                 u64 secret, u64 call, u64 bytes, u32 unit) {
  const u64 seed = seed_of(secret, *clock, call);
  const u32 count = (u32)(bytes / unit);
  if (unit >= 16) {
    const u32 lanes = unit / 16;
    for (u64 v = FIRST; v < (u64)count * lanes; v += STEP) {
      const u64 source = draw(seed, (u32)(v / lanes), count);
      ((uint4*)to)[v] = ((const uint4*)from)[source * lanes + v % lanes];
    }
  } else {
    for (u64 v = FIRST; v < count; v += STEP) {
      const u64 source = draw(seed, (u32)v, count);
      for (u32 j = 0; j < unit; ++j) to[v * unit + j] = from[source * unit + j];
    }
  }
  for (u64 b = (u64)count * unit + FIRST; b < bytes; b += STEP) to[b] = from[b];
}

extern "C" __global__ void sample(const unsigned char* out, u64* notes, const u64* clock,
                                  u64 secret, u64 call, u64 items, u32 size, u32 count) {
  if (threadIdx.x >= count) return;
  const u64 at = draw(seed_of(~secret, *clock, call), threadIdx.x, (u32)items);
  u64 word = 0;
  for (u32 j = 0; j < size; ++j) word |= (u64)out[at * size + j] << (8 * j);
  notes[threadIdx.x] = word;
}
"""
"""``flush(const uint4* memory, unsigned* sink, unsigned long long vectors)``; 256 threads. The
other kernels stage secret inputs and note outputs (see staging.py, which computes the same)."""


def build_flush(cache: Path, arch: str | None = None) -> Path:
    """The cubin of ``flush`` for an architecture such as ``sm_90`` (that of the device); cached.

    Raises:
        MissingTool: NVRTC is missing, too old for the architecture, or cannot compile this.
    """
    built = build_cuda(FLUSH_SOURCE, ("flush", "tick", "stage", "sample"), cache=cache, arch=arch)
    if not isinstance(built, CudaBuilt):
        raise MissingTool(f"NVRTC could not compile the judge's own kernel: {built.distilled}")
    return built.cubin
