// Cross entropy of rows of logits: one pass over memory. A block of logits gives its maximum and,
// from the first-level cache, its sum of exponentials; running maximum and sum are corrected when
// a later block is larger. Row losses go to scratch and are added up in double.
static float row_loss(const X* x, int64_t label) {
  const float low = -std::numeric_limits<float>::infinity();
  float top = low, sum = 0.0f;
  for (int64_t b = 0; b < C; b += TILE) {
    const int64_t n = b + TILE < C ? TILE : C - b;
    vf m[U], s[U];
#pragma GCC unroll 16
    for (int k = 0; k < U; ++k) m[k] = set(low), s[k] = set(0);
    sweep<U>(n, [&](int64_t i, int k, auto l) KF_INNER {
      if constexpr (AHEAD > 0) prefetch(x + b + i + AHEAD);
      m[k] = vmax(keep(load(x + b + i, l), low, l), m[k]);
    });
#pragma GCC unroll 16
    for (int k = 1; k < U; ++k) m[0] = vmax(m[k], m[0]);
    const float here = fold_max(m[0]);
    if (here > top) {
      if (sum != 0.0f) sum *= std::exp(top - here);
      top = here;
    }
    const vf base = set(top == low ? 0.0f : top);
    sweep<U>(n, [&](int64_t i, int k, auto l) KF_INNER {
      s[k] += keep(vexp_falling(load(x + b + i, l) - base), 0.0f, l);
    });
    sum += fold_add(sum_of(s));
  }
  if (label < 0 || label >= C) return std::numeric_limits<float>::quiet_NaN();
  return std::log(sum) + top - scalar(x[label]);
}

static void losses(const X* x, const int64_t* labels, float* out, int64_t first, int64_t last) {
  for (int64_t r = first; r < last; ++r) {
    const int64_t label = labels[r * LABEL_STEP];
    out[r] = label == IGNORED ? 0.0f : row_loss(x + r * STEP, label);
  }
}

static float total(const int64_t* labels, const float* each) {
  double sum = 0.0;
  int64_t count = 0;
  for (int64_t r = 0; r < ROWS; ++r) {
    sum += double(each[r]);
    count += labels[r * LABEL_STEP] != IGNORED;
  }
  return float(MEAN ? sum / double(count) : sum);
}
