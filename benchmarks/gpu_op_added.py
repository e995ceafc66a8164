"""Operators added to the GPU table after its list was fixed, with the recipes that they belong to.

The list of :mod:`gpu_op_cases` stays as it was committed before any kernel was tuned; what stands
here are the native operators of the same models that had no recipe then, at the models' sizes, and
regions of the two convolution models as they are where their graphs are laid out channels-last.
"""

from __future__ import annotations

from typing import Any

from benchmarks.gpu_op_cases import (
    CASES,
    SIZES,
    Case,
    batch_norm_add_relu,
    batch_norm_relu,
    group_norm_silu,
    moved_bytes,
)

__all__ = ["ADDED", "ALL", "LAID_OUT", "least_bytes"]

BF, HALF, FULL = "bfloat16", "float16", "float32"


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


def turn(x: Any) -> Any:
    """What stands before a convolution of a graph laid out channels-last."""
    import torch

    return x.contiguous(memory_format=torch.channels_last)


def norm_turn(x: Any, w: Any, b: Any) -> Any:
    return turn(group_norm_silu(x, w, b))


def bias_norm_turn(x: Any, c: Any, w: Any, b: Any) -> Any:
    """With the bias of the convolution before it."""
    return turn(group_norm_silu(x + c, w, b))


def bias_residual(x: Any, c: Any, y: Any) -> Any:
    return (y + (x + c)) / 1.0


def _case(name: str, model: str, fn: Any, *inputs: tuple[Any, ...]) -> Case:
    return Case(name, model, fn, tuple((e[0], e[1], e[2] if len(e) > 2 else "") for e in inputs))


_DECODER = (
    (128, 1024), (256, 1024), (256, 512), (512, 512), (512, 256), (512, 128),
)  # fmt: skip
"""Channels and side of the images that the VAE's norms see."""


def _laid_out_norm(c: int, side: int, *, bias: bool = False) -> Case:
    what = "bias norm silu" if bias else "norm silu"
    channel = [((1, c, 1, 1), BF)] if bias else []
    return _case(f"laid out {what} {c}x{side}x{side}", "vae", bias_norm_turn if bias else norm_turn,
                 ((1, c, side, side), BF, "last"), *channel, ((c,), BF), ((c,), BF))  # fmt: skip


def _laid_out_batch(c: int, side: int, *, add: bool = False) -> Case:
    x = ((32, c, side, side), HALF, "last")
    stats = [((c,), HALF), ((c,), HALF, "positive"), ((c,), HALF), ((c,), HALF)]
    fn: Any = batch_norm_add_relu if add else batch_norm_relu
    name = f"laid out batch norm{' add' if add else ''} relu 32x{c}x{side}x{side}"
    return _case(name, "resnet", fn, x, *stats, *([x] if add else []))


LAID_OUT: tuple[Case, ...] = (
    *(_laid_out_norm(c, side) for c, side in _DECODER),
    *(_laid_out_norm(c, side, bias=True) for c, side in ((128, 1024), (512, 256))),
    _case("laid out bias residual 128x1024x1024", "vae", bias_residual,
          ((1, 128, 1024, 1024), BF, "last"), ((1, 128, 1, 1), BF),
          ((1, 128, 1024, 1024), BF, "last")),
    _laid_out_batch(64, 112),
    _laid_out_batch(256, 14),
    _laid_out_batch(256, 56, add=True),
    _laid_out_batch(512, 28, add=True),
    _laid_out_batch(1024, 14, add=True),
    _laid_out_batch(2048, 7, add=True),
)  # fmt: skip
"""Regions of graphs laid out channels-last: ``--only "laid out"``."""
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
    *LAID_OUT,
)  # fmt: skip
ALL: tuple[Case, ...] = (*CASES, *ADDED)
"""The whole table: the fixed list, then what was added."""
