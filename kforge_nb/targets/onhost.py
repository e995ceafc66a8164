"""The same graph on the CPU, whatever devices it names: where a GPU's memory does not suffice.

A captured graph may hold constants that lie on the GPU and operators that are told to make their
tensors there. Both are taken to the CPU, one node at a time; dtypes stay as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

__all__ = ["OnHost", "to_host"]


class OnHost(fx.Interpreter):
    """Runs a graph on the CPU. A subclass may look at each node as it could at any other's."""

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[Any, Any]:
        """A node's arguments, on the CPU."""
        found: tuple[Any, Any] = pytree.tree_map(to_host, super().fetch_args_kwargs_from_env(n))
        return found

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A method; moving to a GPU by one of that name is not done."""
        return args[0] if target == "cuda" else super().call_method(target, args, kwargs)


def to_host(value: Any) -> Any:
    """A tensor moved, a device renamed, everything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value
