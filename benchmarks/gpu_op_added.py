"""Operators added to the GPU table after its list was fixed, with the recipes that they belong to.

The list of :mod:`gpu_op_cases` stays as it was committed before any kernel was tuned; what stands
here are the native operators of the same models that had no recipe then, at the models' sizes.
"""

from __future__ import annotations

from typing import Any

from benchmarks.gpu_op_cases import CASES, SIZES, Case, moved_bytes

__all__ = ["ADDED", "ALL", "least_bytes"]

BF, FULL = "bfloat16", "float32"


def least_bytes(case: Case, target: Any) -> int:
    """The least that has to move; of a ``table`` only as many bytes as are answered."""
    total = moved_bytes(target)
    answered = moved_bytes(target) - sum(_size(s) for s in target.inputs)
    for (_, _, layout), spec in zip(case.inputs, target.inputs, strict=True):
        if layout == "table":
            total += answered - _size(spec)
    return total


def _size(spec: Any) -> int:
    size = SIZES[spec.dtype]
    for count, stride in zip(spec.shape, spec.stride, strict=True):
        size *= count if stride else 1
    return size


def embedding(ids: Any, table: Any) -> Any:
    import torch

    return torch.nn.functional.embedding(ids, table)


def scaled_embedding(ids: Any, table: Any) -> Any:
    return embedding(ids, table) * 39.1918359


def short_conv(x: Any, w: Any) -> Any:
    """The delta rule's convolution, on what a linear layer left dense along the channels."""
    import torch

    return torch.nn.functional.conv1d(x.transpose(1, 2), w, padding=3, groups=8192)


def causal_conv(x: Any, w: Any) -> Any:
    import torch

    return torch.nn.functional.silu(short_conv(x, w)[:, :, :1024])


def causal_conv_rows(x: Any, w: Any) -> Any:
    import torch

    f = torch.nn.functional
    return f.silu(f.conv1d(x, w, padding=3, groups=8192)[:, :, :1024])


def pad_chunks(x: Any) -> Any:
    import torch

    return torch.nn.functional.pad(x, (0, 0, 0, 24))


def pairwise_decay(one: Any, other: Any, mask: Any, keys: Any, scores: Any) -> Any:
    """Both decayed products of a chunk of the delta rule."""
    decay = (one - other).masked_fill(mask > 0, float("-inf")).exp()
    return keys * decay, scores * decay


def state_update(state: Any, decay: Any, update: Any) -> Any:
    return state * decay.exp() + update


def _case(name: str, model: str, fn: Any, *inputs: tuple[Any, ...]) -> Case:
    return Case(name, model, fn, tuple((e[0], e[1], e[2] if len(e) > 2 else "") for e in inputs))


ADDED: tuple[Case, ...] = (
    _case("embedding 1024 of 262144x1536", "gemma", embedding,
          ((1, 1024), "int64", "ids:262144"), ((262144, 1536), BF, "table")),
    _case("embedding x scale 1024 of 262144x1536", "gemma", scaled_embedding,
          ((1, 1024), "int64", "ids:262144"), ((262144, 1536), BF, "table")),
    _case("embedding 1024 of 248320x2048", "qwen", embedding,
          ((1, 1024), "int64", "ids:248320"), ((248320, 2048), BF, "table")),
    _case("embedding decode 1 of 248320x2048", "qwen", embedding,
          ((1, 1), "int64", "ids:248320"), ((248320, 2048), BF, "table")),
    _case("conv1d depthwise 8192x1024", "qwen", short_conv,
          ((1, 1024, 8192), BF), ((8192, 1, 4), BF)),
    _case("causal conv1d silu 8192x1024", "qwen", causal_conv,
          ((1, 1024, 8192), BF), ((8192, 1, 4), BF)),
    _case("causal conv1d silu rows 8192x1024", "qwen", causal_conv_rows,
          ((1, 8192, 1024), BF), ((8192, 1, 4), BF)),
    _case("pad 32x1000x128 to 1024", "qwen", pad_chunks, ((1, 32, 1000, 128), FULL)),
    _case("delta rule decays 32x16x64x64", "qwen", pairwise_decay,
          ((1, 32, 16, 64, 1), FULL), ((1, 32, 16, 1, 64), FULL), ((64, 64), FULL),
          ((1, 32, 16, 64, 64), FULL), ((1, 32, 16, 64, 64), FULL)),
    _case("delta rule state 32x128x128", "qwen", state_update,
          ((1, 32, 128, 128), FULL), ((1, 32, 1, 1), FULL), ((1, 32, 128, 128), FULL)),
)  # fmt: skip
ALL: tuple[Case, ...] = (*CASES, *ADDED)
"""The whole table: the fixed list, then what was added."""
