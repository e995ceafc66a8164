"""Shared memory that a process copies to its device again and again, page-locked if it can be.

Copies from ordinary memory go through a buffer of the driver's, at the speed of one core. What the
driver does not lock (it may not know how to, for memory of this kind) is copied as ever.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import lru_cache
from typing import Any

import torch

__all__ = ["Pinned"]

_PORTABLE, _READ_ONLY = 1, 8
_WORTH = 4 << 20  # bytes; below that it takes longer than it saves


@lru_cache(maxsize=1)
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


class Pinned:
    """``nbytes`` bytes from ``address`` on, locked for a device of torch's until released.

    The driver is asked, not the CUDA runtime: a runtime that refuses would tell torch's next call
    of it. ``locked`` says whether it took hold.

    Args:
        address: of mapped memory.
        nbytes: its size.
        device: a torch name such as ``cuda:0``.
        read_only: it is mapped for reading alone.
    """

    def __init__(
        self, address: int, nbytes: int, device: str | torch.device, read_only: bool = False
    ) -> None:
        self._address, self._device = address, torch.device(device)
        flags = _PORTABLE | (_READ_ONLY if read_only else 0)
        self.locked = nbytes >= _WORTH and self._asked(
            "cuMemHostRegister_v2",
            ctypes.c_void_p(address),
            ctypes.c_size_t(nbytes),
            ctypes.c_uint(flags),
        )

    def release(self) -> None:
        """Unlock it. Safe to call twice; before the memory is unmapped."""
        if self.locked:
            self.locked = False
            self._asked("cuMemHostUnregister", ctypes.c_void_p(self._address))

    def _asked(self, name: str, *arguments: Any) -> bool:
        """Whether the driver did it, with torch's context current in this thread."""
        with suppress(OSError, AttributeError, RuntimeError), torch.cuda.device(self._device):
            torch.cuda.synchronize(self._device)
            return int(getattr(_driver(), name)(*arguments)) == 0
        return False
