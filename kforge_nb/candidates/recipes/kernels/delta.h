// The gated delta rule for BC columns of one head's state, which stay in the cache next to the core:
// S = a S + k d^T with d = beta (v - (a S)^T k), answer S^T q. C tokens are taken at once: both dot
// products of all of them are taken with the state before the first, so that the state is read
// twice and written once for C tokens.
static constexpr int X = BC / W;

struct Tokens {
  alignas(64) float q[C][KD], k[C][KD];
  float gate[C], beta[C], keys[C][C], queries[C][C];
};

KF_INLINE float dot(const float* a, const float* b) {
  vf sum[1] = {set(0.0f)};
  sweep<1>(KD, [&](int64_t i, int, auto n) { sum[0] = madd(load(a + i, n), load(b + i, n), sum[0]); });
  return fold_add(sum[0]);
}

// A query or a key as floats, of unit length where the rule asks for it, times a factor.
template <class T>
KF_INLINE void unit_row(float* to, const T* from, int64_t step, bool there, float factor) {
  if (!there || step != 1) {
    for (int i = 0; i < KD; ++i) to[i] = there ? scalar(from[i * step]) : 0.0f;
  } else {
    sweep<1>(KD, [&](int64_t i, int, auto n) { store(to + i, load(from + i, n), n); });
  }
  if constexpr (NORM) factor /= std::sqrt(dot(to, to) + EPS);
  const vf times = set(factor);
  sweep<1>(KD, [&](int64_t i, int, auto n) { store(to + i, load(to + i, n) * times, n); });
}

// What C tokens are to one another: products with the decay between them.
KF_INLINE void meet(Tokens& t) {
  for (int c = 0; c < C; ++c) {
    float decay = 1.0f;
    for (int j = c; j >= 0; --j) {
      t.keys[c][j] = decay * dot(t.k[c], t.k[j]);
      t.queries[c][j] = decay * dot(t.q[c], t.k[j]);
      decay *= t.gate[j];
    }
  }
}

template <class T> KF_INLINE vf columns(const T* p, int64_t step) {
  if (step == 1) return load(p, Full{});
  alignas(64) float few[W];
  for (int i = 0; i < W; ++i) few[i] = scalar(p[i * step]);
  return load(few, Full{});
}
template <class T> KF_INLINE void answer(T* p, int64_t step, vf x) {
  if (step == 1) return store(p, x, Full{});
  alignas(64) float few[W];
  store(few, x, Full{});
  for (int i = 0; i < W; ++i) put(p + i * step, few[i]);
}

// The state before C tokens becomes the state after them; answers go to ``out``.
KF_INLINE void step(vf (&s)[KD][X], const Tokens& t, const TV* v, TO* out, int64_t t0) {
  vf a[C][X], b[C][X];
  for (int c = 0; c < C; ++c)
    for (int x = 0; x < X; ++x) a[c][x] = b[c][x] = set(0.0f);
  for (int d = 0; d < KD; ++d)
    for (int x = 0; x < X; ++x)
      for (int c = 0; c < C; ++c) {
        a[c][x] = madd(set(t.k[c][d]), s[d][x], a[c][x]);
        b[c][x] = madd(set(t.q[c][d]), s[d][x], b[c][x]);
      }
  float before = 1.0f;
  for (int c = 0; c < C; ++c) {
    before *= t.gate[c];
    const bool there = t0 + c < LEN;
    for (int x = 0; x < X; ++x) {
      vf seen = set(before) * a[c][x], told = set(before) * b[c][x];
      for (int j = 0; j < c; ++j) seen = madd(set(t.keys[c][j]), a[j][x], seen);
      const vf given = there ? columns(v + (t0 + c) * VT + x * W * VE, VE) : set(0.0f);
      a[c][x] = set(t.beta[c]) * (given - seen);  // from here on what the token changes
      for (int j = 0; j <= c; ++j) told = madd(set(t.queries[c][j]), a[j][x], told);
      if (there) answer(out + (t0 + c) * OT + x * W * OD, OD, told);
    }
  }
  float behind = 1.0f;
  for (int c = C - 1; c >= 0; --c) {
    for (int x = 0; x < X; ++x) a[c][x] = a[c][x] * set(behind);
    behind *= t.gate[c];
  }
  for (int d = 0; d < KD; ++d)
    for (int x = 0; x < X; ++x) {
      vf own = set(before) * s[d][x];
      for (int c = 0; c < C; ++c) own = madd(set(t.k[c][d]), a[c][x], own);
      s[d][x] = own;
    }
}

template <class TS, class TE>
KF_INLINE void walk(const TQ* q, const TK* k, const TV* v, const TG* g, const TB* beta,
                    const TS* state, TO* out, TE* last, int64_t task) {
  const int64_t part = task % (VD / BC) * BC, h = task / (VD / BC) % H, n = task / (VD / BC) / H;
  q += n * QN + h / REP * QH, k += n * KN + h / REP * KH, v += n * VN + h * VH + part * VE;
  g += n * GN + h * GH, beta += n * BN + h * BH, out += n * ON + h * OH + part * OD;
  alignas(64) vf s[KD][X];
  for (int d = 0; d < KD; ++d)
    for (int x = 0; x < X; ++x)
      s[d][x] = state == nullptr
                    ? set(0.0f)
                    : columns(state + n * SN + h * SH + d * SK + (part + x * W) * SE, SE);
  Tokens t;
  for (int64_t t0 = 0; t0 < LEN; t0 += C) {
    for (int c = 0; c < C; ++c) {
      const bool there = t0 + c < LEN;
      unit_row(t.q[c], q + (t0 + c) * QT, QD, there, SCALE);
      unit_row(t.k[c], k + (t0 + c) * KT, KE, there, 1.0f);
      t.gate[c] = there ? std::exp(scalar(g[(t0 + c) * GT])) : 1.0f;
      t.beta[c] = there ? scalar(beta[(t0 + c) * BT]) : 0.0f;
    }
    meet(t);
    step(s, t, v, out, t0);
  }
  if (last == nullptr) return;
  for (int d = 0; d < KD; ++d)
    for (int x = 0; x < X; ++x)
      answer(last + n * EN + h * EH + d * EK + (part + x * W) * EE, EE, s[d][x]);
}
