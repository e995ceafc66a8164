// Mean and sum of squared distances to it, merged by Chan's formula: chunks of values in registers
// by two passes over them, then the chunks of a thread, then the threads of a block.
struct Moments {
  float n = 0.0f, mean = 0.0f, m2 = 0.0f;

  KF_INLINE void merge(float count, float middle, float squares) {
    const float total = n + count, delta = middle - mean, share = count / total;
    mean += delta * share;
    m2 += squares + delta * delta * n * share;
    n = total;
  }
  // N vectors at once.
  template <int N> KF_INLINE void take(const vf (&x)[N]) {
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int u = 0; u < N; ++u) sum += sum_in(x[u]);
    const float middle = sum / float(N * V);
#pragma unroll
    for (int u = 0; u < N; ++u) {
      const vf d = x[u] - set(middle);
      squares += sum_in(d * d);
    }
    merge(float(N * V), middle, squares);
  }
};

// Over all threads of a team; threads without values have n = 0. Distances are taken from the mean
// of the team's first thread, so that a mean far above the spread costs no digits.
template <class Teams> KF_INLINE Moments merged(Teams& team, Moments m, float pivot) {
  const float n = team.template all<Sum>(m.n);
  const float shift = team.template all<Sum>(m.n > 0.0f ? m.n * (m.mean - pivot) : 0.0f) / n;
  const float d = m.mean - pivot - shift;
  const float m2 = team.template all<Sum>(m.n > 0.0f ? m.m2 + m.n * d * d : 0.0f);
  Moments r;
  r.n = n, r.mean = pivot + shift, r.m2 = m2;
  return r;
}

// The SPLIT partial results of one group, merged by the WIDTH threads of a team. They were written by
// other blocks, maybe of the same launch: never read through the read-only cache.
template <int WIDTH, class Teams>
KF_INLINE Moments of_group(const float* partial, int group, Teams& team) {
  const float* p = partial + (size_t)group * SPLIT * 3;
  const float pivot = __ldcg(p + 1);
  Moments m;
  for (int k = threadIdx.x % WIDTH; k < SPLIT; k += WIDTH) {
    const float n = __ldcg(p + 3 * k);
    if (n > 0.0f) m.merge(n, __ldcg(p + 3 * k + 1), __ldcg(p + 3 * k + 2));
  }
  return merged(team, m, pivot);
}
KF_INLINE float deviation(const Moments& m) { return 1.0f / sqrtf(m.m2 / m.n + EPS); }
