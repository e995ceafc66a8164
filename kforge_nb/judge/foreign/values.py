"""Arguments that are no tensors, as plain JSON: what travels between the processes of a judgement.

Numbers, text, None, and lists, tuples and dicts of those. Nothing else: no object is ever rebuilt
from what another process says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kforge_nb.errors import BadInput, DocumentError

__all__ = ["decode", "encode"]

_DEPTH = 16


def encode(value: Any, tensor: Callable[[Any], int | None] = lambda _: None) -> Any:
    """A value as JSON; ``tensor`` says which number a tensor has (None: it is no tensor).

    Raises:
        BadInput: something in it is neither a tensor nor plain.
    """
    number = tensor(value)
    if number is not None:
        return {"tensor": number}
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [encode(v, tensor) for v in value]}
    if isinstance(value, dict) and all(isinstance(k, str) for k in value):
        return {"dict": {k: encode(v, tensor) for k, v in value.items()}}
    text = str(value)
    if text.startswith("torch.") and type(value).__name__ == "dtype":
        return {"dtype": text.removeprefix("torch.")}
    raise BadInput(
        f"an argument of type {type(value).__name__} cannot be handed on; tensors, numbers, text, "
        "dtypes, and lists, tuples and dicts of them can"
    )


def decode(
    value: Any, tensor: Callable[[int], Any] | None = None, dtype: Callable[[str], Any] = str,
    depth: int = 0,
) -> Any:  # fmt: skip
    """Inverse of :func:`encode`; raises DocumentError for anything else."""
    if value is None or isinstance(value, bool | str | int | float):
        return value
    if depth > _DEPTH or not isinstance(value, dict) or len(value) != 1:
        raise DocumentError(f"an argument that is none: {value!r:.80}")
    ((kind, body),) = value.items()
    if kind == "tensor" and tensor is not None and isinstance(body, int):
        return tensor(body)
    if kind == "float" and body in ("inf", "-inf", "nan"):
        return float(body)
    if kind == "dtype" and isinstance(body, str):
        return dtype(body)
    if kind in ("list", "tuple") and isinstance(body, list):
        items = [decode(v, tensor, dtype, depth + 1) for v in body]
        return items if kind == "list" else tuple(items)
    if kind == "dict" and isinstance(body, dict):
        return {str(k): decode(v, tensor, dtype, depth + 1) for k, v in body.items()}
    raise DocumentError(f"an argument that is none: {value!r:.80}")
