// Mean and sum of squared distances to it, merged by Chan's formula: the threads of a block, the
// blocks of a group.
struct Moments {
  float n = 0.0f, mean = 0.0f, m2 = 0.0f;

  KF_INLINE void merge(float count, float middle, float squares) {
    const float total = n + count, delta = middle - mean, share = count / total;
    mean += delta * share;
    m2 += squares + delta * delta * n * share;
    n = total;
  }
};

// Sums of a thread's values and of their squares, both counted from the mean of its first values: so
// far from 0 as the data may be, no digits are lost.
struct Sums {
  float pivot = 0.0f, n = 0.0f;
  vf sum = set(0.0f), squares = set(0.0f);

  template <int N> KF_INLINE void take(const vf (&x)[N]) {
    if (n == 0.0f) {
      float first = 0.0f;
#pragma unroll
      for (int u = 0; u < N; ++u) first += sum_in(x[u]);
      pivot = first / float(N * V);
    }
#pragma unroll
    for (int u = 0; u < N; ++u) {
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const float d = x[u].v[k] - pivot;
        sum.v[k] += d;
        squares.v[k] += d * d;
      }
    }
    n += float(N * V);
  }
  KF_INLINE Moments moments() const {
    Moments m;
    if (n == 0.0f) return m;
    const float all = sum_in(sum), off = all / n;
    m.n = n, m.mean = pivot + off, m.m2 = sum_in(squares) - all * off;
    return m;
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
KF_INLINE float deviation(const Moments& m) { return one_over_root(m.m2 / m.n + EPS); }
