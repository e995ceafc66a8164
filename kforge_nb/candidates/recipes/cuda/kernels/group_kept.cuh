// Group norm of planes in one launch that reads its input once. Parts are drawn group by group. A
// block leaves the part that it drew in shared memory, gives its moments away, waits for those of
// the whole group and normalises what it kept. Blocks that wait for each other run at the same
// time; where the device is shared and fewer of them run than the group has parts, those who wait
// draw the parts that are left, and read them again later. So a block only waits for parts that
// somebody has drawn, and whoever waits for a group has given all of its own parts of that group and
// of those before: this cannot come to a stand. ``state`` is the next part, then the parts done of
// each group.
static constexpr int PATIENCE = 64;
static constexpr int TURNS = (PART_V + BLOCK - 1) / BLOCK, STAGE = (TURNS + STAGES - 1) / STAGES;

KF_INLINE void copy_later(void* to, const void* from) {
  const uint32_t place = (uint32_t)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(place), "l"(from) : "memory");
}
KF_INLINE void end_stage() { asm volatile("cp.async.commit_group;" : : : "memory"); }
// Until all but the last LEFT stages of this thread have arrived; ``left`` of them, below 2 STAGES.
template <int LEFT> KF_INLINE void await_stages() {
  asm volatile("cp.async.wait_group %0;" : : "n"(LEFT) : "memory");
}
template <int LEFT = 0> KF_INLINE void await_all_but(int left) {
  if (left == LEFT) await_stages<LEFT>();
  else if constexpr (LEFT + 1 < 2 * STAGES) await_all_but<LEFT + 1>(left);
}

KF_INLINE vf kept_at(const Kept* room, int k) { return load<Kept, All, false>(room + k * V, All{}); }

// Moments of a part that was asked for, stage by stage as it arrives; every thread looks at what it
// copied itself. ``later`` stages were asked for after those of this part.
KF_INLINE Moments asked_moments(const Args& a, int drawn, const Kept* room, int later) {
  const int first = drawn % SPLIT * PART_V, end = min(GV, first + PART_V);
  Sums sums;
#pragma unroll 1
  for (int s = 0; s < STAGES; ++s) {
    await_all_but(later + STAGES - 1 - s);
    const int from = first + s * STAGE * BLOCK, stop = min(end, from + STAGE * BLOCK);
    each_vector(a, drawn / SPLIT, from, stop, [&](auto count, auto at) {
      vf x[count.OF];
#pragma unroll
      for (int u = 0; u < count.OF; ++u)
        at(u, [&](const Row&, int, int k) { x[u] = kept_at(room, k - first); });
      sums.take(x);
    });
  }
  return sums.moments();
}

// The whole part is asked for at once, past the registers; beyond the last part there is nothing to
// ask for, but the stages are counted.
KF_INLINE void ask(const Args& a, int drawn, Kept* room) {
  const int first = drawn % SPLIT * PART_V, end = min(GV, first + PART_V);
#pragma unroll 1
  for (int s = 0; s < STAGES; ++s) {
    if (drawn >= GROUPS * SPLIT) {
      end_stage();
      continue;
    }
    const int from = first + s * STAGE * BLOCK, stop = min(end, from + STAGE * BLOCK);
    each_vector(a, drawn / SPLIT, from, stop, [&](auto count, auto at) {
#pragma unroll
      for (int u = 0; u < count.OF; ++u)
        at(u, [&](const Row& p, int i, int k) {
          copy_later(room + (k - first) * V, source_of(p, i));
        });
    });
    end_stage();
  }
}

KF_INLINE void give(const Moments& m, float* partial, int* state, int drawn, float* shared) {
  give_moments(m, partial, drawn / SPLIT, drawn % SPLIT, shared);
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

// All threads: until the group is complete; how many parts had to be drawn, and which.
KF_INLINE int await_group(
    const Args& a, float* partial, int* state, int group, float* shared, int* more) {
  for (int helped = 0;; ++helped) {
    __syncthreads();
    if (threadIdx.x == 0) more[helped] = awaited(state, group);
    __syncthreads();
    const int drawn = more[helped];
    if (drawn < 0) return helped;
    give(part_moments(a, group, drawn % SPLIT), partial, state, drawn, shared);
  }
}

// A block draws, reads, waits and normalises one part after the other; or, where parts come by
// asynchronous copies, the next one is on its way while this one is waited for and normalised.
template <bool S>
KF_INLINE void kept_tasks(const Args& a, float* partial, int* state, float* shared, Kept* room) {
  constexpr int ALL_PARTS = GROUPS * SPLIT;
  __shared__ int drawn, more[SPLIT];
  const auto draw = [&] {
    __syncthreads();
    if (threadIdx.x == 0) drawn = atomicAdd(state, 1);
    __syncthreads();
    return drawn;
  };
  Kept *here = room, *there = room + (COPIED ? PART_V * V : 0);
  int own = draw(), next = ALL_PARTS;
  bool given = false;
  if (COPIED) {
    ask(a, own, here);
    next = draw();
    ask(a, next, there);
  }
  while (own < ALL_PARTS) {
    const int group = own / SPLIT;
    if constexpr (!COPIED) give(part_moments(a, group, own % SPLIT, here), partial, state, own, shared);
    else if (!given) give(asked_moments(a, own, here, STAGES), partial, state, own, shared);
    given = COPIED && next < ALL_PARTS && next / SPLIT == group;
    if (given) give(asked_moments(a, next, there, 0), partial, state, next, shared);
    const int helped = await_group(a, partial, state, group, shared, more);
    Team<BLOCK, BLOCK> team(shared);
    const Moments m = of_group<BLOCK>(partial, group, team);
    const Normal normal{m.mean, deviation(m)};
    apply_kept<S>(a, here, normal, group, own % SPLIT);
    for (int k = 0; k < helped; ++k) apply_task<S>(a, normal, group, more[k] % SPLIT);
    const int following = draw();
    if (COPIED) ask(a, following, here);
    own = COPIED ? next : following;
    next = following;
    Kept* const free = here;
    here = there, there = free;
  }
}
