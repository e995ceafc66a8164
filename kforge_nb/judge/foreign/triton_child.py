"""The process in which a candidate's Triton kernels are compiled, before a confined one runs them.

Triton compiles when a kernel is first called, by starting compilers, which no worker may do. So the
file is first executed here and called once on random values, in a private folder that holds
Triton's cache, without network and without any file but what compilers need. What it computes is
thrown away; only the cache is kept, and the worker finds its kernels there.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

__all__ = ["main"]


def _values(start: dict[str, Any]) -> list[Any]:
    """Random tensors that look like the target's inputs."""
    import torch

    made = []
    for shape, stride, dtype in start["inputs"]:
        kind = getattr(torch, dtype)
        tensor = torch.empty_strided(shape, stride, dtype=kind, device=start["device"])
        made.append(tensor.normal_() if kind.is_floating_point else tensor.zero_())
    return made


def main() -> None:
    """Confine, load, call once."""
    start = json.loads(sys.argv[1])
    os.environ["TRITON_CACHE_DIR"] = start["cache"]
    import torch

    from kforge_nb.judge.foreign.loading import Extensions, load_callee
    from kforge_nb.judge.foreign.triton_probe import probe

    device = torch.device(start["device"])
    probe(device)
    library = ctypes.CDLL(start["confine"])
    library.kforge_confine_compiling("\n".join(start["files"]).encode())
    told = start["foreign"]
    told["text"] = Path(told["source"]).read_text(encoding="utf-8")
    extensions = Extensions(told["libraries"])
    extensions.install()
    callee, _ = load_callee(told, device, extensions)
    with torch.inference_mode():
        for _ in range(2):
            callee(_values(start))
    torch.cuda.synchronize()
