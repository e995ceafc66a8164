// Group norm: a group is PER consecutive rows (channels). Its statistics come from one pass over
// memory: each tile is read into the first-level cache, gets its mean and its squares around that
// mean, and is merged into the running mean and squares (Chan). The second pass normalises, from
// the end backwards where that finds data still in the cache.
struct Moments { double count = 0, mean = 0, square = 0; };

KF_INLINE void merge(Moments& m, double count, double mean, double square) {
  const double all = m.count + count, delta = mean - m.mean;
  m.mean += delta * (count / all);
  m.square += square + delta * delta * (m.count * count / all);
  m.count = all;
}

template <bool S> KF_INLINE void tile_moments(Moments& m, const Row& p, int64_t begin, int64_t n) {
  vf s[U];
#pragma GCC unroll 16
  for (int k = 0; k < U; ++k) s[k] = set(0);
  sweep<U>(n, [&](int64_t i, int k, auto l) KF_INNER {
    if constexpr (AHEAD > 0) touch(p, begin + i + AHEAD);
    s[k] += keep(before<S>(p, begin + i, l), 0.0f, l);
  });
  const float mean = fold_add(sum_of(s)) / float(n);
#pragma GCC unroll 16
  for (int k = 0; k < U; ++k) s[k] = set(0);
  const vf middle = set(mean);
  sweep<U>(n, [&](int64_t i, int k, auto l) KF_INNER {
    const vf d = keep(before<S>(p, begin + i, l) - middle, 0.0f, l);
    s[k] += d * d;
  });
  merge(m, double(n), mean, fold_add(sum_of(s)));
}

template <bool S> static void rows(const Args& a, int64_t first, int64_t last) {
  for (int64_t g = first; g < last; ++g) {
    Moments m;
    for (int64_t r = g * PER; r < (g + 1) * PER; ++r) {
      const Row p(a, r);
      for (int64_t b = 0; b < C; b += TILE) tile_moments<S>(m, p, b, b + TILE < C ? TILE : C - b);
    }
    const vf middle = set(float(m.mean));
    const vf scale = set(float(1.0 / std::sqrt(m.square / m.count + double(EPS))));
    for (int64_t t = 0; t < PER * TILES; ++t) {
      const int64_t at = BACK ? PER * TILES - 1 - t : t;
      const Row p(a, g * PER + at / TILES);
      const int64_t b = at % TILES * TILE;
      const bool early = t < NEXT && g + 1 < TASKS;  // tile t of the next group comes early
      const Row q(a, early ? (g + 1) * PER + t / TILES : g * PER);
      const int64_t shift = t % TILES * TILE;
      sweep<U>(b + TILE < C ? TILE : C - b, [&](int64_t i, int, auto l) KF_INNER {
        if (NEXT > 0 && early) touch(q, shift + i);
        after<S>(p, b + i, (before<S>(p, b + i, l) - middle) * scale, l);
      });
    }
  }
  if constexpr (S) fence();
}
