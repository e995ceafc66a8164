"""The targets that the prompts are tried on, fixed and committed before the first prompt was.

Each is of another family. Those for the CPU have captured inputs and can be judged here; those for
CUDA are made without memory (their tensors say ``cuda:0``) and can be compiled anywhere, and judged
where there is a GPU. Sizes come from ResNet-50, Stable Diffusion 3.5, Gemma 4, Qwen 3.5 and a BERT.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.gpu_op_cases import (
    batch_norm_add_relu,
    cross_entropy,
    gelu_up,
    group_norm_silu,
    layer_norm,
    make_target,
    max_pool,
    modulated,
    rms_norm,
    rotary,
    softmax,
    softmax_upcast,
)

if TYPE_CHECKING:
    import torch

    from kforge_nb.targets.target import Target

__all__ = ["TRIAL", "TrialTarget", "build_target"]

Input = tuple[tuple[int, ...], str, str]


@dataclass(frozen=True, slots=True)
class TrialTarget:
    """One target of the trial: its name, family, kind of device, function and inputs.

    An input is shape, dtype and what it holds: ``normal``, ``positive``, or ``ids:N`` for integers
    below N.
    """

    name: str
    family: str
    kind: str
    fn: Callable[..., Any]
    inputs: tuple[Input, ...]


def modulate_gate(x: Any, shift: Any, scale: Any, gate: Any, y: Any) -> Any:
    """What a diffusion transformer does around a block: a gated residual, modulated again."""
    added = x + gate.unsqueeze(1) * y
    return added * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


def _normal(*shape: int, dtype: str = "float32") -> Input:
    return shape, dtype, "normal"


_CHANNELS = (_normal(64), ((64,), "float32", "positive"), _normal(64), _normal(64))
_BF16 = "bfloat16"

TRIAL: tuple[TrialTarget, ...] = (
    TrialTarget("softmax", "softmax", "cpu", softmax, (_normal(1, 16, 512, 512),)),
    TrialTarget(
        "layer_norm", "layer_norm", "cpu", layer_norm(768),
        (_normal(8, 512, 768), _normal(768), _normal(768)),
    ),
    TrialTarget(
        "rms_norm_bf16", "rms_norm", "cpu", rms_norm,
        (_normal(2, 512, 2048, dtype=_BF16), _normal(2048, dtype=_BF16)),
    ),
    TrialTarget(
        "group_norm_silu", "group_norm", "cpu", group_norm_silu,
        (_normal(1, 512, 64, 64), _normal(512), _normal(512)),
    ),
    TrialTarget(
        "gelu_up", "activation", "cpu", gelu_up, (_normal(1, 512, 6144), _normal(1, 512, 6144)),
    ),
    TrialTarget(
        "rotary", "rotary", "cpu", rotary(32),
        (_normal(2, 32, 512, 64), _normal(2, 512, 64), _normal(2, 512, 64)),
    ),
    TrialTarget(
        "batch_norm_add_relu", "batch_norm", "cpu", batch_norm_add_relu,
        (_normal(8, 64, 56, 56), *_CHANNELS, _normal(8, 64, 56, 56)),
    ),
    TrialTarget(
        "cross_entropy", "cross_entropy", "cpu", cross_entropy,
        (_normal(512, 32000), ((512,), "int64", "ids:32000")),
    ),
    TrialTarget("max_pool", "pooling", "cpu", max_pool, (_normal(8, 64, 112, 112),)),
    TrialTarget(
        "modulate_gate", "pointwise", "cpu", modulate_gate,
        (_normal(2, 1024, 1536), _normal(2, 1536), _normal(2, 1536), _normal(2, 1536),
         _normal(2, 1024, 1536)),
    ),
    TrialTarget(
        "cuda_softmax_upcast", "softmax", "cuda", softmax_upcast,
        (_normal(1, 8, 1024, 1024, dtype=_BF16),),
    ),
    TrialTarget(
        "cuda_modulated_layer_norm", "layer_norm", "cuda", modulated,
        (_normal(2, 4096, 1536, dtype=_BF16), _normal(2, 1536, dtype=_BF16),
         _normal(2, 1536, dtype=_BF16)),
    ),
    TrialTarget(
        "cuda_group_norm_silu", "group_norm", "cuda", group_norm_silu,
        (_normal(1, 512, 128, 128, dtype=_BF16), _normal(512, dtype=_BF16),
         _normal(512, dtype=_BF16)),
    ),
)  # fmt: skip


def build_target(entry: TrialTarget, device: str | None = None) -> Target:
    """The target with its family; with captured inputs wherever its device is to be had.

    Args:
        entry: which one.
        device: a torch device string; if not given, the CPU, or for CUDA no memory at all.
    """
    from kforge_nb.targets.inputs import CapturedInputs

    place = device or ("cpu" if entry.kind == "cpu" else "meta")
    inputs = [_tensor(*given, place, seed) for seed, given in enumerate(entry.inputs)]
    target: Target = make_target(entry.fn, inputs, entry.name)
    target.family = entry.family
    if place == "meta":
        target.inputs, target.outputs = (
            tuple(dataclasses.replace(spec, device="cuda:0") for spec in specs)
            for specs in (target.inputs, target.outputs)
        )
        return target
    target.captured = CapturedInputs()
    target.captured.add(inputs)
    target.captured.finish()
    return target


def _tensor(shape: tuple[int, ...], dtype: str, holds: str, device: str, seed: int) -> torch.Tensor:
    """Values that depend on ``seed`` alone, made on the CPU so that they are the same anywhere."""
    import torch

    if device == "meta":
        return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
    generator = torch.Generator().manual_seed(seed)
    if holds.startswith("ids:"):
        return torch.randint(0, int(holds[4:]), shape, generator=generator).to(device)
    values = torch.randn(shape, generator=generator)
    if holds == "positive":
        values = values.abs() + 0.5
    return values.to(getattr(torch, dtype)).to(device)
