// Inline float math for generated kernels: plain C that compilers vectorise without fast-math.
// Each function starts with "//@ name: what it needs"; only what a kernel uses is put into it.
// Accuracy is about one to two units in the last place; NaN and infinities follow IEEE.

//@ bits:
static inline __attribute__((always_inline)) uint32_t kf_bits(float x) {
  return __builtin_bit_cast(uint32_t, x);
}
static inline __attribute__((always_inline)) float kf_float(uint32_t x) {
  return __builtin_bit_cast(float, x);
}

//@ exp: bits
// exp(x) = 2^n * exp(r), |r| <= ln2/2; 2^n in two factors so that subnormal results come out right.
static inline __attribute__((always_inline)) float kf_exp(float x) {
  float c = x < -104.0f ? -104.0f : x;
  c = c > 89.0f ? 89.0f : c;
  const float shifted = c * 1.442695041f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (c - n * 0.693359375f) - n * -2.121944400e-4f;
  float p = 1.381387468e-03f;
  p = p * r + 8.369063959e-03f;
  p = p * r + 4.166842252e-02f;
  p = p * r + 1.666651815e-01f;
  p = p * r + 4.999999404e-01f;
  const float y = (p * (r * r) + r) + 1.0f;
  const int32_t i = (int32_t)(kf_bits(shifted) - 0x4b400000u);
  const int32_t half = i >> 1;
  const float one = kf_float((uint32_t)(half + 127) << 23);
  const float two = kf_float((uint32_t)(i - half + 127) << 23);
  return y * one * two;
}

//@ exp_flush: bits
// As exp, but results below 2^-126 become 0; cheaper, and enough inside sums and quotients.
static inline __attribute__((always_inline)) float kf_exp_flush(float x) {
  float c = x < -87.5f ? -87.5f : x;
  c = c > 88.8f ? 88.8f : c;
  const float shifted = c * 1.442695041f + 12583038.0f;
  const float n = shifted - 12583038.0f;
  const float r = (c - n * 0.693359375f) - n * -2.121944400e-4f;
  float p = 1.381387468e-03f;
  p = p * r + 8.369063959e-03f;
  p = p * r + 4.166842252e-02f;
  p = p * r + 1.666651815e-01f;
  p = p * r + 4.999999404e-01f;
  const float y = (p * (r * r) + r) + 1.0f;
  return (y + y) * kf_float(kf_bits(shifted) << 23);
}

//@ inverse: bits
// 1 / x for x in [1, 2^126]: three steps of Newton, cheaper than a division.
static inline __attribute__((always_inline)) float kf_inverse(float x) {
  float y = kf_float(0x7ef311c7u - kf_bits(x));
  y = y + y * (1.0f - x * y);
  y = y + y * (1.0f - x * y);
  return y + y * (1.0f - x * y);
}

//@ inverse_plus_one: inverse exp_flush
// 1 / (1 + exp(x)).
static inline __attribute__((always_inline)) float kf_inverse_plus_one(float x) {
  return x > 87.3f ? 0.0f : kf_inverse(1.0f + kf_exp_flush(x));
}

//@ log: bits
static inline __attribute__((always_inline)) float kf_log(float x) {
  const bool tiny = x < 1.17549435e-38f;
  const float scaled = tiny ? x * 8388608.0f : x;
  const int32_t bits = (int32_t)kf_bits(scaled);
  const int32_t e = (bits - 0x3f3504f3) >> 23;
  const float f = kf_float((uint32_t)bits - ((uint32_t)e << 23)) - 1.0f;
  const float n = (float)(tiny ? e - 23 : e);
  float p = 6.746532768e-02f;
  p = p * f - 1.167562380e-01f;
  p = p * f + 1.188819632e-01f;
  p = p * f - 1.240559593e-01f;
  p = p * f + 1.421954781e-01f;
  p = p * f - 1.666799486e-01f;
  p = p * f + 2.000211924e-01f;
  p = p * f - 2.500000894e-01f;
  p = p * f + 3.333331347e-01f;
  const float z = f * f;
  float y = f * z * p + n * -2.121944400e-4f;
  y = y - 0.5f * z;
  const float sum = (f + y) + n * 0.693359375f;
  const float edge = x == 0.0f ? -__builtin_inff() : __builtin_nanf("");
  const float found = x > 0.0f ? sum : edge;
  return x == __builtin_inff() ? x : found;
}

//@ log1p: log
static inline __attribute__((always_inline)) float kf_log1p(float x) {
  const float u = 1.0f + x;
  const float y = kf_log(u);
  const float fix = (x - (u - 1.0f)) / u;
  return (u > 0.0f && u < __builtin_inff()) ? y + fix : y;
}

//@ expm1: exp
static inline __attribute__((always_inline)) float kf_expm1(float x) {
  float p = 2.756679351e-06f;
  p = p * x + 2.510220838e-05f;
  p = p * x + 1.984279224e-04f;
  p = p * x + 1.388780889e-03f;
  p = p * x + 8.333327249e-03f;
  p = p * x + 4.166667908e-02f;
  p = p * x + 1.666666716e-01f;
  p = p * x + 0.5f;
  const float near = p * (x * x) + x;
  const float far = kf_exp(x) - 1.0f;
  return __builtin_fabsf(x) < 0.7f ? near : far;
}

//@ sigmoid: inverse_plus_one
static inline __attribute__((always_inline)) float kf_sigmoid(float x) {
  return kf_inverse_plus_one(-x);
}

//@ tanh: inverse_plus_one
static inline __attribute__((always_inline)) float kf_tanh(float x) {
  const float a = __builtin_fabsf(x);
  const float z = x * x;
  float p = -5.717021413e-03f;
  p = p * z + 2.065056376e-02f;
  p = p * z - 5.374348909e-02f;
  p = p * z + 1.333149076e-01f;
  p = p * z - 3.333328366e-01f;
  const float near = x * (z * p) + x;
  const float far = 1.0f - 2.0f * kf_inverse_plus_one(2.0f * a);
  return a < 0.625f ? near : __builtin_copysignf(far, x);
}

//@ erf: exp_flush
static inline __attribute__((always_inline)) float kf_erf(float x) {
  const float a = __builtin_fabsf(x);
  const float z = x * x;
  float p = -9.680128642e-06f;
  p = p * z + 1.127054202e-04f;
  p = p * z - 8.484711288e-04f;
  p = p * z + 5.221074913e-03f;
  p = p * z - 2.686544508e-02f;
  p = p * z + 1.128378287e-01f;
  p = p * z - 3.761263788e-01f;
  p = p * z + 1.128379226e+00f;
  const float c = a > 4.05f ? 4.05f : a;
  float q = 2.168954961e-05f;
  q = q * c - 4.413696006e-04f;
  q = q * c + 4.204733297e-03f;
  q = q * c - 2.520873770e-02f;
  q = q * c + 1.084193736e-01f;
  q = q * c + 6.332191229e-01f;
  q = q * c + 1.129578829e+00f;
  q = q * c - 1.881301869e-04f;
  const float far = 1.0f - kf_exp_flush(-q);
  return a < 1.0f ? x * p : __builtin_copysignf(far, x);
}

//@ gelu_erf: erf
static inline __attribute__((always_inline)) float kf_gelu_erf(float x) {
  return 0.5f * x * (1.0f + kf_erf(x * 0.7071067812f));
}

//@ gelu_finite: gelu_erf
// NaN at both infinities, as eager's gelu of contiguous tensors has it on x86.
static inline __attribute__((always_inline)) float kf_gelu_finite(float x) {
  return kf_gelu_erf(x) + (x - x);
}

//@ gelu_tanh: inverse_plus_one
// 0.5 (1 + tanh u) is 1 / (1 + exp(-2u)).
static inline __attribute__((always_inline)) float kf_gelu_tanh(float x) {
  const float u = 0.7978845608f * x * (1.0f + 0.044715f * x * x);
  return x * kf_inverse_plus_one(-2.0f * u);
}

//@ quadrant: bits
// sin(x + turn * pi/2) for |x| <= 1e6: x minus a multiple of pi/2, which is taken off in three parts.
static inline __attribute__((always_inline)) float kf_quadrant(float x, uint32_t turn) {
  const float shifted = __builtin_fmaf(x, 0.636619772f, 12582912.0f);
  const float n = shifted - 12582912.0f;
  const uint32_t quarter = kf_bits(shifted) - 0x4b400000u + turn;
  float r = __builtin_fmaf(n, -0x1.921fb6p+0f, x);
  r = __builtin_fmaf(n, 0x1.777a5cp-25f, r);
  r = __builtin_fmaf(n, 0x1.ee59dap-50f, r);
  const float z = r * r;
  const float odd = r + r * (z * (-1.666665375e-01f + z * (8.332131431e-03f + z * -1.951083686e-04f)));
  const float tail = 4.166664556e-02f + z * (-1.388730598e-03f + z * 2.443119956e-05f);
  const float even = 1.0f - 0.5f * z + z * (z * tail);
  const float value = (quarter & 1u) ? even : odd;
  return kf_float(kf_bits(value) ^ ((quarter & 2u) << 30));
}

//@ sin: quadrant
static inline __attribute__((always_inline)) float kf_sin(float x) { return kf_quadrant(x, 0u); }

//@ cos: quadrant
static inline __attribute__((always_inline)) float kf_cos(float x) { return kf_quadrant(x, 1u); }

//@ from_bf16: bits
static inline __attribute__((always_inline)) float kf_from_bf16(uint16_t x) {
  return kf_float((uint32_t)x << 16);
}

//@ to_bf16: bits
static inline __attribute__((always_inline)) uint16_t kf_to_bf16(float x) {
  const uint32_t b = kf_bits(x);
  const uint32_t rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
  return (uint16_t)((b & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

//@ from_f16: bits
static inline __attribute__((always_inline)) float kf_from_f16(uint16_t h) {
  const uint32_t a = (uint32_t)(h & 0x7fffu);
  const float scaled = kf_float(a << 13) * 0x1p112f;
  const uint32_t special = a >= 0x7c00u ? 0x7f800000u : 0u;
  return kf_float(kf_bits(scaled) | special | ((uint32_t)(h & 0x8000u) << 16));
}

//@ to_f16: bits
static inline __attribute__((always_inline)) uint16_t kf_to_f16(float x) {
  const uint32_t b = kf_bits(x);
  const uint32_t a = b & 0x7fffffffu;
  const uint32_t normal = (a + 0xc8000fffu + ((a >> 13) & 1u)) >> 13;
  const uint32_t small = kf_bits(kf_float(a) + 0.5f) - 0x3f000000u;
  const uint32_t special = a > 0x7f800000u ? 0x7e00u : 0x7c00u;
  uint32_t h = a < 0x38800000u ? small : normal;
  h = a >= 0x47800000u ? special : h;
  return (uint16_t)(h | ((b >> 16) & 0x8000u));
}

//@ stream:
// Copy past the caches: for outputs that nothing reads again before they would be evicted.
static inline void kf_stream(void* to, const void* from, int64_t bytes) {
  char* out = (char*)to;
  const char* in = (const char*)from;
#if defined(__AVX__)
  for (; bytes > 0 && ((uintptr_t)out & 31u); --bytes) *out++ = *in++;
  for (; bytes >= 32; bytes -= 32, out += 32, in += 32)
    _mm256_stream_si256((__m256i*)out, _mm256_loadu_si256((const __m256i*)in));
#elif defined(__SSE2__)
  for (; bytes > 0 && ((uintptr_t)out & 15u); --bytes) *out++ = *in++;
  for (; bytes >= 16; bytes -= 16, out += 16, in += 16)
    _mm_stream_si128((__m128i*)out, _mm_loadu_si128((const __m128i*)in));
#endif
  for (; bytes > 0; --bytes) *out++ = *in++;
}
