// Rows of a table, picked by number, U vectors a thread: the numbers first, then all of the rows, so
// that U reads are under way at once. A number outside of the table gives NaN instead of a fault.
static constexpr int RV = C / V;

template <bool S, class W, class N>
KF_INLINE void gathered(const Args& a, const W* table, const N* numbers) {
  constexpr Index TOTAL = Index(ROWS) * RV, STEP = Index(BLOCK) * U;
  for (Index task = blockIdx.x; task < TASKS; task += gridDim.x) {
    int64_t from[U];
    vf x[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const Index t = task * STEP + u * BLOCK + threadIdx.x;
      const int64_t number = t < TOTAL ? (int64_t)__ldg(numbers + t / RV) : 0;
      from[u] = number < 0 || number >= HEIGHT ? -1 : number * WIDTH + int64_t(t % RV) * V;
    }
#pragma unroll
    for (int u = 0; u < U; ++u) x[u] = from[u] < 0 ? set(NAN) : load(table + from[u], All{});
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const Index t = task * STEP + u * BLOCK + threadIdx.x;
      if (t < TOTAL) after<S>(Row(a, t / RV), t % RV * V, x[u], All{});
    }
  }
}
