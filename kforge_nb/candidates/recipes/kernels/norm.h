// Layer norm and RMS norm of rows. Variance is taken around the mean in a second pass over the
// row, which sits in a cache-resident buffer; never as E[x^2] - E[x]^2. With OVERLAP a row is read
// while the one before it is written, so that memory works in both directions all the time.
struct Work {
  float* buf;
  vf middle, scale;
};

template <bool S, bool NOW, bool BEFORE>
KF_INLINE void step(const Row& p, const Row& old, const Row& next, Work& w, const Work& o) {
  vf s[U];
#pragma GCC unroll 16
  for (int k = 0; k < U; ++k) s[k] = set(0);
  float* const buf = w.buf;
  const float* const done = o.buf;
  const vf last_middle = o.middle, last_scale = o.scale;
  sweep<U>(C, [&](int64_t i, int k, auto n) KF_INNER {
    if constexpr (NOW) {
      const vf v = before<S>(p, i, n);
      if constexpr (KEEP) store(buf + i, v, n);
      const vf t = CENTRE ? v : v * v;
      s[k] += keep(t, 0.0f, n);
      if constexpr (AHEAD > 0 && !CENTRE) touch(next, i);
    }
    if constexpr (BEFORE) {
      vf v = set(0);
      if constexpr (KEEP) v = load(done + i, n);
      else v = before<S>(old, i, n);
      after<S>(old, i, CENTRE ? (v - last_middle) * last_scale : v * last_scale, n);
    }
  });
  if constexpr (NOW) {
    float mean = 0.0f, square = fold_add(sum_of(s)) / float(C);
    if constexpr (CENTRE) {
      mean = square;
#pragma GCC unroll 16
      for (int k = 0; k < U; ++k) s[k] = set(0);
      const vf middle = set(mean);
      sweep<U>(C, [&](int64_t i, int k, auto n) KF_INNER {
        vf v = set(0);
        if constexpr (KEEP) v = load(buf + i, n);
        else v = before<S>(p, i, n);
        const vf d = keep(v - middle, 0.0f, n);
        s[k] += d * d;
        if constexpr (AHEAD > 0) touch(next, i);
      });
      square = fold_add(sum_of(s)) / float(C);
    }
    w.middle = set(mean);
    w.scale = set(1.0f / std::sqrt(square + EPS));
  }
}

template <bool S> static void rows(const Args& a, int64_t first, int64_t last) {
  alignas(64) float one[KEEP ? (C + 63) / 64 * 64 : 64];
  alignas(64) float two[KEEP && OVERLAP ? (C + 63) / 64 * 64 : 64];
  Work w{one, set(0), set(0)}, o{OVERLAP ? two : one, set(0), set(0)};
  for (int64_t r = first; r < last; ++r) {
    const Row p(a, r), next(a, r + AHEAD < ROWS ? r + AHEAD : r);
    if constexpr (OVERLAP) {
      if (r == first) {
        step<S, true, false>(p, p, next, w, o);
      } else {
        step<S, true, true>(p, Row(a, r - 1), next, w, o);
      }
      if (r + 1 == last) {
        step<S, false, true>(p, p, next, o, w);
      } else {
        const Work t = w;
        w = o;
        o = t;
      }
    } else {
      step<S, true, false>(p, p, next, w, o);
      o.middle = w.middle, o.scale = w.scale;
      step<S, false, true>(p, p, next, w, o);
    }
  }
  if constexpr (S) fence();
}
