"""``torch.compile`` for this package: ``dynamic=False`` in several threads at once, and no leak.

``torch.compile(…, dynamic=False)`` changes two settings of Dynamo on the way into each call, and
puts back on the way out what it found. Where settings are one for the process (torch 2.11; in 2.13
each thread has its own), a call that begins while another thread is inside finds the changed ones
and leaves them behind: from then on sizes never turn symbolic, and every new shape is a compile of
its own until the recompile limit. Here the last call out puts back what the first one found.

Torch also keeps every backend that was ever given to it, to call its ``reset`` on
``torch._dynamo.reset()``. Ours have none, and hold graphs with a model's weights: they are taken
off that list, so that a model that was profiled, or applied to and undone, can be freed.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["compiled"]


def compiled(
    entry: Callable[..., Any],
    backend: Callable[..., Any],
    dynamic: bool | None,
    *,
    fullgraph: bool = False,
) -> Callable[..., Any]:
    """As ``torch.compile(entry, backend=backend, dynamic=dynamic, fullgraph=fullgraph)``."""
    plain = dynamic is not False or _settings_per_thread()
    known: dict[str, Any] = {"dynamic": dynamic} if plain else {}
    inner: Callable[..., Any] = torch.compile(entry, backend=backend, fullgraph=fullgraph, **known)
    _let_go(backend)
    if plain:
        return inner

    @functools.wraps(entry)
    def fixed(*args: Any, **kwargs: Any) -> Any:
        with _inside:
            return inner(*args, **kwargs)

    return fixed


def _let_go(backend: Callable[..., Any]) -> None:
    """Take a backend, or torch's wrapper around it, off the list of those that torch keeps."""
    kept: dict[int, Any] = torch._dynamo.eval_frame.cached_backends
    for key, value in list(kept.items()):
        if value is backend or getattr(value, "compiler_fn", None) is backend:
            del kept[key]


@functools.cache
def _settings_per_thread() -> bool:
    """Whether a change of Dynamo's settings in one thread is unseen by others."""
    config: Any = torch._dynamo.config
    known = config._config["automatic_dynamic_shapes"].user_override
    return isinstance(known, contextvars.ContextVar)


class _Inside:
    """While any thread is inside, sizes are fixed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._change: Callable[[], Callable[[], None]] | None = None
        self._revert: Callable[[], None] | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._threads == 0:
                if self._change is None:
                    config: Any = torch._dynamo.config
                    self._change = config._make_closure_patcher(
                        automatic_dynamic_shapes=False, assume_static_by_default=True
                    )
                self._revert = self._change()
            self._threads += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._threads -= 1
            if self._threads == 0 and self._revert is not None:
                self._revert()


_inside = _Inside()
