// Types and accesses that every kernel shares: 16-bit floats without headers, vectors of V floats.
// V, FAST and S (streaming stores) are constants or template arguments of the generated source.
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define KF_INLINE __device__ __forceinline__
#define KF_INNER __device__
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fc00000)

struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };

KF_INLINE float scalar(float x) { return x; }
KF_INLINE float scalar(bf16 x) { return __uint_as_float((uint32_t)x.bits << 16); }
KF_INLINE float scalar(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
KF_INLINE void put(float* p, float x) { *p = x; }
KF_INLINE void put(bf16* p, float x) {
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(p->bits) : "f"(x));
}
KF_INLINE void put(f16* p, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(p->bits) : "f"(x)); }
KF_INLINE uint32_t pair(bf16, float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
KF_INLINE uint32_t pair(f16, float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
KF_INLINE float low_half(bf16, uint32_t x) { return __uint_as_float(x << 16); }
KF_INLINE float high_half(bf16, uint32_t x) { return __uint_as_float(x & 0xffff0000u); }
KF_INLINE float low_half(f16, uint32_t x) {
  f16 h;
  h.bits = (uint16_t)x;
  return scalar(h);
}
KF_INLINE float high_half(f16, uint32_t x) {
  f16 h;
  h.bits = (uint16_t)(x >> 16);
  return scalar(h);
}

// How many elements of an access are there: all of them, or the first n.
struct All {};
struct Part { int n; };
KF_INLINE bool has(All, int) { return true; }
KF_INLINE bool has(Part p, int k) { return k < p.n; }

struct vf { float v[V]; };

KF_INLINE vf set(float x) {
  vf r;
#pragma unroll
  for (int k = 0; k < V; ++k) r.v[k] = x;
  return r;
}

// Global memory through the read-only cache (G), or shared memory.
template <bool G, class W> KF_INLINE W word(const W* p) {
  if constexpr (G) return __ldg(p);
  else return *p;
}
// Words of 4 bytes, in the widest accesses that the number allows.
template <int N, bool G = true> KF_INLINE void fetch(const void* p, uint32_t (&w)[N]) {
  if constexpr (N % 4 == 0) {
#pragma unroll
    for (int k = 0; k < N / 4; ++k) {
      const uint4 q = word<G>((const uint4*)p + k);
      w[4 * k] = q.x, w[4 * k + 1] = q.y, w[4 * k + 2] = q.z, w[4 * k + 3] = q.w;
    }
  } else if constexpr (N == 2) {
    const uint2 q = word<G>((const uint2*)p);
    w[0] = q.x, w[1] = q.y;
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) w[k] = word<G>((const uint32_t*)p + k);
  }
}
template <bool S, int N> KF_INLINE void send(void* p, const uint32_t (&w)[N]) {
  if constexpr (N % 4 == 0) {
#pragma unroll
    for (int k = 0; k < N / 4; ++k) {
      const uint4 q = make_uint4(w[4 * k], w[4 * k + 1], w[4 * k + 2], w[4 * k + 3]);
      if constexpr (S) __stcs((uint4*)p + k, q);
      else ((uint4*)p)[k] = q;
    }
  } else if constexpr (N == 2) {
    const uint2 q = make_uint2(w[0], w[1]);
    if constexpr (S) __stcs((uint2*)p, q);
    else *(uint2*)p = q;
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if constexpr (S) __stcs((uint32_t*)p + k, w[k]);
      else ((uint32_t*)p)[k] = w[k];
    }
  }
}

KF_INLINE uint16_t ldg16(const void* p) { return __ldg((const uint16_t*)p); }
KF_INLINE float one(const float* p) { return __ldg(p); }
template <class T> KF_INLINE float one(const T* p) {
  T x;
  x.bits = ldg16(p);
  return scalar(x);
}

template <class T, class L, bool G = true> KF_INLINE vf load(const T* p, L n) {
  vf r;
  if constexpr (sizeof(L) == sizeof(Part)) {
#pragma unroll
    for (int k = 0; k < V; ++k) r.v[k] = has(n, k) ? one(p + k) : 0.0f;
  } else if constexpr (sizeof(T) == 4) {
    uint32_t w[V];
    fetch<V, G>(p, w);
#pragma unroll
    for (int k = 0; k < V; ++k) r.v[k] = __uint_as_float(w[k]);
  } else if constexpr (V == 1) {
    r.v[0] = G ? one(p) : scalar(*p);
  } else {
    uint32_t w[V / 2 + (V == 1)];
    fetch<V / 2 + (V == 1), G>(p, w);
#pragma unroll
    for (int k = 0; k < V / 2; ++k) {
      r.v[2 * k] = low_half(T{}, w[k]);
      r.v[2 * k + 1] = high_half(T{}, w[k]);
    }
  }
  return r;
}

template <bool S, class T, class L> KF_INLINE void write(T* p, const vf& x, L n) {
  if constexpr (sizeof(L) == sizeof(Part) || (V == 1 && sizeof(T) == 2)) {
#pragma unroll
    for (int k = 0; k < V; ++k)
      if (has(n, k)) put(p + k, x.v[k]);
  } else if constexpr (sizeof(T) == 4) {
    uint32_t w[V];
#pragma unroll
    for (int k = 0; k < V; ++k) w[k] = __float_as_uint(x.v[k]);
    send<S, V>(p, w);
  } else {
    uint32_t w[V / 2 + (V == 1)];
#pragma unroll
    for (int k = 0; k < V / 2; ++k) w[k] = pair(T{}, x.v[2 * k], x.v[2 * k + 1]);
    send<S, V / 2 + (V == 1)>(p, w);
  }
}
template <class T> KF_INLINE void prefetch(const T*) {}
template <class T> KF_INLINE void bring(const T* p) {  // to the second-level cache, without waiting
  asm volatile("prefetch.global.L2 [%0];" : : "l"(p));
}

// A value as it looks after a trip through a 16-bit type.
KF_INLINE vf through(const vf& x, f16) {
  vf r;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    if (k % 2 == 0 && k + 1 < V) {  // two at once, for the price of one
      const uint32_t both = pair(f16{}, x.v[k], x.v[k + 1]);
      r.v[k] = low_half(f16{}, both);
      r.v[k + 1] = high_half(f16{}, both);
    } else if (k % 2 == 0) {
      f16 h;
      put(&h, x.v[k]);
      r.v[k] = scalar(h);
    }
  }
  return r;
}
