// Layer norm and RMS norm. The variance is taken around the mean in a second pass, over registers,
// shared memory or memory read again; never as E[x^2] - E[x]^2.
template <bool S> KF_INLINE void norm_rows(const Args& a, float* shared, float* room) {
  Team<T, BLOCK> team(shared);
  each_row(a, room, [&](const Row& p, int lane, Slots& s) {
    float sum = 0.0f, mean = 0.0f;
    sweep<true, S>(p, lane, s, [&](int, vf& x) { sum += sum_in(CENTRE ? x : x * x); });
    float square = team.template all<Sum>(sum) / float(C);
    if constexpr (CENTRE) {
      mean = square;
      sum = 0.0f;
      sweep<false, S>(p, lane, s, [&](int, vf& x) {
        const vf d = x - set(mean);
        sum += sum_in(d * d);
      });
      square = team.template all<Sum>(sum) / float(C);
    }
    const float scale = one_over_root(square + EPS);
    sweep<false, S, true>(p, lane, s, [&](int i, vf& x) {
      after<S>(p, i, CENTRE ? (x - set(mean)) * set(scale) : x * set(scale), All{});
    });
  });
}
