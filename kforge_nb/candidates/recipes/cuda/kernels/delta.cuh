// The gated delta rule, token by token: S = a S + k d^T with d = beta (v - (a S)^T k), answer S^T q.
// A column of the state S (one value feature) never meets another one, so LANES threads keep COLS
// columns in registers for the whole sequence, a block BC columns of one head, and blocks need
// nothing of each other. C tokens are taken at once: with the products of their keys and queries
// (and the decays between them) at hand, both dot products of all C are taken with the state as it
// was before the first, so that only one reduction a group of tokens lies on the way. A tile of
// tokens is made ready in shared memory by HELPERS warps of their own while the others work on the
// tile before, or by all warps in between (HELPERS = 0).
static constexpr int TEAMS = 32 / LANES, BC = WARPS * TEAMS * COLS;
static constexpr int READY = (HELPERS ? HELPERS : WARPS) * 32;  // threads that make a tile ready
static constexpr int KS = KD / LANES, GROUPS = TILE / C;
static constexpr int SIDE = KD / 4 < 8 ? KD / 4 : 8;  // threads that share a row of a tile
static constexpr int NOTES = 2 * C * C + 3 * C;            // numbers that a group of tokens needs
static constexpr bool KEPT = C * KS <= 64;                 // keys stay in registers for the update
static constexpr bool DEALT = C > 1 && LANES == C * COLS;  // a lane settles one token of one column
static constexpr int NK = (TILE * KD / V + READY - 1) / READY;
static constexpr int NV = (TILE * BC / V + READY - 1) / READY;

KF_INLINE void four(const float* p, float (&x)[4]) {
  const float4 q = *(const float4*)p;
  x[0] = q.x, x[1] = q.y, x[2] = q.z, x[3] = q.w;
}

// V elements of a tile of W columns: neighbours in a row (ROWS), or V tokens of one column.
template <int W, bool ROWS, class T>
KF_INLINE vf piece(const T* p, int64_t st, int64_t sd, int i, int t0) {
  if constexpr (ROWS) {
    const int t = t0 + i / (W / V), d = i % (W / V) * V;
    return i < TILE * W / V && t < LEN ? load(p + t * st + d * sd, All{}) : set(0.0f);
  } else {
    const int t = t0 + i / W * V, d = i % W, n = LEN - t;
    if (i >= TILE * W / V || n <= 0) return set(0.0f);
    return n >= V ? load(p + t * st + d * sd, All{}) : load(p + t * st + d * sd, Part{n});
  }
}
template <int W, bool ROWS> KF_INLINE void keep(float* room, const vf& x, int i) {
  if (i >= TILE * W / V) return;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    if constexpr (ROWS) room[i / (W / V) * W + i % (W / V) * V + k] = x.v[k];
    else room[(i / W * V + k) * W + i % W] = x.v[k];
  }
}

KF_INLINE int me() { return HELPERS ? int(threadIdx.x) - WARPS * 32 : int(threadIdx.x); }
KF_INLINE void among_ready() {  // a barrier of the threads that make tiles ready
  if constexpr (HELPERS == 0) __syncthreads();
  else asm volatile("bar.sync 1, %0;" : : "n"(READY) : "memory");
}

// One tile of tokens on its way from memory: asked for while the tile before is worked on.
struct Coming {
  vf q[NK], k[NK], v[NV];
  float gate, beta;
};
KF_INLINE void ask(Coming& c, const TQ* q, const TK* k, const TV* v, const TG* g, const TB* b,
                   int t0) {
#pragma unroll
  for (int j = 0; j < NK; ++j) {
    const int i = j * READY + me();
    c.q[j] = piece<KD, QROWS>(q, QT, QD, i, t0);
    c.k[j] = piece<KD, KROWS>(k, KT, KE, i, t0);
  }
#pragma unroll
  for (int j = 0; j < NV; ++j) c.v[j] = piece<BC, VROWS>(v, VT, VE, j * READY + me(), t0);
  const int t = t0 + me();
  const bool here = me() < TILE && t < LEN;
  c.gate = here ? one(g + (int64_t)t * GT) : 0.0f;
  c.beta = here ? one(b + (int64_t)t * BT) : 0.0f;
}

static constexpr int ROOM = (TILE * (2 * KD + BC + 2) + GROUPS * NOTES + 3) / 4 * 4;  // floats
struct Room {
  float *q, *k, *v, *gate, *beta, *notes;
  KF_INLINE Room(float* room) {
    q = room, k = q + TILE * KD, v = k + TILE * KD;
    notes = v + TILE * BC, gate = notes + GROUPS * NOTES, beta = gate + TILE;
  }
};
KF_INLINE void arrive(const Room& r, const Coming& c) {
#pragma unroll
  for (int j = 0; j < NK; ++j) {
    keep<KD, QROWS>(r.q, c.q[j], j * READY + me());
    keep<KD, KROWS>(r.k, c.k[j], j * READY + me());
  }
#pragma unroll
  for (int j = 0; j < NV; ++j) keep<BC, VROWS>(r.v, c.v[j], j * READY + me());
  if (me() < TILE) r.gate[me()] = expf(c.gate), r.beta[me()] = c.beta;
}

// Queries and keys to unit length, queries scaled. Teams without a row go along for the shuffles.
KF_INLINE void normalise(const Room& r) {
  const int lane = me() % SIDE;
  for (int at = 0; at < TILE; at += READY / SIDE) {
    const int row = at + me() / SIDE;
    const bool live = row < TILE;
    float *const q = r.q + (live ? row : 0) * KD, *const k = r.k + (live ? row : 0) * KD;
    float qq[KD / SIDE], kk[KD / SIDE], by_q = 0.0f, by_k = 0.0f;
#pragma unroll
    for (int i = 0; i < KD / SIDE; i += 4) {
      float a[4], b[4];
      four(q + SIDE * i + 4 * lane, a), four(k + SIDE * i + 4 * lane, b);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        qq[i + e] = a[e], kk[i + e] = b[e];
        by_q += a[e] * a[e], by_k += b[e] * b[e];
      }
    }
    if constexpr (NORM) {
      by_q = rsqrtf(in_warp<Sum, SIDE>(by_q) + EPS) * SCALE;
      by_k = rsqrtf(in_warp<Sum, SIDE>(by_k) + EPS);
    } else {
      by_q = SCALE, by_k = 1.0f;
    }
    if (!live) continue;
#pragma unroll
    for (int i = 0; i < KD / SIDE; ++i) {
      const int place = i / 4 * 4 * SIDE + 4 * lane + i % 4;
      q[place] = qq[i] * by_q, k[place] = kk[i] * by_k;
    }
  }
}

// Notes of a group: C x C products of keys, C x C of queries with keys, both with the decay between
// the tokens; the decay up to each token; from each token to the end; the strengths. A team works
// on one token and its products with all of its group.
KF_INLINE void take_notes(const Room& r) {
  const int lane = me() % SIDE;
  for (int at = 0; at < TILE; at += READY / SIDE) {
    const bool live = at + me() / SIDE < TILE;
    const int row = live ? at + me() / SIDE : 0, first = row / C * C, c = row % C;
    float keys[C], queries[C];
#pragma unroll
    for (int j = 0; j < C; ++j) keys[j] = queries[j] = 0.0f;
#pragma unroll
    for (int i = 0; i < KD / SIDE; i += 4) {
      float k[4], q[4];
      four(r.k + row * KD + SIDE * i + 4 * lane, k), four(r.q + row * KD + SIDE * i + 4 * lane, q);
#pragma unroll
      for (int j = 0; j < C; ++j) {
        float x[4];
        four(r.k + (first + j) * KD + SIDE * i + 4 * lane, x);
#pragma unroll
        for (int e = 0; e < 4; ++e) keys[j] += k[e] * x[e], queries[j] += q[e] * x[e];
      }
    }
#pragma unroll
    for (int j = 0; j < C; ++j) {
      keys[j] = in_warp<Sum, SIDE>(keys[j]);
      queries[j] = in_warp<Sum, SIDE>(queries[j]);
    }
    if (!live || lane != 0) continue;
    float* const notes = r.notes + row / C * NOTES;
    float decay = 1.0f, behind = 1.0f;
#pragma unroll
    for (int j = C - 1; j >= 0; --j) {
      const float gate = r.gate[first + j];
      if (j <= c) {
        notes[c * C + j] = decay * keys[j], notes[C * C + c * C + j] = decay * queries[j];
        decay *= gate;
      } else {
        behind *= gate;
      }
    }
    float* const own = notes + 2 * C * C + c;
    own[0] = decay, own[C] = behind, own[2 * C] = r.beta[row];
  }
}

// Sums over LANES threads of N values, dealt out: a lane ends with the N / LANES values of its number.
template <int N, int O> KF_INLINE void deal(float* v, int lane) {
  if constexpr (O > 0) {
    const bool upper = lane & O;
#pragma unroll
    for (int k = 0; k < N / 2; ++k) {
      const float mine = upper ? v[k + N / 2] : v[k], other = upper ? v[k] : v[k + N / 2];
      v[k] = mine + __shfl_xor_sync(0xffffffffu, other, O);
    }
    deal<N / 2, O / 2>(v, lane);
  }
}

// What each token changes in each column, from dot products (keys and queries with the state) that
// all lanes hold; answers are written on the way.
KF_INLINE void settle(const Room& r, int group, const float (&dots)[2 * C * COLS],
                      float (&d)[C][COLS], int lane, int column, TO* out, int t0) {
  const float* const notes = r.notes + group * NOTES;
#pragma unroll
  for (int c = 0; c < C; ++c) {
    const float before = notes[2 * C * C + c], beta = notes[2 * C * C + 2 * C + c];
#pragma unroll
    for (int x = 0; x < COLS; ++x) {
      float seen = before * dots[2 * (x * C + c)], told = before * dots[2 * (x * C + c) + 1];
#pragma unroll
      for (int j = 0; j < c; ++j) seen += notes[c * C + j] * d[j][x];
      d[c][x] = beta * (r.v[(group * C + c) * BC + column + x] - seen);
#pragma unroll
      for (int j = 0; j <= c; ++j) told += notes[C * C + c * C + j] * d[j][x];
      if (lane == c % LANES && t0 + group * C + c < LEN)
        put(out + (int64_t)(t0 + group * C + c) * OT + (column + x) * OD, told);
    }
  }
#pragma unroll
  for (int c = 0; c < C; ++c)
#pragma unroll
    for (int x = 0; x < COLS; ++x) d[c][x] *= notes[2 * C * C + C + c];
}

// The same where a lane holds the two dot products of one token with one column.
KF_INLINE void settle_dealt(const Room& r, int group, float seen, float told,
                            float (&d)[C][COLS], int lane, int column, TO* out, int t0) {
  const float* const notes = r.notes + group * NOTES;
  const int x = lane / C, c = lane % C, t = group * C + c, base = threadIdx.x % 32 - lane;
  const float before = notes[2 * C * C + c], beta = notes[2 * C * C + 2 * C + c];
  const float value = r.v[t * BC + column + x];
  seen *= before, told *= before;
#pragma unroll
  for (int j = 0; j < C; ++j) {
    const float own = beta * (value - seen);
    const float change = __shfl_sync(0xffffffffu, own, base + x * C + j);
    if (j < c) seen += notes[c * C + j] * change;
    if (j <= c) told += notes[C * C + c * C + j] * change;
  }
  if (t0 + t < LEN) put(out + (int64_t)(t0 + t) * OT + (column + x) * OD, told);
  const float last = beta * (value - seen) * notes[2 * C * C + C + c];
#pragma unroll
  for (int i = 0; i < C * COLS; ++i) d[i % C][i / C] = __shfl_sync(0xffffffffu, last, base + i);
}

// C tokens: answers to ``out``, and the state after them.
KF_INLINE void step(const Room& r, int group, float (&s)[COLS][KS], int lane, int column, TO* out,
                    int t0) {
  const float *const q = r.q + group * C * KD, *const k = r.k + group * C * KD;
  float dots[2 * C * COLS], d[C][COLS], kept[KEPT ? C : 1][KEPT ? KS : 1];
#pragma unroll
  for (int i = 0; i < 2 * C * COLS; ++i) dots[i] = 0.0f;
#pragma unroll
  for (int i = 0; i < KS / 4; ++i)
#pragma unroll
    for (int c = 0; c < C; ++c) {
      float kk[4], qq[4];
      four(k + c * KD + 4 * (i * LANES + lane), kk), four(q + c * KD + 4 * (i * LANES + lane), qq);
      if constexpr (KEPT)
#pragma unroll
        for (int e = 0; e < 4; ++e) kept[c][4 * i + e] = kk[e];
#pragma unroll
      for (int x = 0; x < COLS; ++x)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          dots[2 * (x * C + c)] += kk[e] * s[x][4 * i + e];
          dots[2 * (x * C + c) + 1] += qq[e] * s[x][4 * i + e];
        }
    }
  if constexpr (DEALT) {
    deal<2 * C * COLS, LANES / 2>(dots, lane);
    settle_dealt(r, group, dots[0], dots[1], d, lane, column, out, t0);
  } else {
#pragma unroll
    for (int i = 0; i < 2 * C * COLS; ++i) dots[i] = in_warp<Sum, LANES>(dots[i]);
    settle(r, group, dots, d, lane, column, out, t0);
  }
  const float decay = r.notes[group * NOTES + 2 * C * C + C - 1];
#pragma unroll
  for (int i = 0; i < KS / 4; ++i)
#pragma unroll
    for (int c = 0; c < C; ++c) {
      float kk[4];
      if constexpr (KEPT) {
#pragma unroll
        for (int e = 0; e < 4; ++e) kk[e] = kept[c][4 * i + e];
      } else {
        four(k + c * KD + 4 * (i * LANES + lane), kk);
      }
#pragma unroll
      for (int x = 0; x < COLS; ++x)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& own = s[x][4 * i + e];
          own = kk[e] * d[c][x] + (c == 0 ? decay * own : own);
        }
    }
}

// The state of a thread's columns: number e of piece i is key feature 4 (i LANES + lane) + e. A WIDE
// row of states is dense and starts on 16 bytes.
template <bool WIDE, class T> KF_INLINE void begin(float (&s)[COLS][KS], const T* state, int lane) {
#pragma unroll
  for (int i = 0; i < KS; ++i) {
    const T* const row = state + (int64_t)(4 * (i / 4 * LANES + lane) + i % 4) * SK;
    if constexpr (WIDE) {
#pragma unroll
      for (int x = 0; x < COLS; x += 4) {
        const float4 w = __ldg((const float4*)(row + x));
        s[x][i] = w.x, s[x + 1][i] = w.y, s[x + 2][i] = w.z, s[x + 3][i] = w.w;
      }
    } else {
#pragma unroll
      for (int x = 0; x < COLS; ++x) s[x][i] = one(row + x * SE);
    }
  }
}
template <bool WIDE, class T> KF_INLINE void finish(const float (&s)[COLS][KS], T* state, int lane) {
#pragma unroll
  for (int i = 0; i < KS; ++i) {
    T* const row = state + (int64_t)(4 * (i / 4 * LANES + lane) + i % 4) * EK;
    if constexpr (WIDE) {
#pragma unroll
      for (int x = 0; x < COLS; x += 4)
        *(float4*)(row + x) = {s[x][i], s[x + 1][i], s[x + 2][i], s[x + 3][i]};
    } else {
#pragma unroll
      for (int x = 0; x < COLS; ++x) put(row + x * EE, s[x][i]);
    }
  }
}

KF_INLINE void make_ready(const Room& r) {
  among_ready();
  normalise(r);
  among_ready();
  take_notes(r);
}

template <class TS, class TE>
KF_INLINE void delta_rule(const TQ* q, const TK* k, const TV* v, const TG* g, const TB* beta,
                          const TS* state, TO* out, TE* last, float4* shared) {
  const int part = blockIdx.x % (VD / BC), head = blockIdx.x / (VD / BC);
  const int64_t n = head / H, h = head % H, first = (int64_t)part * BC;
  q += n * QN + h / REP * QH, k += n * KN + h / REP * KH;
  v += n * VN + h * VH + first * VE;
  g += n * GN + h * GH, beta += n * BN + h * BH;
  out += n * ON + h * OH + first * OD;
  float* const room = (float*)shared;
  if (HELPERS != 0 && threadIdx.x >= WARPS * 32) {
    Coming next;
    ask(next, q, k, v, g, beta, 0);
    for (int t0 = 0, turn = 0; t0 < LEN; t0 += TILE, turn ^= 1) {
      const Room r(room + turn * ROOM);
      arrive(r, next);
      if (t0 + TILE < LEN) ask(next, q, k, v, g, beta, t0 + TILE);
      make_ready(r);
      __syncthreads();
    }
    return;
  }
  const int lane = threadIdx.x % LANES, column = threadIdx.x / LANES * COLS;
  float s[COLS][KS];
  if constexpr (BEGINS) {
    begin<BEGINS == 2>(s, state + n * SN + h * SH + (first + column) * SE, lane);
  } else {
#pragma unroll
    for (int i = 0; i < COLS * KS; ++i) s[i / KS][i % KS] = 0.0f;
  }
  Coming next;
  if constexpr (HELPERS == 0) ask(next, q, k, v, g, beta, 0);
  for (int t0 = 0, turn = 0; t0 < LEN; t0 += TILE, turn ^= HELPERS != 0) {
    const Room r(room + turn * ROOM);
    __syncthreads();
    if constexpr (HELPERS == 0) {
      arrive(r, next);
      if (t0 + TILE < LEN) ask(next, q, k, v, g, beta, t0 + TILE);
      make_ready(r);
      __syncthreads();
    }
    for (int group = 0; group < GROUPS && t0 + group * C < LEN; ++group)
      step(r, group, s, lane, column, out, t0);
  }
  if constexpr (ENDS)
    finish<ENDS == 2>(s, last + n * EN + h * EH + (first + column) * EE, lane);
}
