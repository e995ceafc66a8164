// One vector of floats, W lanes wide, for three machines. Arithmetic operators come from the
// compiler's vector types; loads, stores, conversions, comparisons and folds are here.
#if KF_ISA == 512
typedef __m512 vf;
static constexpr int W = 16;
KF_INLINE __mmask16 lanes(Full) { return 0xffff; }
KF_INLINE __mmask16 lanes(Tail t) { return __mmask16((1u << t.n) - 1u); }
KF_INLINE vf set(float x) { return _mm512_set1_ps(x); }
KF_INLINE vf load(const float* p, Full) { return _mm512_loadu_ps(p); }
KF_INLINE vf load(const float* p, Tail t) { return _mm512_maskz_loadu_ps(lanes(t), p); }
KF_INLINE vf widen(__m256i h, bf16) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
KF_INLINE vf widen(__m256i h, f16) { return _mm512_cvtph_ps(h); }
KF_INLINE __m256i narrow(vf v, f16) {
  return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
KF_INLINE __m256i narrow(vf v, bf16) {
  const __m512i u = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i safe = _mm512_mask_mov_epi32(up, nan, _mm512_set1_epi32(0x7fc00000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(safe, 16));
}
template <class T> KF_INLINE vf load(const T* p, Full) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), T{});
}
template <class T> KF_INLINE vf load(const T* p, Tail t) {
  return widen(_mm256_maskz_loadu_epi16(lanes(t), p), T{});
}
KF_INLINE void store(float* p, vf v, Full) { _mm512_storeu_ps(p, v); }
KF_INLINE void store(float* p, vf v, Tail t) { _mm512_mask_storeu_ps(p, lanes(t), v); }
KF_INLINE void stream(float* p, vf v, Full) { _mm512_stream_ps(p, v); }
template <class T> KF_INLINE void store(T* p, vf v, Full) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(v, T{}));
}
template <class T> KF_INLINE void store(T* p, vf v, Tail t) {
  _mm256_mask_storeu_epi16(p, lanes(t), narrow(v, T{}));
}
template <class T> KF_INLINE void stream(T* p, vf v, Full) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), narrow(v, T{}));
}
KF_INLINE vf vmax(vf a, vf b) { return _mm512_max_ps(a, b); }  // b where a is NaN
KF_INLINE vf vmin(vf a, vf b) { return _mm512_min_ps(a, b); }
KF_INLINE vf madd(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
KF_INLINE vf round_int(vf a) { return _mm512_roundscale_ps(a, 8); }
KF_INLINE vf scale2(vf a, vf n) { return _mm512_scalef_ps(a, n); }
KF_INLINE vf vsqrt(vf a) { return _mm512_sqrt_ps(a); }
// x / d for d >= 1 or NaN: half the cost of a division; one Newton step, error 1 ulp. Where d is
// infinite the step would be NaN, and the minimum takes its second operand.
KF_INLINE vf over(vf x, vf d) {
  const vf r = _mm512_rcp14_ps(d);
  return x * madd(r, vmin(_mm512_fnmadd_ps(d, r, set(1.0f)), set(1.0f)), r);
}
KF_INLINE vf over_finite(vf x, vf d) {  // the same for 1 <= d < infinity
  const vf r = _mm512_rcp14_ps(d);
  return x * madd(r, _mm512_fnmadd_ps(d, r, set(1.0f)), r);
}
KF_INLINE vf clip(vf x, float c) { return _mm512_range_ps(x, set(c), 2); }  // c where x is NaN
KF_INLINE vf bounded(vf t) { return t; }  // the two below take infinities as they are
KF_INLINE vf fraction(vf t) { return _mm512_reduce_ps(t, 9); }  // t - floor(t), 0 at infinity
KF_INLINE vf scale_floor(vf a, vf t) { return _mm512_scalef_ps(a, t); }  // a 2^floor(t)
KF_INLINE vf pick_lt(vf a, vf b, vf yes, vf no) {
  return _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), yes);
}
KF_INLINE vf vabs(vf a) { return _mm512_abs_ps(a); }
KF_INLINE vf keep(vf v, float, Full) { return v; }
KF_INLINE vf keep(vf v, float fill, Tail t) { return _mm512_mask_mov_ps(set(fill), lanes(t), v); }
KF_INLINE float fold_add(vf v) { return _mm512_reduce_add_ps(v); }
KF_INLINE float fold_max(vf v) { return _mm512_reduce_max_ps(v); }
KF_INLINE vf through(vf v, f16 t) { return widen(narrow(v, t), t); }
KF_INLINE vf through(vf v, bf16 t) { return widen(narrow(v, t), t); }
KF_INLINE void fence() { _mm_sfence(); }

#elif KF_ISA == 256
typedef __m256 vf;
static constexpr int W = 8;
KF_INLINE vf set(float x) { return _mm256_set1_ps(x); }
KF_INLINE __m256i lanes(Tail t) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(t.n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
KF_INLINE vf load(const float* p, Full) { return _mm256_loadu_ps(p); }
KF_INLINE vf load(const float* p, Tail t) { return _mm256_maskload_ps(p, lanes(t)); }
KF_INLINE vf widen(__m128i h, bf16) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
KF_INLINE vf widen(__m128i h, f16) { return _mm256_cvtph_ps(h); }
KF_INLINE __m128i narrow(vf v, f16) { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
KF_INLINE __m128i narrow(vf v, bf16) {
  const __m256i u = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i safe = _mm256_blendv_epi8(up, _mm256_set1_epi32(0x7fc00000), nan);
  const __m256i h = _mm256_srli_epi32(safe, 16);
  const __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(h, h), 0x08);
  return _mm256_castsi256_si128(both);
}
template <class T> KF_INLINE vf load(const T* p, Full) {
  return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), T{});
}
template <class T> KF_INLINE vf load(const T* p, Tail t) {
  alignas(16) uint16_t few[8] = {};
  std::memcpy(few, p, size_t(t.n) * 2);
  return widen(_mm_load_si128(reinterpret_cast<const __m128i*>(few)), T{});
}
KF_INLINE void store(float* p, vf v, Full) { _mm256_storeu_ps(p, v); }
KF_INLINE void store(float* p, vf v, Tail t) { _mm256_maskstore_ps(p, lanes(t), v); }
KF_INLINE void stream(float* p, vf v, Full) { _mm256_stream_ps(p, v); }
template <class T> KF_INLINE void store(T* p, vf v, Full) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(v, T{}));
}
template <class T> KF_INLINE void store(T* p, vf v, Tail t) {
  alignas(16) uint16_t few[8];
  _mm_store_si128(reinterpret_cast<__m128i*>(few), narrow(v, T{}));
  std::memcpy(p, few, size_t(t.n) * 2);
}
template <class T> KF_INLINE void stream(T* p, vf v, Full) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), narrow(v, T{}));
}
KF_INLINE vf vmax(vf a, vf b) { return _mm256_max_ps(a, b); }
KF_INLINE vf vmin(vf a, vf b) { return _mm256_min_ps(a, b); }
KF_INLINE vf madd(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
KF_INLINE vf round_int(vf a) { return _mm256_round_ps(a, 8); }
KF_INLINE vf power2(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
KF_INLINE vf scale2(vf a, vf n) {  // in two steps, so that denormal results round once
  const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
  return a * power2(half) * power2(_mm256_sub_epi32(whole, half));
}
KF_INLINE vf vsqrt(vf a) { return _mm256_sqrt_ps(a); }
KF_INLINE vf over(vf x, vf d) { return x / d; }
KF_INLINE vf over_finite(vf x, vf d) { return x / d; }
KF_INLINE vf clip(vf x, float c) { return vmax(set(-c), vmin(set(c), x)); }
KF_INLINE vf bounded(vf t) { return vmin(set(130.0f), vmax(set(-152.0f), t)); }
KF_INLINE vf fraction(vf t) { return t - _mm256_round_ps(t, 9); }
KF_INLINE vf scale_floor(vf a, vf t) { return scale2(a, _mm256_round_ps(t, 9)); }
KF_INLINE vf pick_lt(vf a, vf b, vf yes, vf no) {
  return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
KF_INLINE vf vabs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
KF_INLINE vf keep(vf v, float, Full) { return v; }
KF_INLINE vf keep(vf v, float fill, Tail t) {
  return _mm256_blendv_ps(set(fill), v, _mm256_castsi256_ps(lanes(t)));
}
KF_INLINE float fold_add(vf v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
KF_INLINE float fold_max(vf v) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
KF_INLINE vf through(vf v, f16 t) { return widen(narrow(v, t), t); }
KF_INLINE vf through(vf v, bf16 t) { return widen(narrow(v, t), t); }
KF_INLINE void fence() { _mm_sfence(); }

#else
typedef float vf __attribute__((vector_size(16)));
static constexpr int W = 4;
#define KF_EACH for (int k = 0; k < W; ++k)
KF_INLINE vf set(float x) { return vf{x, x, x, x}; }
template <class T> KF_INLINE vf load(const T* p, Full) {
  vf v;
  KF_EACH v[k] = scalar(p[k]);
  return v;
}
template <class T> KF_INLINE vf load(const T* p, Tail t) {
  vf v = {};
  for (int k = 0; k < t.n; ++k) v[k] = scalar(p[k]);
  return v;
}
template <class T> KF_INLINE void store(T* p, vf v, Full) { KF_EACH put(p + k, v[k]); }
template <class T> KF_INLINE void store(T* p, vf v, Tail t) {
  for (int k = 0; k < t.n; ++k) put(p + k, v[k]);
}
template <class T> KF_INLINE void stream(T* p, vf v, Full all) { store(p, v, all); }
KF_INLINE vf vmax(vf a, vf b) { return a > b ? a : b; }
KF_INLINE vf vmin(vf a, vf b) { return a < b ? a : b; }
KF_INLINE vf madd(vf a, vf b, vf c) { return a * b + c; }
KF_INLINE vf round_int(vf a) { KF_EACH a[k] = std::nearbyint(a[k]); return a; }
KF_INLINE vf scale2(vf a, vf n) { KF_EACH a[k] = std::ldexp(a[k], int(n[k])); return a; }
KF_INLINE vf vsqrt(vf a) { KF_EACH a[k] = std::sqrt(a[k]); return a; }
KF_INLINE vf over(vf x, vf d) { return x / d; }
KF_INLINE vf over_finite(vf x, vf d) { return x / d; }
KF_INLINE vf clip(vf x, float c) { return vmax(set(-c), vmin(set(c), x)); }
KF_INLINE vf bounded(vf t) { return vmin(set(130.0f), vmax(set(-152.0f), t)); }
KF_INLINE vf whole(vf t) { KF_EACH t[k] = std::floor(t[k]); return t; }
KF_INLINE vf fraction(vf t) { return t - whole(t); }
KF_INLINE vf scale_floor(vf a, vf t) { return scale2(a, whole(t)); }
KF_INLINE vf pick_lt(vf a, vf b, vf yes, vf no) { return a < b ? yes : no; }
KF_INLINE vf vabs(vf a) { KF_EACH a[k] = std::fabs(a[k]); return a; }
KF_INLINE vf keep(vf v, float, Full) { return v; }
KF_INLINE vf keep(vf v, float fill, Tail t) {
  for (int k = t.n; k < W; ++k) v[k] = fill;
  return v;
}
KF_INLINE float fold_add(vf v) { return (v[0] + v[2]) + (v[1] + v[3]); }
KF_INLINE float fold_max(vf v) {
  const float a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
  return a > b ? a : b;
}
template <class T> KF_INLINE vf through(vf v, T) {
  T few[W];
  store(few, v, Full{});
  return load(few, Full{});
}
KF_INLINE void fence() {}
#endif

KF_INLINE float through(float x, f16) { f16 h; put(&h, x); return scalar(h); }
