"""Copies into and out of fixed buffers: what a recorded CUDA graph reads and what it hands out.

A recorded graph reads and writes the same addresses on every replay. Inputs are copied into buffers
of its own; outputs are copied out at once, so that what a user holds never changes. Strides,
aliases between outputs, and outputs that are views of an input stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Handout", "buffer_like", "flat", "span", "storage_key"]


def span(tensor: torch.Tensor) -> int:
    """Elements from the first to the last of a strided tensor; 0 if it has none."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The memory that a tensor spans, as one row."""
    return tensor.as_strided((span(tensor),), (1,), tensor.storage_offset())


def storage_key(tensor: torch.Tensor) -> int:
    """Equal for tensors of one memory."""
    return int(tensor.untyped_storage()._cdata)


def buffer_like(tensor: torch.Tensor) -> torch.Tensor:
    """New memory with the sizes, strides and values of ``tensor``, and no gaps left undefined."""
    fresh = tensor.new_empty(span(tensor))
    fresh.copy_(flat(tensor))
    return fresh.as_strided(tensor.shape, tensor.stride())


@dataclass(frozen=True, slots=True)
class _View:
    """Where an output lies: in the copy of a group's memory, or in the memory of an input."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    group: int = -1
    given: int = -1


@dataclass(frozen=True, slots=True)
class _Whole:
    """An output that is all of a group's memory."""

    group: int


class Handout:
    """Makes a graph's outputs from the buffers that it writes to.

    Args:
        outputs: what the recorded run returned; anything but tensors is handed out as it is.
        inputs: what it ran on, buffers and pinned tensors alike.

    Raises:
        ValueError: outputs that cannot be copied so (shared memory read as several dtypes, pending
            conjugation or negation).
    """

    def __init__(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        self._items: list[Any] = list(outputs)
        self._sources: list[torch.Tensor] = []
        given = {storage_key(t): i for i, t in enumerate(inputs) if isinstance(t, torch.Tensor)}
        groups: dict[int, list[int]] = {}
        for place, value in enumerate(outputs):
            if isinstance(value, torch.Tensor):
                if value.is_conj() or value.is_neg():
                    raise ValueError("an output carries a pending conjugation or negation")
                groups.setdefault(storage_key(value), []).append(place)
        for key, places in groups.items():
            if key in given:
                self._alias(places, given[key], inputs[given[key]])
            else:
                self._copy(places)

    def _alias(self, places: Sequence[int], given: int, source: torch.Tensor) -> None:
        for place in places:
            view = self._items[place]
            if view.dtype != source.dtype:
                raise ValueError("an output is an input's memory read as another dtype")
            offset = view.storage_offset() - source.storage_offset()
            self._items[place] = _View(tuple(view.shape), view.stride(), int(offset), given=given)

    def _copy(self, places: Sequence[int]) -> None:
        """One copy of the memory from the first to the last element of these outputs."""
        views: list[torch.Tensor] = [self._items[place] for place in places]
        if len({view.dtype for view in views}) > 1:
            raise ValueError("outputs share memory that is read as several dtypes")
        group = len(self._sources)
        if len(views) == 1 and span(views[0]) == views[0].numel():
            self._sources.append(views[0])
            self._items[places[0]] = _Whole(group)
            return
        start = min(view.storage_offset() for view in views)
        end = max(view.storage_offset() + span(view) for view in views)
        self._sources.append(views[0].as_strided((end - start,), (1,), start))
        for place, view in zip(places, views, strict=True):
            offset = view.storage_offset() - start
            self._items[place] = _View(tuple(view.shape), view.stride(), int(offset), group=group)

    def make(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Outputs in memory of their own; those that alias an input are views of ``args``."""
        copies = [source.clone() for source in self._sources]
        return tuple(self._one(item, copies, args) for item in self._items)

    @staticmethod
    def _one(item: Any, copies: Sequence[torch.Tensor], args: Sequence[Any]) -> Any:
        if isinstance(item, _Whole):
            return copies[item.group]
        if not isinstance(item, _View):
            return item
        if item.given >= 0:
            base: torch.Tensor = args[item.given]
            return base.as_strided(item.shape, item.stride, base.storage_offset() + item.offset)
        return copies[item.group].as_strided(item.shape, item.stride, item.offset)
