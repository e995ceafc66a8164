// Group norm of planes in one launch that reads its input once. Parts are drawn group by group. A
// block leaves the part that it drew in shared memory, gives its moments away, waits for those of
// the whole group and normalises what it kept. Blocks that wait for each other run at the same
// time; where the device is shared and fewer of them run than the group has parts, those who wait
// draw the parts that are left, and read them again later. So a block only ever waits for parts
// that somebody has drawn, and between drawing a part and giving its moments nobody waits: this
// cannot come to a stand. ``state`` is the next part, then the parts done of each group.
static constexpr int PATIENCE = 64;

KF_INLINE void give_part(
    const Args& a, float* partial, int* state, int drawn, float* shared, Kept* room) {
  stats_task(a, partial, drawn / SPLIT, drawn % SPLIT, shared, room);
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(state + 1 + drawn / SPLIT, 1);
  }
}

// For one thread: -1 once the group is complete, or a part of it that nobody else has drawn.
KF_INLINE int awaited(int* state, int group) {
  for (int turn = 0;; ++turn) {
    if (*(volatile int*)(state + 1 + group) == SPLIT) {
      __threadfence();
      return -1;
    }
    if (turn < PATIENCE) {
      __nanosleep(20);
      continue;
    }
    const int next = *(volatile int*)state;
    if (next < (group + 1) * SPLIT && atomicCAS(state, next, next + 1) == next) return next;
    __nanosleep(100);
  }
}

template <bool S>
KF_INLINE void apply_kept(
    const Args& a, const Kept* room, float mean, float factor, int group, int part) {
  const vf middle = set(mean), scale = set(factor);
  const int first = part * PART_V, end = min(GV, first + PART_V);
#pragma unroll U
  for (int k = first + threadIdx.x; k < end; k += BLOCK)
    at(a, group, k, [&](const Row& p, int i) {
      const vf x = load<Kept, All, false>(room + (k - first) * V, All{});
      after<S>(p, i, (x - middle) * scale, All{});
    });
}

template <bool S>
KF_INLINE void kept_tasks(const Args& a, float* partial, int* state, float* shared, Kept* room) {
  __shared__ int drawn, more[SPLIT];
  for (;;) {
    __syncthreads();
    if (threadIdx.x == 0) drawn = atomicAdd(state, 1);
    __syncthreads();
    const int own = drawn, group = own / SPLIT;
    if (own >= GROUPS * SPLIT) return;
    give_part(a, partial, state, own, shared, room);
    int helped = 0;
    for (;; ++helped) {
      __syncthreads();
      if (threadIdx.x == 0) more[helped] = awaited(state, group);
      __syncthreads();
      if (more[helped] < 0) break;
      give_part(a, partial, state, more[helped], shared, nullptr);
    }
    Team<BLOCK, BLOCK> team(shared);
    const Moments m = of_group<BLOCK>(partial, group, team);
    const float factor = deviation(m);
    apply_kept<S>(a, room, m.mean, factor, group, own % SPLIT);
    for (int k = 0; k < helped; ++k)
      apply_task<S>(a, m.mean, factor, group, more[k] % SPLIT);
  }
}
