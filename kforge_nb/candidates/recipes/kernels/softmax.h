// Softmax and log-softmax of rows: one pass over memory. A row is kept in a cache-resident buffer
// between its passes for the maximum, for the exponentials with their sum, and for scaling. With
// OVERLAP the last pass of a row runs inside the second pass of the next one, so that stores to
// memory are hidden behind exponentials; the reads of a later row are prefetched there, too.
struct Work {
  float* buf;
  vf top, scale;
};

template <bool S, bool NOW, bool BEFORE>
KF_INLINE void step(const Row& p, const Row& old, const Row& next, Work& w, const Work& o) {
  const float low = -std::numeric_limits<float>::infinity();
  vf m[U], s[U];
#pragma GCC unroll 16
  for (int k = 0; k < U; ++k) m[k] = set(low), s[k] = set(0);
  if constexpr (NOW) {
    sweep<U>(C, [&](int64_t i, int k, auto n) KF_INNER {
      const vf v = before<S>(p, i, n);
      store(w.buf + i, v, n);
      m[k] = vmax(keep(v, low, n), m[k]);
    });
#pragma GCC unroll 16
    for (int k = 1; k < U; ++k) m[0] = vmax(m[k], m[0]);
    w.top = set(fold_max(m[0]));
  }
  const vf top = w.top, last_scale = o.scale;
  float* const buf = w.buf;
  const float* const done = o.buf;
  sweep<U>(C, [&](int64_t i, int k, auto n) KF_INNER {
    if constexpr (NOW) {
      if constexpr (AHEAD > 0) touch(next, i);
      const vf d = load(buf + i, n) - top, e = vexp_falling(d);
      store(buf + i, LOG ? d : e, n);
      s[k] += keep(e, 0.0f, n);
    }
    if constexpr (BEFORE) {
      const vf v = load(done + i, n);
      after<S>(old, i, LOG ? v - last_scale : v * last_scale, n);
    }
  });
  if constexpr (NOW) {
    const float sum = fold_add(sum_of(s));
    w.scale = set(LOG ? std::log(sum) : 1.0f / sum);
  }
}

template <bool S> static void rows(const Args& a, int64_t first, int64_t last) {
  alignas(64) float one[(C + 63) / 64 * 64];
  alignas(64) float two[OVERLAP ? (C + 63) / 64 * 64 : 64];
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
      o.scale = w.scale;
      step<S, false, true>(p, p, next, w, o);
    }
  }
  if constexpr (S) fence();
}
