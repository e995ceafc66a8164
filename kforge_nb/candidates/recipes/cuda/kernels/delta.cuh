// The gated delta rule, token by token: S = a S + k d^T with d = beta (v - (a S)^T k), answer S^T q.
// A column of the state S (one value feature) never meets another one, so LANES threads keep COLS
// columns in registers for the whole sequence, a block BC columns of one head, and blocks need
// nothing of each other. C tokens are taken at once: with the products of their keys and queries
// (and the decays between them) at hand, both dot products of all C are taken with the state as it
// was before the first, so that only one reduction a group of tokens lies on the way.
static constexpr int THREADS = WARPS * 32, TEAMS = 32 / LANES, BC = WARPS * TEAMS * COLS;
static constexpr int KS = KD / LANES, GROUPS = TILE / C;
static constexpr int SIDE = KD / 4 < 8 ? KD / 4 : 8;  // threads that share a row of a tile
static constexpr int NOTES = 2 * C * C + 3 * C;       // numbers that a group of tokens needs
static constexpr int NK = (TILE * KD / V + THREADS - 1) / THREADS;
static constexpr int NV = (TILE * BC / V + THREADS - 1) / THREADS;

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

// One tile of tokens on its way from memory: asked for while the tile before is worked on.
struct Coming {
  vf q[NK], k[NK], v[NV];
  float gate, beta;
};
KF_INLINE void ask(Coming& c, const TQ* q, const TK* k, const TV* v, const TG* g, const TB* b,
                   int t0) {
#pragma unroll
  for (int j = 0; j < NK; ++j) {
    const int i = j * THREADS + threadIdx.x;
    c.q[j] = piece<KD, QROWS>(q, QT, QD, i, t0);
    c.k[j] = piece<KD, KROWS>(k, KT, KE, i, t0);
  }
#pragma unroll
  for (int j = 0; j < NV; ++j) c.v[j] = piece<BC, VROWS>(v, VT, VE, j * THREADS + threadIdx.x, t0);
  const int t = t0 + threadIdx.x;
  const bool here = threadIdx.x < TILE && t < LEN;
  c.gate = here ? one(g + (int64_t)t * GT) : 0.0f;
  c.beta = here ? one(b + (int64_t)t * BT) : 0.0f;
}

struct Room {
  float *q, *k, *v, *gate, *beta, *notes;
  KF_INLINE Room(float4* room) {
    q = (float*)room, k = q + TILE * KD, v = k + TILE * KD;
    notes = v + TILE * BC, gate = notes + GROUPS * NOTES, beta = gate + TILE;
  }
};
KF_INLINE void arrive(const Room& r, const Coming& c) {
#pragma unroll
  for (int j = 0; j < NK; ++j) {
    keep<KD, QROWS>(r.q, c.q[j], j * THREADS + threadIdx.x);
    keep<KD, KROWS>(r.k, c.k[j], j * THREADS + threadIdx.x);
  }
#pragma unroll
  for (int j = 0; j < NV; ++j) keep<BC, VROWS>(r.v, c.v[j], j * THREADS + threadIdx.x);
  if (threadIdx.x < TILE) r.gate[threadIdx.x] = expf(c.gate), r.beta[threadIdx.x] = c.beta;
}

KF_INLINE float dot(const float* x, const float* y, int lane) {
  float s = 0.0f;
#pragma unroll
  for (int i = 0; i < KD / 4 / SIDE; ++i) {
    float a[4], b[4];
    four(x + 4 * (i * SIDE + lane), a), four(y + 4 * (i * SIDE + lane), b);
#pragma unroll
    for (int e = 0; e < 4; ++e) s += a[e] * b[e];
  }
  return in_warp<Sum, SIDE>(s);
}

// Queries and keys to unit length, queries scaled. Teams without a row go along for the shuffles.
KF_INLINE void normalise(const Room& r) {
  const int lane = threadIdx.x % SIDE;
  for (int at = 0; at < 2 * TILE; at += THREADS / SIDE) {
    const int row = at + threadIdx.x / SIDE;
    const bool live = row < 2 * TILE;
    float* const p = r.q + (live ? row : 0) * KD;  // the keys' rows follow the queries'
    float unit = 1.0f;
    if constexpr (NORM) unit = rsqrtf(dot(p, p, lane) + EPS);
    if (row < TILE) unit *= SCALE;
    if (!live) continue;
#pragma unroll
    for (int i = 0; i < KD / 4 / SIDE; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) p[4 * (i * SIDE + lane) + e] *= unit;
  }
}

// Notes of a group: C x C products of keys, C x C of queries with keys, both with the decay between
// the tokens; the decay up to each token; from each token to the end; the strengths.
KF_INLINE void take_notes(const Room& r) {
  const int lane = threadIdx.x % SIDE;
  for (int at = 0; at < GROUPS * 2 * C * C; at += THREADS / SIDE) {
    const int item = at + threadIdx.x / SIDE, pair = item % (2 * C * C);
    const bool live = item < GROUPS * 2 * C * C;
    const int t0 = live ? item / (2 * C * C) * C : 0;
    const int c = pair % (C * C) / C, j = pair % C;
    const float x = dot((pair < C * C ? r.k : r.q) + (t0 + c) * KD, r.k + (t0 + j) * KD, lane);
    if (!live || lane != 0) continue;
    float decay = 1.0f;
    for (int m = j + 1; m <= c; ++m) decay *= r.gate[t0 + m];
    r.notes[t0 / C * NOTES + pair] = j <= c ? decay * x : 0.0f;
  }
  for (int i = threadIdx.x; i < TILE; i += THREADS) {
    float* const own = r.notes + i / C * NOTES + 2 * C * C;
    float before = 1.0f, behind = 1.0f;
    for (int m = i / C * C; m <= i; ++m) before *= r.gate[m];
    for (int m = i + 1; m < i / C * C + C; ++m) behind *= r.gate[m];
    own[i % C] = before, own[C + i % C] = behind, own[2 * C + i % C] = r.beta[i];
  }
}

// C tokens: answers to ``out``, and the state after them.
KF_INLINE void step(const Room& r, int group, float (&s)[COLS][KS], int lane, int column, TO* out,
                    int t0) {
  const float *const q = r.q + group * C * KD, *const k = r.k + group * C * KD;
  const float* const notes = r.notes + group * NOTES;
  float a[C][COLS], b[C][COLS], d[C][COLS];
#pragma unroll
  for (int c = 0; c < C; ++c)
#pragma unroll
    for (int x = 0; x < COLS; ++x) a[c][x] = b[c][x] = 0.0f;
#pragma unroll
  for (int i = 0; i < KS / 4; ++i)
#pragma unroll
    for (int c = 0; c < C; ++c) {
      float kk[4], qq[4];
      four(k + c * KD + 4 * (i * LANES + lane), kk), four(q + c * KD + 4 * (i * LANES + lane), qq);
#pragma unroll
      for (int x = 0; x < COLS; ++x)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          a[c][x] += kk[e] * s[x][4 * i + e];
          b[c][x] += qq[e] * s[x][4 * i + e];
        }
    }
#pragma unroll
  for (int c = 0; c < C; ++c)
#pragma unroll
    for (int x = 0; x < COLS; ++x) {
      a[c][x] = in_warp<Sum, LANES>(a[c][x]);
      b[c][x] = in_warp<Sum, LANES>(b[c][x]);
    }
#pragma unroll
  for (int c = 0; c < C; ++c) {
    const float before = notes[2 * C * C + c], beta = notes[2 * C * C + 2 * C + c];
#pragma unroll
    for (int x = 0; x < COLS; ++x) {
      float seen = before * a[c][x], told = before * b[c][x];
#pragma unroll
      for (int j = 0; j < c; ++j) seen += notes[c * C + j] * d[j][x];
      d[c][x] = beta * (r.v[(group * C + c) * BC + column + x] - seen);
#pragma unroll
      for (int j = 0; j <= c; ++j) told += notes[C * C + c * C + j] * d[j][x];
      if (lane == c % LANES && t0 + group * C + c < LEN)
        put(out + (int64_t)(t0 + group * C + c) * OT + (column + x) * OD, told);
    }
  }
  const float decay = notes[2 * C * C + C - 1];
#pragma unroll
  for (int c = 0; c < C; ++c)
#pragma unroll
    for (int x = 0; x < COLS; ++x) d[c][x] *= notes[2 * C * C + C + c];
#pragma unroll
  for (int i = 0; i < KS / 4; ++i)
#pragma unroll
    for (int c = 0; c < C; ++c) {
      float kk[4];
      four(k + c * KD + 4 * (i * LANES + lane), kk);
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

template <class TS, class TE>
KF_INLINE void delta_rule(const TQ* q, const TK* k, const TV* v, const TG* g, const TB* beta,
                          const TS* state, TO* out, TE* last, float4* shared) {
  const int part = blockIdx.x % (VD / BC), head = blockIdx.x / (VD / BC);
  const int64_t n = head / H, h = head % H, first = (int64_t)part * BC;
  q += n * QN + h / REP * QH, k += n * KN + h / REP * KH;
  v += n * VN + h * VH + first * VE;
  g += n * GN + h * GH, beta += n * BN + h * BH;
  out += n * ON + h * OH + first * OD;
  const int lane = threadIdx.x % LANES, column = threadIdx.x / LANES * COLS;
  float s[COLS][KS];
  if constexpr (BEGINS) {
    begin<BEGINS == 2>(s, state + n * SN + h * SH + (first + column) * SE, lane);
  } else {
#pragma unroll
    for (int i = 0; i < COLS * KS; ++i) s[i / KS][i % KS] = 0.0f;
  }
  const Room r(shared);
  Coming next;
  ask(next, q, k, v, g, beta, 0);
  for (int t0 = 0; t0 < LEN; t0 += TILE) {
    __syncthreads();
    arrive(r, next);
    __syncthreads();
    if (t0 + TILE < LEN) ask(next, q, k, v, g, beta, t0 + TILE);
    normalise(r);
    __syncthreads();
    take_notes(r);
    __syncthreads();
    for (int group = 0; group < GROUPS && t0 + group * C < LEN; ++group)
      step(r, group, s, lane, column, out, t0);
  }
  if constexpr (ENDS)
    finish<ENDS == 2>(s, last + n * EN + h * EH + (first + column) * EE, lane);
}
