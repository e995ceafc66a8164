// Element types of tensors and the tag types that say how many lanes of a vector count.
// Every kernel of this folder is written once against these few names; KF_ISA picks the machine:
// 512 (AVX-512 F/BW/DQ/VL), 256 (AVX2, FMA, F16C) or 0 (any compiler, any CPU).
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#if KF_ISA > 0
#include <immintrin.h>
#endif

#define KF_INLINE static inline __attribute__((always_inline))
#define KF_INNER __attribute__((always_inline))

struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };

// The number of lanes in use: all of them, or the first n.
struct Full { static constexpr bool full = true; };
struct Tail { static constexpr bool full = false; int n; };

KF_INLINE float from_bits(uint32_t u) { float f; std::memcpy(&f, &u, 4); return f; }
KF_INLINE uint32_t to_bits(float f) { uint32_t u; std::memcpy(&u, &f, 4); return u; }

KF_INLINE float scalar(float x) { return x; }
KF_INLINE float scalar(bf16 x) { return from_bits(uint32_t(x.bits) << 16); }
KF_INLINE float scalar(f16 h) {
  const uint32_t sign = uint32_t(h.bits & 0x8000) << 16, rest = uint32_t(h.bits & 0x7fff) << 13;
  if (rest >= 0x0f800000u) return from_bits(sign | rest | 0x7f800000u);
  return from_bits(sign | to_bits(from_bits(rest) * 0x1p112f));
}

KF_INLINE void put(float* p, float x) { *p = x; }
KF_INLINE void put(bf16* p, float x) {
  uint32_t u = to_bits(x);
  p->bits = x != x ? 0x7fc0 : uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
KF_INLINE void put(f16* p, float x) {
  const uint32_t u = to_bits(x), sign = (u >> 16) & 0x8000u;
  float a = std::fabs(x);
  uint32_t half;
  if (x != x) half = 0x7e00u;
  else if (a >= 65520.0f) half = 0x7c00u;
  else if (a < 0x1p-14f) half = to_bits(a + 0.5f) - 0x3f000000u;  // the add rounds to 2^-24
  else {
    const uint32_t v = to_bits(a);
    half = (v - 0x38000000u + 0xfffu + ((v >> 13) & 1u)) >> 13;
  }
  p->bits = uint16_t(sign | half);
}
