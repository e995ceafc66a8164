// Group norm of planes in one launch that reads its input once. Parts are drawn group by group. A
// block leaves the part that it drew in shared memory, gives its moments away, waits for those of
// the whole group and normalises what it kept. Blocks that wait for each other run at the same
// time; where the device is shared and fewer of them run than the group has parts, those who wait
// draw the parts that are left, and read them again later. So a block only ever waits for parts
// that somebody has drawn, and between drawing a part and giving its moments nobody waits: this
// cannot come to a stand. ``state`` is the next part, then the parts done of each group.
static constexpr int PATIENCE = 64;
static constexpr int TURNS = (PART_V + BLOCK - 1) / BLOCK, STAGE = (TURNS + STAGES - 1) / STAGES;

KF_INLINE void copy_later(void* to, const void* from) {
  const uint32_t place = (uint32_t)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(place), "l"(from) : "memory");
}
KF_INLINE void end_stage() { asm volatile("cp.async.commit_group;" : : : "memory"); }
// All but the last LEFT stages of this thread have arrived.
template <int LEFT> KF_INLINE void await_stage() {
  asm volatile("cp.async.wait_group %0;" : : "n"(LEFT) : "memory");
}

KF_INLINE vf kept_at(const Kept* room, int k) { return load<Kept, All, false>(room + k * V, All{}); }

// One stage of a part that has arrived; every thread looks at what it copied itself.
template <int AT> KF_INLINE void stage_moments(Sums& sums, const Args& a, int group, int first,
                                               int end, const Kept* room) {
  if constexpr (AT < STAGES) {
    await_stage<STAGES - 1 - AT>();
    const int from = first + AT * STAGE * BLOCK, stop = min(end, from + STAGE * BLOCK);
    each_vector(a, group, from, stop, [&](auto count, auto at) {
      vf x[count.OF];
#pragma unroll
      for (int u = 0; u < count.OF; ++u)
        at(u, [&](const Row&, int, int k) { x[u] = kept_at(room, k - first); });
      sums.take(x);
    });
    stage_moments<AT + 1>(sums, a, group, first, end, room);
  }
}

// The whole part is asked for at once, past the registers; its moments follow as it arrives.
KF_INLINE Moments copied_moments(const Args& a, int group, int part, Kept* room) {
  const int first = part * PART_V, end = min(GV, first + PART_V);
#pragma unroll 1
  for (int s = 0; s < STAGES; ++s) {
    const int from = first + s * STAGE * BLOCK, stop = min(end, from + STAGE * BLOCK);
    each_vector(a, group, from, stop, [&](auto count, auto at) {
#pragma unroll
      for (int u = 0; u < count.OF; ++u)
        at(u, [&](const Row& p, int i, int k) {
          copy_later(room + (k - first) * V, source_of(p, i));
        });
    });
    end_stage();
  }
  Sums sums;
  stage_moments<0>(sums, a, group, first, end, room);
  return sums.moments();
}

template <bool KEEP>
KF_INLINE void give_part(
    const Args& a, float* partial, int* state, int drawn, float* shared, Kept* room) {
  const int group = drawn / SPLIT, part = drawn % SPLIT;
  Moments m;
  if constexpr (KEEP && COPIED) m = copied_moments(a, group, part, room);
  else m = part_moments(a, group, part, KEEP ? room : nullptr);
  give_moments(m, partial, group, part, shared);
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(state + 1 + group, 1);
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
    const Args& a, const Kept* room, const Normal& normal, int group, int part) {
  const int first = part * PART_V;
  each_vector(a, group, first, min(GV, first + PART_V), [&](auto count, auto at) {
#pragma unroll
    for (int u = 0; u < count.OF; ++u)
      at(u, [&](const Row& p, int i, int k) {
        after<S>(p, i, normal(kept_at(room, k - first)), All{});
      });
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
    give_part<true>(a, partial, state, own, shared, room);
    int helped = 0;
    for (;; ++helped) {
      __syncthreads();
      if (threadIdx.x == 0) more[helped] = awaited(state, group);
      __syncthreads();
      if (more[helped] < 0) break;
      give_part<false>(a, partial, state, more[helped], shared, room);
    }
    Team<BLOCK, BLOCK> team(shared);
    const Moments m = of_group<BLOCK>(partial, group, team);
    const Normal normal{m.mean, deviation(m)};
    apply_kept<S>(a, room, normal, group, own % SPLIT);
    for (int k = 0; k < helped; ++k) apply_task<S>(a, normal, group, more[k] % SPLIT);
  }
}
