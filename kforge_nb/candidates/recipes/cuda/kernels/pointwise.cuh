// One element-wise pass: a thread takes U vectors, a block's width apart, so that U loads of each
// input are under way at once. RV vectors make a row. Where every tensor is dense, rows follow each
// other without a gap (FLAT), and a vector may reach into the next row: then what is the same along
// a row is taken from both.
static constexpr int RV = (C + V - 1) / V;
static constexpr bool RAGGED = C % V != 0;

template <bool S> KF_INLINE void one_vector(const Args& a, Index t) {
  if constexpr (FLAT) {
    const Index at = t * V, row = at / Index(C);
    const int i = int(at - row * Index(C));
    Row p(a, row);
    if (i + V > C) mix(p, Row(a, row + 1), int(C - i));
    body<S>(p, i, All{});
    return;
  }
  const Index row = t / RV;
  const int i = int(t - row * RV) * V;
  const Row p(a, row);
  if (!RAGGED || i + V <= C) body<S>(p, i, All{});
  else body<S>(p, i, Part{int(C - i)});
}

template <bool S> KF_INLINE void elementwise(const Args& a) {
  constexpr Index TOTAL = FLAT ? Index(ROWS * C / V) : Index(ROWS) * RV;
  constexpr Index STEP = Index(BLOCK) * U;
  for (Index task = blockIdx.x; task < TASKS; task += gridDim.x) {
    const Index first = task * STEP + threadIdx.x;
    if ((task + 1) * STEP <= TOTAL) {
#pragma unroll
      for (int u = 0; u < U; ++u) one_vector<S>(a, first + u * BLOCK);
    } else {
#pragma unroll
      for (int u = 0; u < U; ++u)
        if (first + u * BLOCK < TOTAL) one_vector<S>(a, first + u * BLOCK);
    }
  }
}
