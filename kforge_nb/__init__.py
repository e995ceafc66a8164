"""Kernel Forge for notebooks: faster kernels for a PyTorch model, judged, guarded, and installed only where they win."""
