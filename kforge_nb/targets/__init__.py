"""Targets: cutting captured graphs, aliasing, fingerprints, captured inputs, float64 reference."""
