// Softmax and log-softmax of rows: one pass over memory. The row is kept in a cache-resident
// buffer between the passes for maximum, exponentials with their sum, and scaling.
template <bool S> static void rows(const Args& a, int64_t first, int64_t last) {
  alignas(64) float buf[(C + 63) / 64 * 64];
  for (int64_t r = first; r < last; ++r) {
    const Row p(a, r);
    const Row next(a, r + AHEAD < ROWS ? r + AHEAD : r);
    vf m[U], s[U];
#pragma GCC unroll 16
    for (int k = 0; k < U; ++k) m[k] = set(-std::numeric_limits<float>::infinity()), s[k] = set(0);
    sweep<U>(C, [&](int64_t i, int k, auto n) KF_INNER {
      const vf v = before<S>(p, i, n);
      store(buf + i, v, n);
      m[k] = vmax(keep(v, -std::numeric_limits<float>::infinity(), n), m[k]);
    });
#pragma GCC unroll 16
    for (int k = 1; k < U; ++k) m[0] = vmax(m[k], m[0]);
    const vf top = set(fold_max(m[0]));
    sweep<U>(C, [&](int64_t i, int k, auto n) KF_INNER {
      if constexpr (AHEAD > 0) touch(next, i);
      const vf e = vexp(load(buf + i, n) - top);
      if constexpr (!LOG) store(buf + i, e, n);
      s[k] += keep(e, 0.0f, n);
    });
    const float sum = fold_add(sum_of(s));
    const vf scale = set(1.0f / sum), shift = set(std::log(sum));
    sweep<U>(C, [&](int64_t i, int, auto n) KF_INNER {
      const vf v = load(buf + i, n);
      after<S>(p, i, LOG ? (v - top) - shift : v * scale, n);
    });
  }
  if constexpr (S) fence();
}
