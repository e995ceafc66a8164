"""The judge: policy, correctness, timing and the isolated runner that executes candidates."""
