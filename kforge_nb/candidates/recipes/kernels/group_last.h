// Group norm of channels-last data: a row is one pixel with all its channels. Parts of the pixels
// give moments for every channel (each tile around its own mean, tiles merged as Chan does), the
// moments of a group's channels are merged in double, and a second pass normalises.
KF_INLINE int64_t edge(int64_t part) { return PIXELS * part / PARTS; }

template <bool S> static void moments(const Args& a, float* parts, int64_t first, int64_t last) {
  alignas(64) float sum[ROOM], square[ROOM];
  for (int64_t t = first; t < last; ++t) {
    const int64_t base = t / PARTS * PIXELS, end = edge(t % PARTS + 1);
    float* const mean = parts + t * 2 * C;
    float* const total = mean + C;
    for (int64_t c = 0; c < C; ++c) mean[c] = 0.0f, total[c] = 0.0f;
    float count = 0.0f;
    for (int64_t b = edge(t % PARTS); b < end; b += TILE) {
      const int64_t stop = b + TILE < end ? b + TILE : end;
      const float n = float(stop - b);
      for (int64_t c = 0; c < ROOM; ++c) sum[c] = 0.0f, square[c] = 0.0f;
      for (int64_t x = b; x < stop; ++x) {
        const Row p(a, base + x);
        sweep<U>(C, [&](int64_t i, int, auto l) KF_INNER {
          store(sum + i, load(sum + i, l) + before<S>(p, i, l), l);
        });
      }
      const vf each = set(1.0f / n);
      for (int64_t x = b; x < stop; ++x) {
        const Row p(a, base + x);
        sweep<U>(C, [&](int64_t i, int, auto l) KF_INNER {
          const vf d = before<S>(p, i, l) - load(sum + i, l) * each;
          store(square + i, madd(d, d, load(square + i, l)), l);
        });
      }
      const float all = count + n;
      const vf take = set(n / all), cross = set(count * n / all);
      sweep<U>(C, [&](int64_t i, int, auto l) KF_INNER {
        const vf old = load(mean + i, l), d = load(sum + i, l) * each - old;
        store(mean + i, madd(d, take, old), l);
        store(total + i, load(total + i, l) + madd(d * d, cross, load(square + i, l)), l);
      });
      count = all;
    }
  }
}

// Mean and 1 / sqrt(variance + eps) of every group, spread over its channels.
static void merge_groups(const float* parts, float* middle, float* scale) {
  for (int64_t n = 0; n < BATCH; ++n)
    for (int64_t g = 0; g < GROUPS; ++g) {
      double mean = 0.0, square = 0.0;
      const int64_t from = g * (C / GROUPS), to = from + C / GROUPS;
      for (int64_t t = 0; t < PARTS; ++t)
        for (int64_t c = from; c < to; ++c)
          mean += double(parts[(n * PARTS + t) * 2 * C + c]) * double(edge(t + 1) - edge(t));
      mean /= double(PIXELS) * double(to - from);
      for (int64_t t = 0; t < PARTS; ++t)
        for (int64_t c = from; c < to; ++c) {
          const float* const p = parts + (n * PARTS + t) * 2 * C + c;
          const double d = double(p[0]) - mean;
          square += double(p[C]) + d * d * double(edge(t + 1) - edge(t));
        }
      const double variance = square / (double(PIXELS) * double(to - from));
      for (int64_t c = from; c < to; ++c) {
        middle[n * C + c] = float(mean);
        scale[n * C + c] = float(1.0 / std::sqrt(variance + double(EPS)));
      }
    }
}

template <bool S>
static void apply(const Args& a, const float* middle, const float* scale, int64_t first,
                  int64_t last) {
  for (int64_t x = first; x < last; ++x) {
    const int64_t r = BACK ? ROWS - 1 - x : x;
    const Row p(a, r);
    const float* const m = middle + r / PIXELS * C;
    const float* const s = scale + r / PIXELS * C;
    sweep<U>(C, [&](int64_t i, int, auto l) KF_INNER {
      after<S>(p, i, (before<S>(p, i, l) - load(m + i, l)) * load(s + i, l), l);
    });
  }
  if constexpr (S) fence();
}
