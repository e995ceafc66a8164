// Element-wise work over rows cut into tiles; values that do not change along a row are computed
// once a row.
template <bool S> static void rows(const Args& a, int64_t first, int64_t last) {
  for (int64_t t = first; t < last; ++t) {
    const int64_t r = t / TILES, begin = t % TILES * TILE;
    const int64_t end = begin + TILE < C ? begin + TILE : C;
    const Row p(a, r);
    sweep<U>(end - begin, [&](int64_t i, int, auto n) KF_INNER {
      if constexpr (AHEAD > 0) touch(p, begin + i + AHEAD);
      body<S>(p, begin + i, n);
    });
  }
  if constexpr (S) fence();
}
