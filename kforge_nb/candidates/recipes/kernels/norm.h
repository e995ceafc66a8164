// Layer norm and RMS norm of rows. Variance is taken around the mean in a second pass over the
// row, which sits in a cache-resident buffer; never as E[x^2] - E[x]^2. With OVERLAP 1 a row is read
// while the one before it is written, so that memory works in both directions all the time. With
// OVERLAP 2 the second pass over the row between them is in the same loop: memory never waits for it.
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

// Reads row r, takes the variance of the one before it and writes the one before that.
template <bool S, bool READ, bool SPREAD, bool WRITE>
KF_INLINE void stage(const Args& a, int64_t r, Work& w, Work& m, const Work& o) {
  const int64_t other = WRITE ? r - 2 : READ ? r : r - 1;
  const Row p(a, READ ? r : other), old(a, other);
  const Row next(a, r + AHEAD < ROWS ? r + AHEAD : ROWS - 1);
  vf s[U], q[U];
#pragma GCC unroll 16
  for (int k = 0; k < U; ++k) s[k] = set(0), q[k] = set(0);
  float* const buf = w.buf;
  const float *const between = m.buf, *const done = o.buf;
  const vf middle = m.middle, last_middle = o.middle, last_scale = o.scale;
  sweep<U>(C, [&](int64_t i, int k, auto n) KF_INNER {
    if constexpr (READ) {
      const vf v = before<S>(p, i, n);
      store(buf + i, v, n);
      s[k] += keep(v, 0.0f, n);
      if constexpr (AHEAD > 0) touch(next, i);
    }
    if constexpr (SPREAD) {
      const vf d = keep(load(between + i, n) - middle, 0.0f, n);
      q[k] += d * d;
    }
    if constexpr (WRITE) after<S>(old, i, (load(done + i, n) - last_middle) * last_scale, n);
  });
  if constexpr (READ) w.middle = set(fold_add(sum_of(s)) / float(C));
  if constexpr (SPREAD) m.scale = set(1.0f / std::sqrt(fold_add(sum_of(q)) / float(C) + EPS));
}

template <bool S> static void staged(const Args& a, int64_t first, int64_t last) {
  alignas(64) float bufs[3][(C + 63) / 64 * 64];
  Work w{bufs[0], set(0), set(0)}, m{bufs[1], set(0), set(0)}, o{bufs[2], set(0), set(0)};
  for (int64_t r = first; r < last + 2; ++r) {
    if (r < last) {
      if (r >= first + 2) stage<S, true, true, true>(a, r, w, m, o);
      else if (r > first) stage<S, true, true, false>(a, r, w, m, o);
      else stage<S, true, false, false>(a, r, w, m, o);
    } else if (r == last) {
      if (r >= first + 2) stage<S, false, true, true>(a, r, w, m, o);
      else stage<S, false, true, false>(a, r, w, m, o);
    } else {
      stage<S, false, false, true>(a, r, w, m, o);
    }
    const Work t = o;
    o = m, m = w, w = t;
  }
}

template <bool S> static void rows(const Args& a, int64_t first, int64_t last) {
  if constexpr (OVERLAP == 2 && CENTRE && KEEP) {
    if (first < last) staged<S>(a, first, last);
    if constexpr (S) fence();
    return;
  }
  alignas(64) float one[KEEP ? (C + 63) / 64 * 64 : 64];
  alignas(64) float two[KEEP && OVERLAP ? (C + 63) / 64 * 64 : 64];
  Work w{one, set(0), set(0)}, o{OVERLAP ? two : one, set(0), set(0)};
  for (int64_t r = first; r < last; ++r) {
    const Row p(a, r), next(a, r + AHEAD < ROWS ? r + AHEAD : r);
    if constexpr (OVERLAP != 0) {
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
