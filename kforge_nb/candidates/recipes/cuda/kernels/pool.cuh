// Max and average pooling. PLANES: a thread makes OUT neighbouring results of a line, so that windows
// which overlap are read once. LAST: the same with V channels of each. ROWSUM: T threads share
// a window that covers a whole plane.
KF_INLINE float better(float a, float b) {  // the larger; NaN where one is NaN
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
KF_INLINE float joined(float m, float x) { return MAX ? better(m, x) : m + x; }

KF_INLINE float share_of(int oh, int ow) {
  if (PADDED) {
    const int h0 = oh * SH - PH, w0 = ow * SW - PW;
    return 1.0f / float((min(h0 + KH, H + PH) - h0) * (min(w0 + KW, Wd + PW) - w0));
  }
  const int h0 = max(oh * SH - PH, 0), w0 = max(ow * SW - PW, 0);
  return 1.0f / float((min(oh * SH - PH + KH, H) - h0) * (min(ow * SW - PW + KW, Wd) - w0));
}

// A thread makes V channels of OUT neighbours: each column of their windows is read once.
template <bool S> KF_INLINE void pool_last(const X* x, X* out) {
  constexpr int CV = C / V, LINE = (OW + OUT - 1) / OUT, SPAN = (OUT - 1) * SW + KW;
  constexpr Index TOTAL = Index(N) * OH * LINE * CV;
  for (Index t = Index(blockIdx.x) * BLOCK + threadIdx.x; t < TOTAL; t += Index(gridDim.x) * BLOCK) {
    const Index some = t / CV;
    const int i = int(t - some * CV) * V;
    const Index line = some / LINE;
    const int ow = int(some - line * LINE) * OUT, n = int(line / OH);
    const int oh = int(line - Index(n) * OH);
    const X* const p = x + size_t(n) * H * Wd * C + i;
    vf m[OUT];
#pragma unroll
    for (int o = 0; o < OUT; ++o) m[o] = set(MAX ? -INFINITY : 0.0f);
#pragma unroll
    for (int s = 0; s < SPAN; ++s) {
      const int w = ow * SW - PW + s;
      if ((PW > 0 || OUT > 1) && (w < 0 || w >= Wd)) continue;
      vf column = set(MAX ? -INFINITY : 0.0f);
#pragma unroll
      for (int kh = 0; kh < KH; ++kh) {
        const int h = oh * SH - PH + kh;
        if (PH > 0 && (h < 0 || h >= H)) continue;
        const vf v = load(p + (size_t(h) * Wd + w) * C, All{});
#pragma unroll
        for (int k = 0; k < V; ++k) column.v[k] = joined(column.v[k], v.v[k]);
      }
#pragma unroll
      for (int o = 0; o < OUT; ++o) {
        if (s < o * SW || s >= o * SW + KW) continue;
#pragma unroll
        for (int k = 0; k < V; ++k) m[o].v[k] = joined(m[o].v[k], column.v[k]);
      }
    }
#pragma unroll
    for (int o = 0; o < OUT; ++o) {
      if (OW % OUT != 0 && ow + o >= OW) break;
      if (!MAX) m[o] = m[o] * set(share_of(oh, ow + o));
      write<S>(out + (size_t(line) * OW + ow + o) * C + i, m[o], All{});
    }
  }
}

// OUT neighbours of a line of results, in one access where lines start on it.
template <class T> KF_INLINE void put_line(T* out, const float (&m)[OUT], int there) {
  constexpr int WORDS = OUT * sizeof(T) < 4 ? 1 : OUT * sizeof(T) / 4;
  if constexpr (OW % OUT == 0 && OUT * sizeof(T) % 4 == 0) {
    uint32_t w[WORDS];
#pragma unroll
    for (int k = 0; k < WORDS; ++k) {
      if constexpr (sizeof(T) == 4) w[k] = __float_as_uint(m[k]);
      else w[k] = pair(T{}, m[2 * k], m[2 * k + 1]);
    }
    send<false, WORDS>(out, w);
  } else {
#pragma unroll
    for (int o = 0; o < OUT; ++o)
      if (o < there) put(out + o, m[o]);
  }
}

// The lines of a window are joined first, then their columns; V columns are read at once, from a
// multiple of V on.
KF_INLINE void pool_planes(const X* x, X* out) {
  constexpr int LINE = (OW + OUT - 1) / OUT, SPAN = (OUT - 1) * SW + KW;
  constexpr int LEFT = (PW + V - 1) / V * V, OFF = LEFT - PW, NV = (OFF + SPAN + V - 1) / V;
  constexpr Index TOTAL = Index(N) * C * OH * LINE;
  for (Index t = Index(blockIdx.x) * BLOCK + threadIdx.x; t < TOTAL; t += Index(gridDim.x) * BLOCK) {
    const Index line = t / LINE;
    const int ow = int(t - line * LINE) * OUT;
    const Index plane = line / OH;
    const int oh = int(line - plane * OH);
    const X* const p = x + size_t(plane) * H * Wd;
    float columns[NV * V], m[OUT];
#pragma unroll
    for (int k = 0; k < NV * V; ++k) columns[k] = MAX ? -INFINITY : 0.0f;
#pragma unroll
    for (int kh = 0; kh < KH; ++kh) {
      const int h = oh * SH - PH + kh;
      if (h < 0 || h >= H) continue;
#pragma unroll
      for (int j = 0; j < NV; ++j) {
        const int w = ow * SW - LEFT + j * V;
        if (w < 0 || w >= Wd) continue;
        const vf found = load(p + h * Wd + w, All{});
#pragma unroll
        for (int k = 0; k < V; ++k) columns[j * V + k] = joined(columns[j * V + k], found.v[k]);
      }
    }
#pragma unroll
    for (int o = 0; o < OUT; ++o) {
      m[o] = columns[OFF + o * SW];
#pragma unroll
      for (int k = 1; k < KW; ++k) m[o] = joined(m[o], columns[OFF + o * SW + k]);
      if (!MAX) m[o] *= share_of(oh, ow + o);
    }
    put_line(out + size_t(line) * OW + ow, m, OW - ow);
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
