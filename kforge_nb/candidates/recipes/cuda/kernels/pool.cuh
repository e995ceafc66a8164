// Max and average pooling. PLANES: a thread makes OUT neighbouring results of a line, so that windows
// which overlap are read once. LAST: a thread makes V channels of one result. ROWSUM: T threads share
// a window that covers a whole plane.
KF_INLINE float better(float m, float x) { return (x > m || x != x) ? x : m; }

template <class F> KF_INLINE void window(int oh, int ow, F f) {
#pragma unroll
  for (int kh = 0; kh < KH; ++kh) {
    const int h = oh * SH - PH + kh;
#pragma unroll
    for (int kw = 0; kw < KW; ++kw) {
      const int w = ow * SW - PW + kw;
      if ((PH == 0 || (h >= 0 && h < H)) && (PW == 0 || (w >= 0 && w < Wd))) f(h, w);
    }
  }
}
KF_INLINE float share_of(int oh, int ow) {
  if (PADDED) {
    const int h0 = oh * SH - PH, w0 = ow * SW - PW;
    return 1.0f / float((min(h0 + KH, H + PH) - h0) * (min(w0 + KW, Wd + PW) - w0));
  }
  const int h0 = max(oh * SH - PH, 0), w0 = max(ow * SW - PW, 0);
  return 1.0f / float((min(oh * SH - PH + KH, H) - h0) * (min(ow * SW - PW + KW, Wd) - w0));
}

template <bool S> KF_INLINE void pool_last(const X* x, X* out) {
  constexpr int CV = C / V;
  constexpr Index TOTAL = Index(N) * OH * OW * CV;
  for (Index t = Index(blockIdx.x) * BLOCK + threadIdx.x; t < TOTAL; t += Index(gridDim.x) * BLOCK) {
    const Index pixel = t / CV;
    const int i = int(t - pixel * CV) * V;
    const Index line = pixel / OW;
    const int ow = int(pixel - line * OW), n = int(line / OH), oh = int(line - Index(n) * OH);
    vf m = set(MAX ? -INFINITY : 0.0f);
    window(oh, ow, [&](int h, int w) {
      const vf v = load(x + ((size_t(n) * H + h) * Wd + w) * C + i, All{});
#pragma unroll
      for (int k = 0; k < V; ++k) m.v[k] = MAX ? better(m.v[k], v.v[k]) : m.v[k] + v.v[k];
    });
    if (!MAX) m = m * set(share_of(oh, ow));
    write<S>(out + size_t(pixel) * C + i, m, All{});
  }
}

KF_INLINE void pool_planes(const X* x, X* out) {
  constexpr int LINE = (OW + OUT - 1) / OUT, SPAN = (OUT - 1) * SW + KW;
  constexpr Index TOTAL = Index(N) * C * OH * LINE;
  for (Index t = Index(blockIdx.x) * BLOCK + threadIdx.x; t < TOTAL; t += Index(gridDim.x) * BLOCK) {
    const Index line = t / LINE;
    const int ow = int(t - line * LINE) * OUT;
    const Index plane = line / OH;
    const int oh = int(line - plane * OH);
    const X* const p = x + size_t(plane) * H * Wd;
    float m[OUT];
#pragma unroll
    for (int o = 0; o < OUT; ++o) m[o] = MAX ? -INFINITY : 0.0f;
#pragma unroll
    for (int kh = 0; kh < KH; ++kh) {
      const int h = oh * SH - PH + kh;
      if (h < 0 || h >= H) continue;
      float v[SPAN];
#pragma unroll
      for (int k = 0; k < SPAN; ++k) {
        const int w = ow * SW - PW + k;
        v[k] = w >= 0 && w < Wd ? one(p + h * Wd + w) : (MAX ? -INFINITY : 0.0f);
      }
#pragma unroll
      for (int o = 0; o < OUT; ++o)
#pragma unroll
        for (int k = 0; k < KW; ++k) m[o] = MAX ? better(m[o], v[o * SW + k]) : m[o] + v[o * SW + k];
    }
#pragma unroll
    for (int o = 0; o < OUT; ++o)
      if (ow + o < OW) put(out + size_t(line) * OW + ow + o, MAX ? m[o] : m[o] * share_of(oh, ow + o));
  }
}

KF_INLINE void pool_rows(const X* x, X* out, float* shared) {
  constexpr int BESIDE = BLOCK / T, PLANES = N * C, SIZE = H * Wd;
  Team<T, BLOCK> team(shared);
  const int lane = threadIdx.x % T;
  for (int task = blockIdx.x; task * BESIDE < PLANES; task += gridDim.x) {
    const int plane = min(task * BESIDE + int(threadIdx.x) / T, PLANES - 1);
    const X* const p = x + size_t(plane) * SIZE;
    float m = MAX ? -INFINITY : 0.0f;
#pragma unroll 4
    for (int i = lane; i < SIZE; i += T) {
      const float v = one(p + i);
      m = MAX ? better(m, v) : m + v;
    }
    if constexpr (MAX) {
      const float bad = team.template all<Sum>(m != m ? 1.0f : 0.0f);
      m = team.template all<Max>(m);
      if (bad > 0.0f) m = NAN;
    } else {
      m = team.template all<Sum>(m) * (1.0f / float(SIZE));
    }
    if (lane == 0) put(out + plane, m);
  }
}
