// Cross entropy of rows of logits: one pass over a row carries its maximum and its sum along; the
// label's logit is read by itself. A second kernel adds the rows up, always in the same order.
KF_INLINE float loss_of(const X* x, const int64_t* labels, int row, float* shared) {
  Team<BLOCK, BLOCK> team(shared);
  float top = -INFINITY, sum = 0.0f;
  const int lane = threadIdx.x;
  const X* const p = x + (size_t)row * STEP;
#pragma unroll U
  for (int i = lane * V; i < C; i += BLOCK * V) {
    const vf v = load(p + i, All{});
    const float m = max_in(v);
    if (m > top) {
      sum *= exp_short(top - m);
      top = m;
    }
#pragma unroll
    for (int k = 0; k < V; ++k) sum += v.v[k] == -INFINITY ? 0.0f : exp_short(v.v[k] - top);
  }
  const float all = team.template all<Max>(top);
  sum = team.template all<Sum>(top == -INFINITY ? sum : sum * exp_short(top - all));
  const int64_t label = labels[(size_t)row * LABEL_STEP];
  if (label == IGNORED) return 0.0f;
  if (label < 0 || label >= C) return NAN;
  return all + logf(sum) - one(p + label);
}

template <class Y> KF_INLINE void losses(const X* x, const int64_t* labels, Y* each, float* shared) {
  for (int row = blockIdx.x; row < ROWS; row += gridDim.x) {
    const float loss = loss_of(x, labels, row, shared);
    if (threadIdx.x == 0) put(each + row, loss);
  }
}

template <class Y> KF_INLINE void total(const float* each, const int64_t* labels, Y* loss, float* shared) {
  Team<BLOCK, BLOCK> team(shared);
  float sum = 0.0f, count = 0.0f;
  for (int row = threadIdx.x; row < ROWS; row += BLOCK) {
    const bool counted = labels[(size_t)row * LABEL_STEP] != IGNORED;
    sum += counted ? each[row] : 0.0f;
    count += counted ? 1.0f : 0.0f;
  }
  sum = team.template all<Sum>(sum);
  count = team.template all<Sum>(count);
  if (threadIdx.x == 0) put(loss, MEAN ? sum / count : sum);
}
