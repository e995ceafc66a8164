// Depthwise convolution along rows: out[b, c, l] = sum over k of w[c, k] x[b, c, l - PAD + k DIL],
// in float32, then a bias and an activation. A thread answers V neighbours of one row.
static constexpr int SPAN = (TAPS - 1) * DIL;
static constexpr int OFF = BEFORE - PAD;  // the window starts BEFORE, a multiple of V, ahead
static constexpr int WORDS = (OFF + V + SPAN + V - 1) / V;

KF_INLINE float finished(float x) {
  if constexpr (ACT == 1) return quotient(x, 1.0f + exp_any(-x));
  if constexpr (ACT == 2) return x < 0.0f ? 0.0f : x;
  return x;
}

// V neighbours at a multiple of V, with zeros before and behind the row.
KF_INLINE vf line_at(const X* line, int at) {
  if (at < 0 || at >= L) return set(0.0f);
  return at + V <= L ? load(line + at, All{}) : load(line + at, Part{L - at});
}

// ``window[OFF + v + k * DIL]`` is what tap k of answer v needs.
KF_INLINE void answer(const float* window, const W* w, float start, Y* out, int l) {
  vf y = set(start);
#pragma unroll
  for (int k = 0; k < TAPS; ++k) {
    const float tap = one(w + k);
#pragma unroll
    for (int v = 0; v < V; ++v) y.v[v] += tap * window[v + k * DIL];
  }
#pragma unroll
  for (int v = 0; v < V; ++v) y.v[v] = finished(y.v[v]);
  if (l + V <= OUT) write<false>(out + l, y, All{});
  else write<false>(out + l, y, Part{OUT - l});
}

// Rows are dense: neighbouring threads answer neighbouring vectors of a row.
KF_INLINE void conv_rows(const X* x, const W* w, const W* bias, Y* out) {
  constexpr int OV = (OUT + V - 1) / V;
  const Index t = Index(blockIdx.x) * BLOCK + threadIdx.x;
  if (t >= Index(BATCH) * C * OV) return;
  const Index row = t / OV;
  const int l = int(t - row * OV) * V, c = int(row % C);
  const X* const line = x + row / C * XB + c * XC;
  float window[WORDS * V];
#pragma unroll
  for (int j = 0; j < WORDS; ++j) {
    const vf found = line_at(line, l - BEFORE + j * V);
#pragma unroll
    for (int v = 0; v < V; ++v) window[j * V + v] = found.v[v];
  }
  answer(window + OFF, w + c * TAPS, bias == nullptr ? 0.0f : one(bias + c), out + row * OUT, l);
}

// Channels are dense: a block turns SIDE channels of LONG positions in shared memory first.
static constexpr int SIDE = 64, LONG = 64, PITCH = (LONG + SPAN) | 1;

KF_INLINE void conv_turned(const X* x, const W* w, const W* bias, Y* out, float* room) {
  constexpr int TILES = (OUT + LONG - 1) / LONG, CT = (C + SIDE - 1) / SIDE;
  const int tile = blockIdx.x % TILES, rest = blockIdx.x / TILES;
  const int c0 = rest % CT * SIDE, b = rest / CT, l0 = tile * LONG;
  constexpr int VC = SIDE / V;
  for (int k = threadIdx.x; k < VC * (LONG + SPAN); k += BLOCK) {
    const int i = k % VC * V, j = k / VC, at = l0 - PAD + j;
    vf found = set(0.0f);
    if (at >= 0 && at < L && c0 + i < C)
      found = load(x + (int64_t)b * XB + (int64_t)at * XL + c0 + i, All{});
#pragma unroll
    for (int v = 0; v < V; ++v) room[(i + v) * PITCH + j] = found.v[v];
  }
  __syncthreads();
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x / 32; i < SIDE && c0 + i < C; i += BLOCK / 32) {
    const int c = c0 + i;
    float taps[TAPS];
#pragma unroll
    for (int q = 0; q < TAPS; ++q) taps[q] = one(w + c * TAPS + q);
    const float start = bias == nullptr ? 0.0f : one(bias + c);
    Y* const line = out + ((int64_t)b * C + c) * OUT;
#pragma unroll
    for (int j = lane; j < LONG; j += 32) {
      float y = start;
#pragma unroll
      for (int q = 0; q < TAPS; ++q) y += taps[q] * room[i * PITCH + j + q * DIL];
      if (l0 + j < OUT) put(line + l0 + j, finished(y));
    }
  }
}
