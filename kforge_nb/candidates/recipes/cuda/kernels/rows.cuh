// Rows that T threads share; the block holds BLOCK / T of them and goes on by the grid's size. A row
// stays in registers (K vectors a thread), in shared memory, or is read again for every pass. A
// row beyond the last is the last one once more: the same values are written twice. EARLY: what is
// only read behind the reduction is brought to the second-level cache while the row itself is read.
enum Keep { REGISTERS, SHARED, AGAIN };
static constexpr int BESIDE = BLOCK / T;
static constexpr int CV = C / V;
static constexpr int K = (CV + T - 1) / T;
static constexpr bool WHOLE = CV % T == 0;

struct Slots {
  vf x[KEEP == REGISTERS ? K : 1];
  float* room;  // this thread's place in shared memory
};

template <bool S> KF_INLINE void read_row(const Row& p, int lane, Slots& s) {
  if constexpr (EARLY) {
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (WHOLE || k * T + lane < CV) early(p, (k * T + lane) * V);
  }
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (WHOLE || k * T + lane < CV) s.x[k] = before<S>(p, (k * T + lane) * V, All{});
}

// f(position in the row, value) for every vector of this thread; after the LAST sweep nobody needs
// what f left in the value.
template <bool FIRST, bool S, bool LAST = false, class F>
KF_INLINE void sweep(const Row& p, int lane, Slots& s, F f) {
  if constexpr (KEEP == REGISTERS) {
    if constexpr (FIRST) read_row<S>(p, lane, s);
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (WHOLE || k * T + lane < CV) f((k * T + lane) * V, s.x[k]);
  } else {
#pragma unroll U
    for (int k = lane; k < CV; k += T) {
      vf x;
      float* const place = s.room + (size_t)k * V;
      if constexpr (KEEP == SHARED && !FIRST) {
#pragma unroll
        for (int j = 0; j < V; ++j) x.v[j] = place[j];
      } else {
        x = before<S>(p, k * V, All{});
      }
      f(k * V, x);
      if constexpr (KEEP == SHARED && !LAST) {
#pragma unroll
        for (int j = 0; j < V; ++j) place[j] = x.v[j];
      }
    }
  }
}

KF_INLINE int row_of(int task) {
  const int row = task * BESIDE + threadIdx.x / T;
  return row < ROWS ? row : ROWS - 1;
}

template <class F> KF_INLINE void each_row(const Args& a, float* room, F f) {
  const int lane = threadIdx.x % T, beside = threadIdx.x / T;
  for (int task = blockIdx.x; task < TASKS; task += gridDim.x) {
    const Row p(a, row_of(task));
    Slots s;
    s.room = room + (KEEP == SHARED ? beside * C : 0);
    f(p, lane, s);
  }
}
