// Channels-last data (N, H, W, C) to planes (N, C, H, W), tile by tile through shared memory.
template <class X, int IMAGES, int CHANNELS, int PIXELS>
KF_INLINE void turn(const X* x, X* y, X* tile) {
  constexpr int SIDE = 64, LINE = SIDE + 4 / sizeof(X), WIDE = (CHANNELS + SIDE - 1) / SIDE;
  constexpr int TALL = (PIXELS + SIDE - 1) / SIDE;
  const int task = blockIdx.x, c0 = task % WIDE * SIDE, p0 = task / WIDE % TALL * SIDE;
  const int64_t image = int64_t(task / (WIDE * TALL)) * PIXELS * CHANNELS;
#pragma unroll 4
  for (int k = threadIdx.x; k < SIDE * SIDE; k += 256) {
    const int p = p0 + k / SIDE, c = c0 + k % SIDE;
    if (p < PIXELS && c < CHANNELS)
      tile[k / SIDE * LINE + k % SIDE] = x[image + int64_t(p) * CHANNELS + c];
  }
  __syncthreads();
#pragma unroll 4
  for (int k = threadIdx.x; k < SIDE * SIDE; k += 256) {
    const int p = p0 + k % SIDE, c = c0 + k / SIDE;
    if (p < PIXELS && c < CHANNELS)
      y[image + int64_t(c) * PIXELS + p] = tile[k % SIDE * LINE + k / SIDE];
  }
}
