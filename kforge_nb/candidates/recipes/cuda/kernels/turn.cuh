// Channels-last data (N, H, W, C) to planes (N, C, H, W), tile by tile through shared memory, in
// accesses of 16 bytes where rows of both layouts start on them. Lines of a tile are an odd number
// of words apart, so that neither direction meets the same bank again and again.
template <class X, int W> struct alignas(sizeof(X) * W) Pack { X x[W]; };

template <class X, int IMAGES, int CHANNELS, int PIXELS>
KF_INLINE void turn(const X* x, X* y, X* tile) {
  constexpr int SIDE = 64, LINE = SIDE + 4 / sizeof(X), WIDE = (CHANNELS + SIDE - 1) / SIDE;
  constexpr int TALL = (PIXELS + SIDE - 1) / SIDE, MOST = 16 / sizeof(X);
  constexpr int W = CHANNELS % MOST == 0 && PIXELS % MOST == 0 ? MOST : 1, LANES = SIDE / W;
  const int task = blockIdx.x, c0 = task % WIDE * SIDE, p0 = task / WIDE % TALL * SIDE;
  const int64_t image = int64_t(task / (WIDE * TALL)) * PIXELS * CHANNELS;
#pragma unroll 2
  for (int k = threadIdx.x; k < SIDE * LANES; k += 256) {
    const int line = k / LANES, i = k % LANES * W, p = p0 + line, c = c0 + i;
    if (p < PIXELS && c < CHANNELS) {
      const auto q = *(const Pack<X, W>*)(x + image + int64_t(p) * CHANNELS + c);
#pragma unroll
      for (int j = 0; j < W; ++j) tile[line * LINE + i + j] = q.x[j];
    }
  }
  __syncthreads();
#pragma unroll 2
  for (int k = threadIdx.x; k < SIDE * LANES; k += 256) {
    const int line = k / LANES, i = k % LANES * W, c = c0 + line, p = p0 + i;
    if (p < PIXELS && c < CHANNELS) {
      Pack<X, W> q;
#pragma unroll
      for (int j = 0; j < W; ++j) q.x[j] = tile[(i + j) * LINE + line];
      *(Pack<X, W>*)(y + image + int64_t(c) * PIXELS + p) = q;
    }
  }
}
