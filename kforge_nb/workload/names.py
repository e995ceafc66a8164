"""What the user calls a module: the variable it is in, or its path inside one."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

__all__ = ["name_in"]


def name_in(fn: Callable[..., Any], module: nn.Module) -> str:
    """``model``, ``vae.decoder`` … as ``fn`` sees it; the class name where it cannot be told."""
    owners = dict(_variables(fn))
    for inner in [v for v in owners.values() if isinstance(v, types.FunctionType)]:
        owners.update({k: v for k, v in _variables(inner) if k not in owners})
    for name, value in owners.items():
        if value is module:
            return name
    for name, value in owners.items():
        for owner in (value, *_attributes(value)):
            if isinstance(owner, nn.Module):
                path = next((p for p, m in owner.named_modules() if m is module and p), None)
                if path:
                    return f"{name}.{path}"
    return type(module).__name__


def _variables(fn: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    code = getattr(fn, "__code__", None)
    if code is None:
        owner = getattr(fn, "__self__", None)
        if owner is not None:
            yield type(owner).__name__.lower(), owner
        return
    for name, cell in zip(code.co_freevars, getattr(fn, "__closure__", None) or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # a variable that is not set yet
            continue
    space = getattr(fn, "__globals__", {})
    for name in code.co_names:
        if name in space:
            yield name, space[name]


def _attributes(value: Any) -> list[Any]:
    """Modules held by a plain object (a diffusers pipeline, a wrapper class)."""
    if isinstance(value, nn.Module) or not hasattr(value, "__dict__"):
        return []
    return [v for v in vars(value).values() if isinstance(v, nn.Module)]
