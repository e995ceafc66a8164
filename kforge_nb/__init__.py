"""Kernel Forge for notebooks: faster kernels for a PyTorch model, installed only where they win.

The names below are the whole public API. Each is imported when it is first used, so that
``import kforge_nb`` and ``%load_ext kforge_nb`` cost milliseconds and load neither torch nor
IPython.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kforge_nb.api import doctor, judge_file, load_run, optimize, profile, resume, runs
    from kforge_nb.run.handle import Run

    __version__: str

__all__ = [
    "Run",
    "__version__",
    "doctor",
    "judge_file",
    "load_ipython_extension",
    "load_run",
    "optimize",
    "profile",
    "resume",
    "runs",
    "unload_ipython_extension",
]

_CALLABLE_MODULES = frozenset({"profile", "doctor"})
_HOMES = {
    "judge_file": "kforge_nb.api",
    "optimize": "kforge_nb.api",
    "load_run": "kforge_nb.api",
    "resume": "kforge_nb.api",
    "runs": "kforge_nb.api",
    "Run": "kforge_nb.run.handle",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("kforge-nb")
    elif name in _CALLABLE_MODULES:  # both a room and a function, see _callable
        return import_module(f"kforge_nb.{name}")
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'kforge_nb' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted(__all__)


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext kforge_nb``: registers %kforge, %%kforge and ``%config KForge``."""
    from kforge_nb.magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext kforge_nb``: takes the magics and the configuration away again."""
    from kforge_nb.magics import unload

    unload(shell)
