// exp, sigmoid, tanh, the normal distribution and what activations need of them. Polynomials are
// our own minimax fits; the comments give their relative error before rounding.
KF_INLINE vf exp_reduced(vf x) {
  const vf n = round_int(x * set(1.44269504088896f));
  vf r = madd(n, set(-0.693145751953125f), x);
  r = madd(n, set(-1.42860677e-6f), r);
  vf q = set(1.381314460e-03f);  // (exp(r) - 1 - r) / r^2 on |r| <= 0.35, error 3.3e-9
  q = madd(q, r, set(8.369418934e-03f));
  q = madd(q, r, set(4.166845679e-02f));
  q = madd(q, r, set(1.666651479e-01f));
  q = madd(q, r, set(4.999999305e-01f));
  return scale2(madd(r * r, q, r) + set(1.0f), n);
}
// NaN passes (it is the second operand), the ends give 0 and infinity through scale2.
KF_INLINE vf vexp(vf x) { return exp_reduced(vmin(set(90.0f), vmax(set(-105.0f), x))); }

// 2^t, with the fraction of t in [0, 1); error 7.5e-8, and that of t times ln 2.
KF_INLINE vf vexp2(vf t) {
  t = bounded(t);
  const vf r = fraction(t);
  vf q = set(1.877576674e-03f);
  q = madd(q, r, set(8.989340093e-03f));
  q = madd(q, r, set(5.582631805e-02f));
  q = madd(q, r, set(2.401536170e-01f));
  q = madd(q, r, set(6.931530732e-01f));
  return scale_floor(madd(q, r, set(9.999999251e-01f)), t);
}
// exp for sums and quotients over a row whose largest x is 0: cheaper, and good to |x| 2^-24.
KF_INLINE vf vexp_falling(vf x) { return vexp2(x * set(1.44269504088896f)); }

KF_INLINE vf sigmoid(vf x) { return over(set(1.0f), set(1.0f) + vexp(-x)); }
KF_INLINE vf silu(vf x) { return over(x, set(1.0f) + vexp(-x)); }
KF_INLINE vf relu(vf x) { return pick_lt(x, set(0.0f), set(0.0f), x); }  // NaN stays NaN

KF_INLINE vf vtanh(vf x) {
  const vf z = vabs(x);
  const vf e = vexp(set(-2.0f) * z);
  const vf big = (set(1.0f) - e) / (set(1.0f) + e);
  const vf s = x * x;  // near zero the quotient loses digits: odd series, error 2e-8 to 0.3
  vf q = set(-8.863235e-3f);
  q = madd(q, s, set(2.186948e-2f));
  q = madd(q, s, set(-5.396825e-2f));
  q = madd(q, s, set(1.3333333e-1f));
  q = madd(q, s, set(-3.3333333e-1f));
  const vf small = madd(x * s, q, x);
  const vf signedbig = pick_lt(x, set(0.0f), -big, big);
  return pick_lt(z, set(0.3f), small, signedbig);
}

// Phi(x), the share of a standard normal below x, is 1/2 + x P(x^2) / Q(x^2) for |x| <= 5.5 (error
// of x Phi(x) 2.2e-8). Further out the quotient passes 1/2 and is held where it has done so.
// NaN at both infinities, as torch's vectorised erf has it; gelu_limit keeps +infinity.
KF_INLINE vf normal_below(vf x, vf half) {
  const vf z = clip(x, 5.741f), s = z * z;
  vf p = set(2.222161655e-08f);
  p = madd(p, s, set(6.514139841e-06f));
  p = madd(p, s, set(1.819425670e-04f));
  p = madd(p, s, set(4.756332375e-03f));
  p = madd(p, s, set(3.506256640e-02f));
  p = madd(p, s, set(3.989420533e-01f));
  vf q = set(1.194283300e-06f);
  q = madd(q, s, set(7.825568173e-05f));
  q = madd(q, s, set(1.957531320e-03f));
  q = madd(q, s, set(2.935178205e-02f));
  q = madd(q, s, set(2.545528114e-01f));
  q = madd(q, s, set(1.0f));
  return vmax(set(0.0f), over_finite(z * p, q) + half);
}
KF_INLINE vf gelu(vf x) { return x * normal_below(x, madd(x, set(0.0f), set(0.5f))); }
KF_INLINE vf gelu_limit(vf x) { return x * normal_below(x, set(0.5f)); }
KF_INLINE vf gelu_tanh(vf x) {
  // x (1 + tanh u) / 2 = x / (1 + exp(-2u)): no cancellation where tanh is near -1. Below 2^-53 the
  // share is 0, as it is in double precision.
  constexpr float c = -2.0f * 0.7978845608f * 1.44269504088896f;
  const vf t = x * madd(x * x, set(c * 0.044715f), set(c));
  const vf share = over_finite(set(1.0f), set(1.0f) + vexp2(t));
  return x * pick_lt(set(53.0f), t, set(0.0f), share);
}
