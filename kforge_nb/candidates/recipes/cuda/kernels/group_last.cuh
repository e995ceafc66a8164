// Group norm of channels-last data: a row is one pixel with its C channels. A thread keeps to one
// vector of channels and walks down the pixels, so it gathers V pairs of moments; a block merges them
// by group, a second kernel merges the blocks, a third normalises.
static constexpr int CV = C / V;
static constexpr int TALL = BLOCK / CV;  // pixels side by side in a block
static constexpr int PART_P = (PIXELS + SPLIT - 1) / SPLIT;
static constexpr int CPG = C / GROUPS;

struct Column {
  float mean[V], m2[V];
  float n = 0.0f;
};

template <int N> KF_INLINE void take(Column& c, const vf (&x)[N]) {
  const float total = c.n + N, share = N / total, weight = c.n * share;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int u = 0; u < N; ++u) sum += x[u].v[k];
    const float middle = sum * (1.0f / N);
#pragma unroll
    for (int u = 0; u < N; ++u) squares += (x[u].v[k] - middle) * (x[u].v[k] - middle);
    const float delta = middle - c.mean[k];
    c.mean[k] += delta * share;
    c.m2[k] += squares + delta * delta * weight;
  }
  c.n = total;
}

KF_INLINE void stats_part(const Args& a, float* partial, float* room) {
  const int part = blockIdx.x % SPLIT, image = blockIdx.x / SPLIT;
  const int y = threadIdx.x / CV, i = threadIdx.x % CV * V;
  const int end = min(PIXELS, (part + 1) * PART_P);
  Column c;
#pragma unroll
  for (int k = 0; k < V; ++k) c.mean[k] = c.m2[k] = 0.0f;
  if (y < TALL) {
    int pixel = part * PART_P + y;
    for (; pixel + (U - 1) * TALL < end; pixel += U * TALL) {
      vf x[U];
#pragma unroll
      for (int u = 0; u < U; ++u)
        x[u] = before<false>(Row(a, image * PIXELS + pixel + u * TALL), i, All{});
      take(c, x);
    }
    for (; pixel < end; pixel += TALL) {
      vf x[1];
      x[0] = before<false>(Row(a, image * PIXELS + pixel), i, All{});
      take(c, x);
    }
    float* const means = room + (size_t)(y * C + i) * 2;
#pragma unroll
    for (int k = 0; k < V; ++k) means[2 * k] = c.mean[k], means[2 * k + 1] = c.m2[k];
    if (i == 0) room[2 * TALL * C + y] = c.n;
  }
  __syncthreads();
  Team<32, 32> warp(nullptr);
  for (int g = threadIdx.x / 32; g < GROUPS; g += BLOCK / 32) {
    Moments m;
    for (int k = threadIdx.x % 32; k < TALL * CPG; k += 32) {
      const int line = k / CPG, at = line * C + g * CPG + k % CPG;
      const float n = room[2 * TALL * C + line];
      if (n > 0.0f) m.merge(n, room[2 * at], room[2 * at + 1]);
    }
    const Moments all = merged(warp, m, room[2 * g * CPG]);
    if (threadIdx.x % 32 == 0) {
      float* p = partial + ((size_t)(image * GROUPS + g) * SPLIT + part) * 3;
      p[0] = all.n, p[1] = all.n > 0.0f ? all.mean : 0.0f, p[2] = all.n > 0.0f ? all.m2 : 0.0f;
    }
  }
}

// One warp a group: mean and reciprocal deviation of each.
KF_INLINE void finish_group(const float* partial, float* moments) {
  Team<32, 32> warp(nullptr);
  const Moments m = of_group<32>(partial, blockIdx.x, warp);
  if (threadIdx.x == 0) {
    moments[2 * blockIdx.x] = m.mean;
    moments[2 * blockIdx.x + 1] = deviation(m);
  }
}

template <bool S> KF_INLINE void apply_part(const Args& a, const float* moments) {
  const int part = blockIdx.x % APPLY, image = blockIdx.x / APPLY;
  const int y = threadIdx.x / CV, i = threadIdx.x % CV * V;
  constexpr int STEP = (PIXELS + APPLY - 1) / APPLY;
  const int end = min(PIXELS, (part + 1) * STEP);
  if (y >= TALL) return;
  vf middle, scale;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    const int g = image * GROUPS + (i + k) / CPG;
    middle.v[k] = moments[2 * g], scale.v[k] = moments[2 * g + 1];
  }
  int pixel = part * STEP + y;
  for (; pixel + (U - 1) * TALL < end; pixel += U * TALL) {
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const Row p(a, image * PIXELS + pixel + u * TALL);
      after<S>(p, i, (before<S>(p, i, All{}) - middle) * scale, All{});
    }
  }
  for (; pixel < end; pixel += TALL) {
    const Row p(a, image * PIXELS + pixel);
    after<S>(p, i, (before<S>(p, i, All{}) - middle) * scale, All{});
  }
}
