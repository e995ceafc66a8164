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
KF_INLINE vf vexp_falling(vf x) { return exp_reduced(vmax(set(-105.0f), x)); }  // x <= 0 or NaN

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

// The share of a standard normal above z >= 0: exp(-z^2/2) g(1 / (1 + 0.3 z)), error of g 5.8e-8.
KF_INLINE vf normal_tail(vf z) {
  const vf t = over(set(1.0f), madd(set(0.3f), z, set(1.0f)));
  vf g = set(3.840738084e-02f);
  g = madd(g, t, set(-1.693074114e-01f));
  g = madd(g, t, set(2.289516895e-01f));
  g = madd(g, t, set(-7.683957397e-02f));
  g = madd(g, t, set(1.427652230e-01f));
  g = madd(g, t, set(9.458588198e-02f));
  g = madd(g, t, set(1.219452591e-01f));
  g = madd(g, t, set(1.194842076e-01f));
  g = madd(g, t, set(7.372368916e-06f));
  return g * vexp_falling(set(-0.5f) * z * z);
}
// NaN at both infinities, as torch's vectorised erf has it; gelu_limit keeps +infinity.
KF_INLINE vf gelu(vf x) { return relu(x) - vabs(x) * normal_tail(vabs(x)); }
KF_INLINE vf gelu_limit(vf x) {
  const vf tail = normal_tail(vabs(x));
  return x * pick_lt(x, set(0.0f), tail, set(1.0f) - tail);
}
KF_INLINE vf gelu_tanh(vf x) {
  // x (1 + tanh u) / 2 = x / (1 + exp(-2u)): no cancellation where tanh is near -1.
  const vf u = x * madd(x * x, set(-2.0f * 0.7978845608f * 0.044715f), set(-2.0f * 0.7978845608f));
  return over(x, set(1.0f) + vexp(u));
}
