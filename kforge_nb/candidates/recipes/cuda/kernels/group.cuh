// Group norm of planes (N, C, H, W): a group is PER rows of C elements, one after the other. Its
// statistics are gathered by SPLIT blocks; whoever normalises a part merges them first.
static constexpr int RV = C / V;
static constexpr int GV = PER * RV;
static constexpr int PART_V = (GV + SPLIT - 1) / SPLIT;

// body(Count<N>, at) for vectors first to end of a group, N of each thread at once; at(u, f) calls
// f(row, position in the row, vector). Long rows are gone through one after the other, so that what
// is the same along a row is read once; short ones as if they were one.
template <int N> struct Count { static constexpr int OF = N; };
static constexpr bool LONG = RV >= 2 * U * BLOCK;

template <class F> KF_INLINE void each_vector(const Args& a, int group, int first, int end, F body) {
  if constexpr (LONG) {
    for (int row = first / RV; row * RV < end; ++row) {
      const Row p(a, group * PER + row);
      const int low = row * RV, stop = min(end, low + RV);
      int k = max(first, low) + threadIdx.x;
      const auto at = [&](int u, auto f) { f(p, (k - low + u * BLOCK) * V, k + u * BLOCK); };
      for (; k + (U - 1) * BLOCK < stop; k += U * BLOCK) body(Count<U>{}, at);
      for (; k < stop; k += BLOCK) body(Count<1>{}, at);
    }
  } else {
    int k = first + threadIdx.x;
    const auto at = [&](int u, auto f) {
      const int row = (k + u * BLOCK) / RV;
      f(Row(a, group * PER + row), (k + u * BLOCK - row * RV) * V, k + u * BLOCK);
    };
    for (; k + (U - 1) * BLOCK < end; k += U * BLOCK) body(Count<U>{}, at);
    for (; k < end; k += BLOCK) body(Count<1>{}, at);
  }
}

// Moments of a part, which is left in shared memory where there is room for it.
KF_INLINE Moments part_moments(const Args& a, int group, int part, Kept* room = nullptr) {
  const int first = part * PART_V;
  Sums sums;
  each_vector(a, group, first, min(GV, first + PART_V), [&](auto count, auto at) {
    vf x[count.OF];
#pragma unroll
    for (int u = 0; u < count.OF; ++u)
      at(u, [&](const Row& p, int i, int k) {
        x[u] = before<false>(p, i, All{});
        if (room != nullptr) write<false>(room + (k - first) * V, x[u], All{});
      });
    sums.take(x);
  });
  return sums.moments();
}

// A part's moments, merged over the block and written.
KF_INLINE void give_moments(const Moments& own, float* partial, int group, int part, float* shared) {
  Team<BLOCK, BLOCK> team(shared);
  if (threadIdx.x == 0) shared[Team<BLOCK, BLOCK>::FLOATS] = own.mean;
  __syncthreads();
  const Moments m = merged(team, own, shared[Team<BLOCK, BLOCK>::FLOATS]);
  if (threadIdx.x == 0) {
    float* p = partial + ((size_t)group * SPLIT + part) * 3;
    p[0] = m.n, p[1] = m.mean, p[2] = m.m2;
  }
}

KF_INLINE void stats_task(const Args& a, float* partial, int group, int part, float* shared) {
  give_moments(part_moments(a, group, part), partial, group, part, shared);
}

// (x - mean) * factor; where the answer has 16 bits in one operation, as eager does it.
struct Normal {
  float mean, factor;
  KF_INLINE vf operator()(const vf& x) const {
    return FAST ? x * set(factor) + set(-mean * factor) : (x - set(mean)) * set(factor);
  }
};

template <bool S>
KF_INLINE void apply_task(const Args& a, const Normal& normal, int group, int part) {
  const int first = part * PART_V;
  each_vector(a, group, first, min(GV, first + PART_V), [&](auto count, auto at) {
#pragma unroll
    for (int u = 0; u < count.OF; ++u)
      at(u, [&](const Row& p, int i, int) {
        after<S>(p, i, normal(before<S>(p, i, All{})), All{});
      });
  });
}

template <bool S>
KF_INLINE void apply_merged(const Args& a, const float* partial, int group, int part, float* shared) {
  Team<BLOCK, BLOCK> team(shared);
  const Moments m = of_group<BLOCK>(partial, group, team);
  apply_task<S>(a, Normal{m.mean, deviation(m)}, group, part);
}

// Launch ``step`` of a chain: blocks in turn normalise the groups of the chunk before, whose elements
// still sit in the second-level cache, and gather the moments of the next chunk.
template <bool S>
KF_INLINE void chained(const Args& a, float* partial, int step, float* shared) {
  constexpr int STEPS = (GROUPS + CHUNK - 1) / CHUNK;
  const bool both = step > 0 && step < STEPS;
  const bool apply = both ? blockIdx.x % 2 == 0 : step > 0;
  const int task = both ? blockIdx.x / 2 : blockIdx.x;
  const int group = (step - apply) * CHUNK + task / SPLIT, part = task % SPLIT;
  if (group >= GROUPS) return;
  if (apply) apply_merged<S>(a, partial, group, part, shared);
  else stats_task(a, partial, group, part, shared);
}

// Both halves in one launch. Blocks draw tasks in order: statistics of group g, then the
// normalising of group g - LAG, whose elements still sit in the second-level cache. The block that
// finishes a group's statistics merges them. A block only waits for tasks drawn before its own, and
// statistics never wait, so this cannot come to a stand. ``state`` is the next task, then the parts
// done of each group, then whether each group is merged.
KF_INLINE void drawn_stats(
    const Args& a, float* partial, float* moments, int* state, int group, int part, float* shared) {
  __shared__ int last;
  stats_task(a, partial, group, part, shared);
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(state + 1 + group, 1) == SPLIT - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  Team<BLOCK, BLOCK> team(shared);
  const Moments m = of_group<BLOCK>(partial, group, team);
  if (threadIdx.x == 0) {
    moments[2 * group] = m.mean;
    moments[2 * group + 1] = deviation(m);
    __threadfence();
    atomicAdd(state + 1 + GROUPS + group, 1);
  }
}

template <bool S>
KF_INLINE void drawn_tasks(
    const Args& a, float* partial, float* moments, int* state, float* shared) {
  __shared__ int drawn;
  constexpr int HEAD = LAG * SPLIT, BODY = (GROUPS - LAG) * 2 * SPLIT;
  for (;;) {
    __syncthreads();
    if (threadIdx.x == 0) drawn = atomicAdd(state, 1);
    __syncthreads();
    const int t = drawn;
    if (t >= 2 * GROUPS * SPLIT) return;
    const int part = t % SPLIT, step = (t - HEAD) / SPLIT;
    if (t < HEAD || (t < HEAD + BODY && step % 2 == 0)) {
      const int group = t < HEAD ? t / SPLIT : step / 2 + LAG;
      drawn_stats(a, partial, moments, state, group, part, shared);
      continue;
    }
    const int group = t < HEAD + BODY ? step / 2 : GROUPS - LAG + (t - HEAD - BODY) / SPLIT;
    if (threadIdx.x == 0) {
      while (atomicAdd(state + 1 + GROUPS + group, 0) == 0) __nanosleep(40);
      __threadfence();
    }
    __syncthreads();
    const Normal normal{__ldcg(moments + 2 * group), __ldcg(moments + 2 * group + 1)};
    apply_task<S>(a, normal, group, part);
  }
}
