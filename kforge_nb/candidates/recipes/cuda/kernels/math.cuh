// Arithmetic on vectors of V floats. FAST kernels answer in 16 bits, so that the hardware's short
// exponential and quotient (relative error about 1e-6) are beyond what the answer can hold.
#define KF_EACH(NAME, EXPR)                                  \
  KF_INLINE vf NAME(const vf& a) {                           \
    vf r;                                                    \
    _Pragma("unroll") for (int k = 0; k < V; ++k) {          \
      const float x = a.v[k];                                \
      r.v[k] = EXPR;                                         \
    }                                                        \
    return r;                                                \
  }
#define KF_BOTH(NAME, EXPR)                                  \
  KF_INLINE vf NAME(const vf& a, const vf& b) {              \
    vf r;                                                    \
    _Pragma("unroll") for (int k = 0; k < V; ++k) {          \
      const float x = a.v[k], y = b.v[k];                    \
      r.v[k] = EXPR;                                         \
    }                                                        \
    return r;                                                \
  }

KF_INLINE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// exp(x) for sums and quotients of exponentials, where x <= 0 or the result is compared with 1.
KF_INLINE float exp_short(float x) { return exp2_fast(x * 1.44269504f); }
KF_INLINE float exp_any(float x) { return FAST ? exp_short(x) : expf(x); }
KF_INLINE float quotient(float x, float y) { return FAST ? __fdividef(x, y) : x / y; }
KF_INLINE float one_over_root(float x) { return FAST ? rsqrtf(x) : 1.0f / sqrtf(x); }
// Without a cancellation where tanh is near -1: x (1 + tanh u) / 2 = x / (1 + exp(-2u)).
KF_INLINE float gelu_tanh_of(float x) {
  const float u = x * (x * x * (-2.0f * 0.7978845608f * 0.044715f) - 2.0f * 0.7978845608f);
  return quotient(x, 1.0f + exp_any(u));
}
// x times the normal distribution. For short answers erfc by Abramowitz and Stegun 7.1.26 (absolute
// error 1.5e-7): half of it is the distribution's lower tail, so nothing cancels on that side.
KF_INLINE float gelu_of(float x) {
  if (!FAST) return 0.5f * x * (1.0f + erff(x * 0.70710678f));
  const float z = fabsf(x) * 0.70710678f, t = __fdividef(1.0f, 1.0f + 0.3275911f * z);
  const float c = 0.7107068705f + t * (-0.7265760135f + t * 0.5307027145f);
  const float tail = t * (0.127414796f + t * (-0.142248368f + t * c)) * exp_short(-z * z);
  return x * (x < 0.0f ? tail : 1.0f - tail);
}
// 1 - 2 / (1 + exp(2x)), near 0 by its series: there the difference would lose its digits.
KF_INLINE float tanh_of(float x) {
  if (!FAST) return tanhf(x);
  const float s = x * x;
  const float near = x + x * s * (-0.33333333f + s * (0.13333333f - s * 0.053968254f));
  const float far = 1.0f - __fdividef(2.0f, 1.0f + exp_short(2.0f * x));
  return fabsf(x) < 0.25f ? near : far;
}

KF_BOTH(operator+, x + y)
KF_BOTH(operator-, x - y)
KF_BOTH(operator*, x * y)
KF_BOTH(operator/, quotient(x, y))
KF_EACH(operator-, -x)
KF_EACH(vsqrt, sqrtf(x))
KF_EACH(vexp, exp_any(x))
KF_EACH(vtanh, tanh_of(x))
KF_EACH(sigmoid, quotient(1.0f, 1.0f + exp_any(-x)))
KF_EACH(silu, quotient(x, 1.0f + exp_any(-x)))
KF_EACH(relu, x < 0.0f ? 0.0f : x)
KF_EACH(gelu, gelu_of(x))
KF_EACH(gelu_limit, gelu_of(x))
KF_EACH(gelu_tanh, gelu_tanh_of(x))

KF_INLINE float sum_in(const vf& a) {
  float s = 0.0f;
#pragma unroll
  for (int k = 0; k < V; ++k) s += a.v[k];
  return s;
}
KF_INLINE float max_in(const vf& a) {
  float m = a.v[0];
#pragma unroll
  for (int k = 1; k < V; ++k) m = fmaxf(m, a.v[k]);
  return m;
}
