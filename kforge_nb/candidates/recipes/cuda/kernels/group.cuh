// Group norm of planes (N, C, H, W): a group is PER rows of C elements, one after the other. Its
// statistics are gathered by SPLIT blocks; whoever normalises a part merges them first.
static constexpr int RV = C / V;
static constexpr int GV = PER * RV;
static constexpr int PART_V = (GV + SPLIT - 1) / SPLIT;

// f(row, position) of vector k of a group.
template <class F> KF_INLINE void at(const Args& a, int group, int k, F f) {
  const int row = k / RV;
  const Row p(a, group * PER + row);
  f(p, (k - row * RV) * V);
}

// Moments of a part, which is left in shared memory where there is room for it.
KF_INLINE Moments part_moments(const Args& a, int group, int part, Kept* room = nullptr) {
  const int end = min(GV, (part + 1) * PART_V);
  int k = part * PART_V + threadIdx.x;
  Kept* place = room + threadIdx.x * V;
  Moments m;
  for (; k + (U - 1) * BLOCK < end; k += U * BLOCK) {
    vf x[U];
#pragma unroll
    for (int u = 0; u < U; ++u)
      at(a, group, k + u * BLOCK, [&](const Row& p, int i) { x[u] = before<false>(p, i, All{}); });
    m.take(x);
    if (room != nullptr) {
#pragma unroll
      for (int u = 0; u < U; ++u) write<false>(place + u * BLOCK * V, x[u], All{});
      place += U * BLOCK * V;
    }
  }
  for (; k < end; k += BLOCK) {
    vf x[1];
    at(a, group, k, [&](const Row& p, int i) { x[0] = before<false>(p, i, All{}); });
    m.take(x);
    if (room != nullptr) {
      write<false>(place, x[0], All{});
      place += BLOCK * V;
    }
  }
  return m;
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

template <bool S>
KF_INLINE void apply_task(const Args& a, float mean, float factor, int group, int part) {
  const vf middle = set(mean), scale = set(factor);
  const int end = min(GV, (part + 1) * PART_V);
  int k = part * PART_V + threadIdx.x;
  for (; k + (U - 1) * BLOCK < end; k += U * BLOCK) {
#pragma unroll
    for (int u = 0; u < U; ++u)
      at(a, group, k + u * BLOCK, [&](const Row& p, int i) {
        after<S>(p, i, (before<S>(p, i, All{}) - middle) * scale, All{});
      });
  }
  for (; k < end; k += BLOCK)
    at(a, group, k, [&](const Row& p, int i) {
      after<S>(p, i, (before<S>(p, i, All{}) - middle) * scale, All{});
    });
}

template <bool S>
KF_INLINE void apply_merged(const Args& a, const float* partial, int group, int part, float* shared) {
  Team<BLOCK, BLOCK> team(shared);
  const Moments m = of_group<BLOCK>(partial, group, team);
  apply_task<S>(a, m.mean, deviation(m), group, part);
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
    const float mean = __ldcg(moments + 2 * group), factor = __ldcg(moments + 2 * group + 1);
    apply_task<S>(a, mean, factor, group, part);
  }
}
