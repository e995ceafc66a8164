"""What tests of the guard on a GPU share."""

from __future__ import annotations

from tests.cuda.conftest import gpu, nvrtc_cache

__all__ = ["gpu", "nvrtc_cache"]
