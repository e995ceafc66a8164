// Sums and maxima over the T neighbouring threads that share a row (T a power of two). Within a
// warp by shuffles, beyond it through shared memory, in two buffers in turn so that one barrier a
// reduction is enough. Every thread of the block must take part.
struct Sum {
  static KF_INLINE float of(float a, float b) { return a + b; }
};
struct Max {
  static KF_INLINE float of(float a, float b) { return fmaxf(a, b); }
};

struct Min {
  static KF_INLINE float of(float a, float b) { return fminf(a, b); }
};
struct Product {
  static KF_INLINE float of(float a, float b) { return a * b; }
};

template <class Op, int N> KF_INLINE float in_warp(float x) {
#pragma unroll
  for (int o = N / 2; o > 0; o /= 2) x = Op::of(x, __shfl_xor_sync(0xffffffffu, x, o));
  return x;
}

template <int T, int BLOCK> struct Team {
  static constexpr int WARPS = BLOCK / 32, OWN = T <= 32 ? 1 : T / 32;
  float* room;
  int turn = 0;

  static constexpr int FLOATS = T <= 32 ? 1 : 2 * WARPS;
  KF_INLINE Team(float* shared) : room(shared) {}
  template <class Op> KF_INLINE float all(float x) {
    if constexpr (T <= 32) {
      return in_warp<Op, T>(x);
    } else {
      x = in_warp<Op, 32>(x);
      float* const slot = room + turn * WARPS;
      turn ^= 1;
      const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
      if (lane == 0) slot[warp] = x;
      __syncthreads();
      const int first = warp / OWN * OWN;
      float y = slot[first];
      if constexpr (OWN >= 8) {
        y = slot[first + lane % OWN];
        return in_warp<Op, OWN>(y);
      }
#pragma unroll
      for (int k = 1; k < OWN; ++k) y = Op::of(y, slot[first + k]);
      return y;
    }
  }
};
