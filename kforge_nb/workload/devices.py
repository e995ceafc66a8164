"""Which devices a workload lives on, and what is said where it is more than one.

Targets are judged on one device, so a run needs to know the one that matters: where most of the
weights are. A model half on the CPU or split over GPUs is a fact to tell, not an error of the
profile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch.utils import _pytree as pytree

from kforge_nb.errors import BadInput

if TYPE_CHECKING:
    from kforge_nb.workload.capture import Workload

__all__ = ["bytes_by_device", "free_bytes", "gpus_of", "main_device", "memory_told", "split_note"]


def bytes_by_device(workload: Workload) -> dict[str, int]:
    """Bytes of parameters and buffers by device, most first; without any, of tensor arguments."""
    found: Counter[str] = Counter()
    for module in workload.modules:
        for tensor in (*module.parameters(), *module.buffers()):
            found[str(tensor.device)] += tensor.numel() * tensor.element_size()
    if not found:
        for call in workload.calls:
            for leaf in pytree.tree_leaves((call.args, call.kwargs)):
                if isinstance(leaf, torch.Tensor):
                    found[str(leaf.device)] += leaf.numel() * leaf.element_size()
    return dict(found.most_common())


def main_device(workload: Workload) -> str:
    """Where most of the weights are, such as ``cuda:0``; a GPU before the CPU; else ``cpu``."""
    found = bytes_by_device(workload)
    on_gpu = [device for device in found if device.startswith("cuda")]
    return next(iter(on_gpu), next(iter(found), "cpu"))


def gpus_of(workload: Workload) -> list[str]:
    """The GPUs that hold weights, most bytes first."""
    return [device for device in bytes_by_device(workload) if device.startswith("cuda")]


def split_note(workload: Workload) -> str | None:
    """One sentence where weights lie on several devices (tables of a few bytes are no split)."""
    found = bytes_by_device(workload)
    total = sum(found.values())
    large = {device: size for device, size in found.items() if size * 100 >= total and size}
    if len(large) < 2:
        return None
    told = ", ".join(f"{size / 1e6:.1f} MB on {device}" for device, size in large.items())
    return (
        f"the weights lie on several devices ({told}); kernels are written for "
        f"{main_device(workload)} only, so move the model there whole to have all of it optimised"
    )


@contextmanager
def memory_told(doing: str) -> Iterator[None]:
    """Turn a GPU's lack of memory in the body into BadInput that says what was being done."""
    told = None
    try:
        yield
    except torch.OutOfMemoryError as error:
        told = str(error).strip().split(". ")[0]
    if told is not None:
        torch.cuda.empty_cache()
        raise BadInput(
            f"the GPU's memory did not suffice for {doing} ({told}); delete tensors that are not "
            "needed (and call torch.cuda.empty_cache()), or use a smaller input. The model is as "
            "it was"
        )


def free_bytes(device: str) -> int:
    """Bytes that this process may still allocate on a GPU: free ones and torch's own reserve.

    A share that the user gave this process (``set_per_process_memory_fraction``) is kept to.
    """
    free, whole = torch.cuda.mem_get_info(device)
    used = torch.cuda.memory_allocated(device)
    mine = free + torch.cuda.memory_reserved(device) - used
    if not torch.cuda.is_initialized():
        return mine
    share = torch.cuda.get_per_process_memory_fraction(device)
    return max(0, min(mine, int(share * whole) - used))
