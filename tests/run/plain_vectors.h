// The vector intrinsics of one recorded kernel, written in the compiler's own vectors, so that the
// same statements are compiled and judged on a CPU without AVX-512.
#include <cstring>

typedef float __m512 __attribute__((vector_size(64)));
typedef int32_t __m512i __attribute__((vector_size(64)));
typedef uint32_t unsigned16 __attribute__((vector_size(64)));
#define _MM_HINT_T0 3

static inline void _mm_prefetch(const char*, int) {}
static inline __m512i _mm512_set1_epi32(int32_t a) { return __m512i{} + a; }
static inline __m512 _mm512_set1_ps(float a) { return __m512{} + a; }
static inline __m512 _mm512_setzero_ps() { return __m512{}; }
static inline __m512 _mm512_castsi512_ps(__m512i a) { return (__m512)a; }
static inline __m512i _mm512_castps_si512(__m512 a) { return (__m512i)a; }
static inline __m512i _mm512_slli_epi32(__m512i a, unsigned n) { return a << (int32_t)n; }
static inline __m512i _mm512_srai_epi32(__m512i a, unsigned n) { return a >> (int32_t)n; }
static inline __m512i _mm512_srli_epi32(__m512i a, unsigned n) {
  return (__m512i)((unsigned16)a >> n);
}
static inline __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }
static inline __m512i _mm512_or_si512(__m512i a, __m512i b) { return a | b; }
static inline __m512i _mm512_add_epi32(__m512i a, __m512i b) {
  return (__m512i)((unsigned16)a + (unsigned16)b);
}
static inline __m512 _mm512_add_ps(__m512 a, __m512 b) { return a + b; }
static inline __m512 _mm512_mul_ps(__m512 a, __m512 b) { return a * b; }
static inline __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) { return a * b + c; }
static inline __m512i _mm512_ternarylogic_epi32(__m512i a, __m512i b, __m512i c, int) {
  return a | (b & c);  // 0xF8, the only table that is asked for
}
static inline float _mm512_reduce_add_ps(__m512 a) {
  float sum = 0.0f;
  for (int i = 0; i < 16; ++i) sum += a[i];
  return sum;
}
static inline __m512i _mm512_loadu_si512(const void* p) {
  __m512i a;
  std::memcpy(&a, p, sizeof(a));
  return a;
}
static inline void _mm512_storeu_si512(void* p, __m512i a) { std::memcpy(p, &a, sizeof(a)); }
