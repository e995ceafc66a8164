"""A Triton kernel of our own: calling it once has Triton find its compilers and driver.

What Triton asks of other programs (versions, folders) it asks once in a process and remembers. A
worker lets it ask while that is still allowed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["probe"]


@triton.jit  # type: ignore[untyped-decorator]
def _one_more(x, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


def probe(device: torch.device) -> None:
    """Compile and run the kernel on a GPU."""
    values = torch.zeros(128, device=device)
    _one_more[(1,)](values, 128, 128)
    torch.cuda.synchronize(device)
