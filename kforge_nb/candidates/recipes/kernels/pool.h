// Pooling of planes (H, W): first down the rows of a window into a padded line, then along it.
// Lines stay in the first-level cache; the step along a line is left to the compiler's vectoriser.
KF_INLINE float larger(float a, float b) { return b > a || b != b ? b : a; }  // NaN wins
KF_INLINE vf larger(vf a, vf b) {
  const vf m = b > a ? b : a;
  return b != b ? b : m;
}

// The mean of a whole plane, which is one row of memory.
static void whole_mean(const X* x, Y* out) {
  vf s[U];
#pragma GCC unroll 16
  for (int k = 0; k < U; ++k) s[k] = set(0);
  sweep<U>(H * Wd, [&](int64_t i, int k, auto n) KF_INNER { s[k] += load(x + i, n); });
  put(out, fold_add(sum_of(s)) / float(H * Wd));
}

static void plane(const X* x, Y* out) {
  if constexpr (!MAX && OH * OW == 1 && KH == H && KW == Wd && PH + PW == 0)
    return whole_mean(x, out);
  const float empty = MAX ? -std::numeric_limits<float>::infinity() : 0.0f;
  alignas(64) float line[LINE], result[OW];
  for (int64_t i = 0; i < LINE; ++i) line[i] = empty;
  float* const data = line + PW;
  for (int64_t oh = 0; oh < OH; ++oh) {
    const int64_t top = oh * SH - PH;
    const int64_t from = top < 0 ? 0 : top, to = top + KH < H ? top + KH : H;
    sweep<U>(Wd, [&](int64_t i, int, auto n) KF_INNER {
      vf v = load(x + from * Wd + i, n);
      for (int64_t h = from + 1; h < to; ++h) {
        const vf w = load(x + h * Wd + i, n);
        v = MAX ? larger(v, w) : v + w;
      }
      store(data + i, v, n);
    });
    for (int64_t ow = 0; ow < OW; ++ow) result[ow] = line[ow * SW];
    for (int64_t k = 1; k < KW; ++k)
      for (int64_t ow = 0; ow < OW; ++ow) {
        const float v = line[ow * SW + k];
        result[ow] = MAX ? larger(result[ow], v) : result[ow] + v;
      }
    if constexpr (!MAX)
      for (int64_t ow = 0; ow < OW; ++ow) {
        const int64_t left = ow * SW - PW, l = left < 0 ? 0 : left;
        const int64_t r = left + KW < Wd ? left + KW : Wd;
        const int64_t rows = PADDED ? KH : to - from, columns = PADDED ? KW : r - l;
        result[ow] = result[ow] / float(rows * columns);
      }
    for (int64_t ow = 0; ow < OW; ++ow) put(out + oh * OW + ow, result[ow]);
  }
}

// Channels last: a line of results, each of them C channels side by side.
static void line_last(const X* x, Y* out, int64_t oh) {
  const int64_t top = oh * SH - PH;
  const int64_t up = top < 0 ? 0 : top, down = top + KH < H ? top + KH : H;
  for (int64_t ow = 0; ow < OW; ++ow) {
    const int64_t left = ow * SW - PW;
    const int64_t from = left < 0 ? 0 : left, to = left + KW < Wd ? left + KW : Wd;
    const int64_t count = PADDED ? KH * KW : (down - up) * (to - from);
    sweep<U>(C, [&](int64_t i, int, auto n) KF_INNER {
      vf v = load(x + (up * Wd + from) * C + i, n);
      for (int64_t h = up; h < down; ++h)
        for (int64_t w = from + (h == up); w < to; ++w) {
          const vf next = load(x + (h * Wd + w) * C + i, n);
          v = MAX ? larger(v, next) : v + next;
        }
      store(out + ow * C + i, MAX ? v : v / set(float(count)), n);
    });
  }
}
