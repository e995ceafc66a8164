// One element-wise pass in which a thread keeps to one vector of columns and takes U rows of a task:
// what is the same in every row (a channel's weights in channels-last data) is read and computed once
// for all its rows. The threads of a block are CV columns wide and TALL rows high.
static constexpr int CV = C / V;
static constexpr int TALL = BLOCK / CV;

template <bool S> KF_INLINE void columns(const Args& a) {
  const int y = threadIdx.x / CV, i = threadIdx.x % CV * V;
  if (y >= TALL) return;
  const Kept kept = keep(Row(a, 0), i, All{});
  for (Index task = blockIdx.x; task < TASKS; task += gridDim.x) {
    const Index row = task * (TALL * U) + y;
    if (row + (U - 1) * TALL < Index(ROWS)) {
#pragma unroll
      for (int u = 0; u < U; ++u) body<S>(Row(a, row + u * TALL), i, All{}, kept);
    } else {
      for (Index at = row; at < Index(ROWS); at += TALL) body<S>(Row(a, at), i, All{}, kept);
    }
  }
}
