// Loops over a row of n floats and over rows shared between threads.
#if defined(_OPENMP)
#include <omp.h>
#endif

// f(index, k, lanes): U vectors at a time with their own k (for own accumulators), then single
// vectors, then the rest of the row as a Tail.
template <int U, class F> KF_INLINE void sweep(int64_t n, F&& f) {
  int64_t i = 0;
  for (; i + U * W <= n; i += U * W) {
#pragma GCC unroll 16
    for (int k = 0; k < U; ++k) f(i + k * W, k, Full{});
  }
  for (; i + W <= n; i += W) f(i, 0, Full{});
  if (i < n) f(i, 0, Tail{int(n - i)});
}

// f(first, last) for equal shares of the tasks; on the calling thread where one is enough.
template <class F> static void share(int64_t tasks, int64_t work, int nthreads, F f) {
#if defined(_OPENMP)
  if (nthreads > 1 && tasks > 1 && work >= 32768) {
    if (nthreads > tasks) nthreads = int(tasks);
#pragma omp parallel num_threads(nthreads)
    {
      const int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
      f(tasks * me / all, tasks * (me + 1) / all);
    }
    return;
  }
#endif
  (void)work;
  (void)nthreads;
  f(int64_t(0), tasks);
}

template <bool STREAM, class T, class L> KF_INLINE void write(T* p, vf v, L n) {
  if constexpr (STREAM && L::full) stream(p, v, n);
  else store(p, v, n);
}

template <int U> KF_INLINE vf sum_of(vf (&a)[U]) {
  vf s = a[0];
#pragma GCC unroll 16
  for (int k = 1; k < U; ++k) s += a[k];
  return s;
}

template <class T> KF_INLINE void prefetch(const T* p) {
  __builtin_prefetch(reinterpret_cast<const void*>(p), 0, 2);
}
template <class T> KF_INLINE bool aligned(const T* p) {
  return (reinterpret_cast<uintptr_t>(p) & 63) == 0;
}
