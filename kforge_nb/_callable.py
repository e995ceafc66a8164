"""Lets a module be called, for the two names that are both a module and a public function.

``kforge_nb.profile(fn)`` is the public function while ``kforge_nb.profile`` is also the package
that holds it; importing the package rebinds the name on its parent. A module that passes calls on
to the function keeps both spellings right, whatever was imported first.
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["make_callable"]


def make_callable(module_name: str, home: str, function: str) -> None:
    """Calling the module named ``module_name`` calls ``home.function`` from now on."""

    class CallableModule(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(import_module(home), function)(*args, **kwargs)

        @property
        def __signature__(self) -> inspect.Signature:
            return inspect.signature(getattr(import_module(home), function))

    sys.modules[module_name].__class__ = CallableModule
