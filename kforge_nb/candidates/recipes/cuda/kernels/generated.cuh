// What generated regions need beside the shared headers: vectors of N elements of any type, and the
// math functions under the names that the generator prints.
#define INT64_C(x) x##LL
#define INT64_MIN (-9223372036854775807LL - 1)
#define INT64_MAX 9223372036854775807LL
#define KF_INF INFINITY
#define KF_NAN NAN
#define KF_INF64 __longlong_as_double(0x7ff0000000000000LL)
#define KF_NAN64 __longlong_as_double(0x7ff8000000000000LL)

template <class T, int N> struct Lanes {
  union {
    uint32_t w[sizeof(T) * N / 4];
    T v[N];
  };
};
template <int N, class T> KF_INLINE Lanes<T, N> take(const T* p) {
  Lanes<T, N> r;
  fetch<sizeof(T) * N / 4>(p, r.w);
  return r;
}
template <bool S, class T, int N> KF_INLINE void give(T* p, const Lanes<T, N>& x) {
  send<S, sizeof(T) * N / 4>(p, x.w);
}
template <class T> KF_INLINE T ldg_any(const T* p) {
  if constexpr (sizeof(T) == 2) {
    union {
      uint16_t bits;
      T x;
    } u;
    u.bits = ldg16(p);
    return u.x;
  } else {
    return *p;
  }
}

KF_INLINE float kf_from_bf16(bf16 x) { return scalar(x); }
KF_INLINE float kf_from_f16(f16 x) { return scalar(x); }
KF_INLINE bf16 kf_to_bf16(float x) {
  bf16 y;
  put(&y, x);
  return y;
}
KF_INLINE f16 kf_to_f16(float x) {
  f16 y;
  put(&y, x);
  return y;
}
KF_INLINE float kf_exp(float x) { return exp_any(x); }
KF_INLINE float kf_exp_flush(float x) { return exp_short(x); }
KF_INLINE float kf_log(float x) { return logf(x); }
KF_INLINE float kf_log1p(float x) { return log1pf(x); }
KF_INLINE float kf_expm1(float x) { return expm1f(x); }
KF_INLINE float kf_sigmoid(float x) { return quotient(1.0f, 1.0f + exp_any(-x)); }
KF_INLINE float kf_tanh(float x) { return tanh_of(x); }
KF_INLINE float kf_erf(float x) { return erff(x); }
KF_INLINE float kf_gelu_erf(float x) { return gelu_of(x); }
KF_INLINE float kf_gelu_tanh(float x) { return gelu_tanh_of(x); }
