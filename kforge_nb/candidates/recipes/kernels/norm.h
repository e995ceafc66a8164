// Layer norm and RMS norm of rows. Variance is taken around the mean in a second pass over the
// row, which sits in a cache-resident buffer; never as E[x^2] - E[x]^2.
template <bool S> static void rows(const Args& a, int64_t first, int64_t last) {
  alignas(64) float buf[KEEP ? (C + 63) / 64 * 64 : 64];
  for (int64_t r = first; r < last; ++r) {
    const Row p(a, r);
    const Row next(a, r + AHEAD < ROWS ? r + AHEAD : r);
    const auto again = [&](int64_t i, auto n) KF_INNER {
      if constexpr (KEEP) return load(buf + i, n);
      else return before<S>(p, i, n);
    };
    vf s[U];
#pragma GCC unroll 16
    for (int k = 0; k < U; ++k) s[k] = set(0);
    sweep<U>(C, [&](int64_t i, int k, auto n) KF_INNER {
      const vf v = before<S>(p, i, n);
      if constexpr (KEEP) store(buf + i, v, n);
      const vf w = CENTRE ? v : v * v;
      s[k] += keep(w, 0.0f, n);
    });
    float mean = 0.0f, square = fold_add(sum_of(s)) / float(C);
    if constexpr (CENTRE) {
      mean = square;
#pragma GCC unroll 16
      for (int k = 0; k < U; ++k) s[k] = set(0);
      const vf middle = set(mean);
      sweep<U>(C, [&](int64_t i, int k, auto n) KF_INNER {
        const vf d = keep(again(i, n) - middle, 0.0f, n);
        s[k] += d * d;
      });
      square = fold_add(sum_of(s)) / float(C);
    }
    const vf middle = set(mean), scale = set(1.0f / std::sqrt(square + EPS));
    sweep<U>(C, [&](int64_t i, int, auto n) KF_INNER {
      if constexpr (AHEAD > 0) touch(next, i);
      after<S>(p, i, CENTRE ? (again(i, n) - middle) * scale : again(i, n) * scale, n);
    });
  }
  if constexpr (S) fence();
}
