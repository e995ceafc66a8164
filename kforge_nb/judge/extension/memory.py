"""An extension worker's view of the regions that it shares with the judge, as tensors."""

from __future__ import annotations

import ctypes
import mmap
import os
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kforge_nb.judge.extension.ops import WrongOutput

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Memory", "Place", "plain"]


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor in a region: offset and size in bytes, dtype, shape and strides."""

    offset: int
    bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def of(self, flat: torch.Tensor, base: int = 0) -> torch.Tensor:
        """The tensor at this place of a flat uint8 tensor."""
        start = base + self.offset
        raw = flat[start : start + self.bytes].view(self.dtype)
        return raw.as_strided(self.shape, self.stride)


def _place(entry: dict[str, Any]) -> Place:
    return Place(
        entry["offset"],
        entry["bytes"],
        getattr(torch, entry["dtype"]),
        tuple(entry["shape"]),
        tuple(entry["stride"]),
    )


class Memory:
    """Checked inputs and timed slots (read-only), outputs (writable), and where tensors lie."""

    def __init__(self, start: dict[str, Any]) -> None:
        self.device = torch.device(start["device"])
        self._maps = [
            _map(descriptor, size, writable)
            for descriptor, size, writable in zip(
                start["regions"], start["bytes"], (False, False, True), strict=True
            )
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # inputs are read-only here, and meant to be
            self.inputs, self.timed, self.results = (
                torch.frombuffer(mapping, dtype=torch.uint8) for mapping in self._maps
            )
        self.last_words = ctypes.addressof(ctypes.c_char.from_buffer(self._maps[2]))
        self.input_places: list[Place] = []
        self.output_places: list[Place] = []
        self.slot_stride = self.slots = 0

    def bind(self, layout: dict[str, Any]) -> None:
        """Take the layouts that the judge laid out."""
        self.input_places = [_place(entry) for entry in layout["inputs"]]
        self.output_places = [_place(entry) for entry in layout["outputs"]]
        self.slot_stride, self.slots = layout["slot_stride"], layout["slots"]

    def views(self, flat: torch.Tensor, base: int = 0) -> list[torch.Tensor]:
        """The inputs at ``base`` of a flat tensor of slots."""
        return [place.of(flat, base) for place in self.input_places]

    def keep(self, outputs: Sequence[torch.Tensor]) -> None:
        """Copy a call's outputs to where the judge reads them."""
        for i, (place, tensor) in enumerate(zip(self.output_places, outputs, strict=True)):
            plain(i, tensor)
            if place.bytes:
                place.of(self.results).copy_(tensor)

    def check(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """Number, shape, strides, dtype, device and storage of outputs; raises WrongOutput."""
        if len(outputs) != len(self.output_places):
            raise WrongOutput(
                f"forward returned {len(outputs)} tensors where the target has "
                f"{len(self.output_places)} outputs"
            )
        taken = {t.untyped_storage().data_ptr() for t in inputs if t.numel()}
        for i, (place, got) in enumerate(zip(self.output_places, outputs, strict=True)):
            plain(i, got)
            same_place = all(
                n <= 1 or a == b
                for n, a, b in zip(place.shape, place.stride, got.stride(), strict=False)
            )
            if tuple(got.shape) != place.shape or got.dtype != place.dtype or not same_place:
                raise WrongOutput(
                    f"out{i} is {got.dtype} {tuple(got.shape)} with strides {got.stride()}, the "
                    f"target's is {place.dtype} {place.shape} with strides {place.stride}"
                )
            if got.device.type != self.device.type:
                raise WrongOutput(f"out{i} lives on {got.device}, the target on {self.device}")
            if got.numel() and got.untyped_storage().data_ptr() in taken:
                raise WrongOutput(f"out{i} shares its memory with an input")


def plain(number: int, tensor: torch.Tensor) -> None:
    """Raises WrongOutput where an output's numbers do not lie in memory yet, or may not.

    A tensor of a class of its own, or one that is to be conjugated or negated when it is read, can
    put its work off until somebody looks: after the clock has stopped.
    """
    known = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    if not known or tensor.is_conj() or tensor.is_neg():
        raise WrongOutput(
            f"out{number} is no plain tensor in memory ({type(tensor).__name__}, {tensor.layout}): "
            "what it holds may be computed when it is read"
        )


def _map(descriptor: int, size: int, writable: bool) -> mmap.mmap:
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    mapping = mmap.mmap(descriptor, size, prot=protection)
    os.close(descriptor)
    return mapping
