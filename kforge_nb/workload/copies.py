"""Copies of tensors that keep what matters: strides, gradients wanted, and shared storages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch

__all__ = ["Copier", "compact_copy"]


class Copier:
    """Copies tensors out of one known collection.

    Tensors of the collection that share a storage share one in the copies too; a tensor alone on
    its storage is copied by its extent only, so a slice of a large storage stays small.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        distinct = {id(t): t for t in tensors}
        self._sharing = Counter(_key(t) for t in distinct.values())
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._copies: dict[int, torch.Tensor] = {}
        self._kept: list[torch.Tensor] = list(distinct.values())

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """The copy of one tensor, detached from autograd; the same copy for the same tensor."""
        known = self._copies.get(id(tensor))
        if known is not None:
            return known
        # A copy made under inference mode would be an inference tensor, which Dynamo guards tell
        # from the user's own, so that what was compiled for one is compiled again for the other.
        with torch.inference_mode(tensor.is_inference()):
            source = tensor.detach()
            plain = source.layout is torch.strided and not source.is_nested
            shared = plain and self._sharing[_key(tensor)] > 1
            result = self._on_shared(source) if shared else compact_copy(source)
            if tensor.requires_grad:
                result.requires_grad_()
        self._copies[id(tensor)] = result
        self._kept.append(tensor)
        return result

    def _on_shared(self, source: torch.Tensor) -> torch.Tensor:
        key = _key(source)
        if key not in self._storages:
            self._storages[key] = source.untyped_storage().clone()
        empty = torch.empty(0, dtype=source.dtype, device=source.device)
        return empty.set_(
            self._storages[key], source.storage_offset(), source.size(), source.stride()
        )


def _key(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def compact_copy(source: torch.Tensor) -> torch.Tensor:
    """A copy with the same sizes and strides that holds no more than the tensor reaches over."""
    if source.is_nested or source.layout is not torch.strided or source.numel() == 0:
        return source.clone()
    pairs = zip(source.shape, source.stride(), strict=True)
    extent = 1 + sum((n - 1) * s for n, s in pairs)
    flat = source.as_strided((extent,), (1,), source.storage_offset()).clone()
    return flat.as_strided(tuple(source.shape), tuple(source.stride()), 0)
