// Runs one block after the other of a CUDA kernel on the CPU, its threads as coroutines, so that what
// a kernel computes can be tested without a GPU. Barriers and shuffles hand the processor on.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

struct Place { int x = 0, y = 0, z = 0; };
static Place blockIdx, gridDim, blockDim;
struct Fiber {
  ucontext_t context;
  Place place;
  bool done = false;
  std::vector<char> stack;
};
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static int current = 0;
static float exchanged[1024];
static void (*entry_point)();
#define threadIdx (fibers[current].place)

static void hand_on() { swapcontext(&fibers[current].context, &scheduler); }

struct Barrier {
  int arrived = 0, generation = 0;
  void wait(int first, int last) {
    const int mine = generation;
    ++arrived;
    for (;;) {
      int living = 0;
      for (int t = first; t < last; ++t) living += !fibers[t].done;
      if (generation != mine) return;
      if (arrived >= living) {
        arrived = 0, ++generation;
        return;
      }
      hand_on();
    }
  }
};
static Barrier block_barrier, named_barrier, warp_barriers[32];
static void __syncthreads() { block_barrier.wait(0, int(fibers.size())); }
static void sync_last(int count) {  // a barrier of the last threads of the block
  named_barrier.wait(int(fibers.size()) - count, int(fibers.size()));
}
static void sync_warp() {
  const int warp = current / 32, last = std::min(int(fibers.size()), warp * 32 + 32);
  warp_barriers[warp].wait(warp * 32, last);
}
static float __shfl_xor_sync(unsigned, float x, int o) {
  exchanged[current] = x;
  sync_warp();
  const float y = exchanged[current ^ o];
  sync_warp();
  return y;
}
static float __shfl_sync(unsigned, float x, int lane) {
  exchanged[current] = x;
  sync_warp();
  const float y = exchanged[current / 32 * 32 + lane % 32];
  sync_warp();
  return y;
}
static void __nanosleep(unsigned) { hand_on(); }
static void __threadfence() {}
static int atomicAdd(int* p, int x) { return (*p += x) - x; }
static int atomicCAS(int* p, int old, int x) {
  const int was = *p;
  if (was == old) *p = x;
  return was;
}

struct uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
static uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
static uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
// A wide access that is not aligned to its width is a fault on a GPU.
template <class T> static void check_aligned(const T* p) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T)) abort();
}
template <class T> static T __ldg(const T* p) { check_aligned(p); return *p; }
template <class T> static T __ldcg(const T* p) { return *p; }
template <class T> static void __stcs(T* p, T x) { check_aligned(p); *p = x; }
static uint64_t __cvta_generic_to_shared(const void* p) { return reinterpret_cast<uintptr_t>(p); }
static float __uint_as_float(uint32_t x) { float y; memcpy(&y, &x, 4); return y; }
static uint32_t __float_as_uint(float x) { uint32_t y; memcpy(&y, &x, 4); return y; }
static float __int_as_float(int x) { return __uint_as_float(uint32_t(x)); }
static double __longlong_as_double(long long x) { double y; memcpy(&y, &x, 8); return y; }
static float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static float __fdividef(float x, float y) { return x / y; }
template <class T> static T min(T a, T b) { return a < b ? a : b; }
template <class T> static T max(T a, T b) { return a > b ? a : b; }

static uint16_t to_bf16(float x) {
  if (x != x) return 0x7fff;
  const uint32_t b = __float_as_uint(x);
  return uint16_t((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}
static uint16_t to_f16(float x) { _Float16 h = _Float16(x); uint16_t b; memcpy(&b, &h, 2); return b; }
static float from_f16(uint16_t b) { _Float16 h; memcpy(&h, &b, 2); return float(h); }

static void begin_fiber() {
  entry_point();
  fibers[current].done = true;
  swapcontext(&fibers[current].context, &scheduler);
}
static void run_block(int threads) {
  fibers.assign(size_t(threads), Fiber());
  block_barrier = named_barrier = Barrier();
  for (auto& barrier : warp_barriers) barrier = Barrier();
  for (int t = 0; t < threads; ++t) {
    Fiber& f = fibers[t];
    f.place.x = t;
    f.stack.resize(64 << 10);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = f.stack.size();
    f.context.uc_link = &scheduler;
    makecontext(&f.context, begin_fiber, 0);
  }
  for (int left = threads; left > 0;) {
    left = 0;
    for (current = 0; current < threads; ++current) {
      if (fibers[current].done) continue;
      swapcontext(&scheduler, &fibers[current].context);
      left += !fibers[current].done;
    }
  }
}
