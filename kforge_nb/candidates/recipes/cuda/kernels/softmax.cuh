// Softmax and log-softmax. A row that is read again is read twice: maximum and sum of the first
// pass are carried along together, the sum rescaled whenever the maximum grows.
KF_INLINE float power(float x, float top) {
  return LOG ? exp_short(x - top) : exp_any(x - top);  // a logarithm only needs the sum
}

template <bool S> KF_INLINE void finish_row(const Row& p, int lane, Slots& s, float top, float sum) {
  const float scale = LOG ? logf(sum) : 1.0f / sum;
  sweep<false, S, true>(p, lane, s, [&](int i, vf& x) {
    vf y;
#pragma unroll
    for (int k = 0; k < V; ++k) {
      if constexpr (LOG) y.v[k] = x.v[k] - top - scale;
      else y.v[k] = (KEEP == AGAIN ? power(x.v[k], top) : x.v[k]) * scale;
    }
    after<S>(p, i, y, All{});
  });
}

template <bool S> KF_INLINE void softmax_rows(const Args& a, float* shared, float* room) {
  Team<T, BLOCK> team(shared);
  each_row(a, room, [&](const Row& p, int lane, Slots& s) {
    float top = -INFINITY, sum = 0.0f;
    if constexpr (KEEP == AGAIN) {
      sweep<true, S>(p, lane, s, [&](int, vf& x) {
        const float m = max_in(x);
        if (m > top) {
          sum *= power(top, m);
          top = m;
        }
#pragma unroll
        for (int k = 0; k < V; ++k) sum += x.v[k] == -INFINITY ? 0.0f : power(x.v[k], top);
      });
      const float all = team.template all<Max>(top);
      sum = team.template all<Sum>(top == -INFINITY ? sum : sum * power(top, all));
      top = all;
    } else {
      sweep<true, S>(p, lane, s, [&](int, vf& x) { top = fmaxf(top, max_in(x)); });
      top = team.template all<Max>(top);
      sweep<false, S>(p, lane, s, [&](int, vf& x) {
#pragma unroll
        for (int k = 0; k < V; ++k) {
          const float e = power(x.v[k], top);
          sum += e;
          if constexpr (!LOG) x.v[k] = e;
        }
      });
      sum = team.template all<Sum>(sum);
    }
    finish_row<S>(p, lane, s, top, sum);
  });
}
