// Group norm of channels-last data: a row is one pixel with its C channels. A thread keeps to one
// vector of channels and walks down the pixels, so it gathers V pairs of moments; a block merges them
// by group, a second kernel merges the blocks, a third normalises.
//
// Both long kernels go by tiles of TALL * U pixels, which are one stretch of memory. The blocks of the
// first take them in turn, so that the data's end is what was read last and still sits in the
// second-level cache: the third begins there and walks back.
static constexpr int CV = C / V;
static constexpr int TALL = BLOCK / CV;  // pixels side by side in a block
static constexpr int HIGH = TALL * U;    // pixels of a tile
static constexpr int TILES = (PIXELS + HIGH - 1) / HIGH;
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

// Moments of the tiles part, part + SPLIT, ... of an image, for each of its groups.
KF_INLINE void stats_part(const Args& a, float* partial, float* room) {
  const int part = blockIdx.x % SPLIT, image = blockIdx.x / SPLIT;
  const int y = threadIdx.x / CV, i = threadIdx.x % CV * V;
  Column c;
#pragma unroll
  for (int k = 0; k < V; ++k) c.mean[k] = c.m2[k] = 0.0f;
  if (y < TALL) {
    for (int tile = part; tile < TILES; tile += SPLIT) {
      const int pixel = tile * HIGH + y;
      if (pixel + (U - 1) * TALL < PIXELS) {
        vf x[U];
#pragma unroll
        for (int u = 0; u < U; ++u)
          x[u] = before<false>(Row(a, image * PIXELS + pixel + u * TALL), i, All{});
        take(c, x);
        continue;
      }
      for (int at = pixel; at < PIXELS; at += TALL) {
        vf x[1];
        x[0] = before<false>(Row(a, image * PIXELS + at), i, All{});
        take(c, x);
      }
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

// One block a group: mean and reciprocal deviation of each.
KF_INLINE void finish_group(const float* partial, float* moments, float* shared) {
  Team<MERGE, MERGE> team(shared);
  const Moments m = of_group<MERGE>(partial, blockIdx.x, team);
  if (threadIdx.x == 0) {
    moments[2 * blockIdx.x] = m.mean;
    moments[2 * blockIdx.x + 1] = deviation(m);
  }
}

// DEEP tiles, the last of them first; all loads of a tile are on their way before it is computed.
template <bool S> KF_INLINE void apply_part(const Args& a, const float* moments) {
  const int task = gridDim.x - 1 - blockIdx.x, part = task % APPLY, image = task / APPLY;
  const int y = threadIdx.x / CV, i = threadIdx.x % CV * V;
  if (y >= TALL) return;
  vf middle, scale;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    const int g = image * GROUPS + (i + k) / CPG;
    middle.v[k] = moments[2 * g], scale.v[k] = moments[2 * g + 1];
  }
  for (int tile = min(TILES, (part + 1) * DEEP) - 1; tile >= part * DEEP; --tile) {
    const int pixel = tile * HIGH + y;
    if (pixel + (U - 1) * TALL < PIXELS) {
      vf x[U];
#pragma unroll
      for (int u = 0; u < U; ++u)
        x[u] = before<S>(Row(a, image * PIXELS + pixel + u * TALL), i, All{});
#pragma unroll
      for (int u = 0; u < U; ++u)
        after<S>(Row(a, image * PIXELS + pixel + u * TALL), i, (x[u] - middle) * scale, All{});
      continue;
    }
    for (int at = pixel; at < PIXELS; at += TALL) {
      const Row p(a, image * PIXELS + at);
      after<S>(p, i, (before<S>(p, i, All{}) - middle) * scale, All{});
    }
  }
}
