"""The targets that the prompts are tried on, fixed and committed before the first prompt was.

The first are each of another family. Those for the CPU have captured inputs and can be judged
here; those for CUDA are made without memory (their tensors say ``cuda:0``) and can be compiled
anywhere, and judged where there is a GPU. Sizes come from ResNet-50, Stable Diffusion 3.5, Gemma 4,
Qwen 3.5 and a BERT. ``HARDER`` ones were added because no first answer failed: each has something
that a first answer is likely to get wrong. They too were committed before they were tried.
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

__all__ = ["HARDER", "TRIAL", "TrialTarget", "build_target", "captured_fingerprint"]

Input = tuple[tuple[int, ...], str, str]


@dataclass(frozen=True, slots=True)
class TrialTarget:
    """One target of the trial: its name, family, kind of device, function and inputs.

    An input is shape, dtype and what it holds: ``normal``, ``positive``, ``last`` (normal, laid out
    channels last), ``ids:N`` for integers below N, or ``labels:N`` where a tenth of them is -100.
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


def smooth_cross_entropy(x: Any, y: Any) -> Any:
    """The loss of a language model: 16-bit logits, labels to ignore, smoothing."""
    import torch

    return torch.nn.functional.cross_entropy(x.float(), y, ignore_index=-100, label_smoothing=0.1)


def causal_conv_silu(x: Any, w: Any) -> Any:
    """The short convolution in front of a delta rule: each channel looks back, never ahead."""
    import torch

    found = torch.nn.functional.conv1d(x.transpose(1, 2), w, padding=3, groups=2048)
    return torch.nn.functional.silu(found[:, :, :512])


def delta_rule(q: Any, k: Any, v: Any, a: Any, b: Any, state: Any) -> Any:
    """Eight tokens of a gated delta rule, unrolled as a loop over tokens comes out of Dynamo."""
    import torch

    f = torch.nn.functional
    q = q * torch.rsqrt((q * q).sum(-1, keepdim=True) + 1e-6) * 0.125
    k = k * torch.rsqrt((k * k).sum(-1, keepdim=True) + 1e-6)
    decay, strength = torch.exp(-f.softplus(a)), torch.sigmoid(b)
    answers = []
    for t in range(8):
        key = k[:, t].unsqueeze(-1)
        state = state * decay[:, t].unsqueeze(-1).unsqueeze(-1)
        known = (state * key).sum(-2)
        update = (v[:, t] - known) * strength[:, t].unsqueeze(-1)
        state = state + key * update.unsqueeze(-2)
        answers.append((state * q[:, t].unsqueeze(-1)).sum(-2))
    return torch.stack(answers, 1), state


def fake_quant(x: Any) -> Any:
    """Each row to 255 levels and back: a rounding that flips by the last bit of a quotient."""
    import torch

    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-8) / 127.0
    return torch.round(x / scale).clamp(-127, 127) * scale


def best_of_row(x: Any) -> Any:
    """Greedy decoding: the largest logit of each row with its place, softly capped before."""
    import torch

    found = torch.tanh(x / 30.0) * 30.0
    return torch.amax(found, -1), torch.argmax(found, -1)


def _normal(*shape: int, dtype: str = "float32") -> Input:
    return shape, dtype, "normal"


_CHANNELS = (_normal(64), ((64,), "float32", "positive"), _normal(64), _normal(64))
_BF16 = "bfloat16"

FIRST: tuple[TrialTarget, ...] = (
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

HARDER: tuple[TrialTarget, ...] = (
    TrialTarget(
        "smooth_cross_entropy", "cross_entropy", "cpu", smooth_cross_entropy,
        (_normal(512, 32000, dtype=_BF16), ((512,), "int64", "labels:32000")),
    ),
    TrialTarget(
        "group_norm_last", "group_norm", "cpu", group_norm_silu,
        (((1, 512, 64, 64), _BF16, "last"), _normal(512, dtype=_BF16), _normal(512, dtype=_BF16)),
    ),
    TrialTarget(
        "causal_conv_silu", "other", "cpu", causal_conv_silu,
        (_normal(2, 512, 2048, dtype=_BF16), _normal(2048, 1, 4, dtype=_BF16)),
    ),
    TrialTarget(
        "delta_rule", "other", "cpu", delta_rule,
        (_normal(4, 8, 16, 64), _normal(4, 8, 16, 64), _normal(4, 8, 16, 64), _normal(4, 8, 16),
         _normal(4, 8, 16), _normal(4, 16, 64, 64)),
    ),
    TrialTarget("fake_quant", "other", "cpu", fake_quant, (_normal(1024, 2048),)),
    TrialTarget("best_of_row", "reduction", "cpu", best_of_row, (_normal(256, 8192),)),
)  # fmt: skip

TRIAL: tuple[TrialTarget, ...] = (*FIRST, *HARDER)


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


def captured_fingerprint(entry: TrialTarget) -> str | None:
    """The fingerprint that a run gives the same computation when it finds it in a model.

    Recorded answers that carry it are offered again to whoever optimizes such a model.

    Returns:
        None where a run cuts the function otherwise (into several targets, or one that begins or
        ends elsewhere), so that a kernel written for all of it would not fit.
    """
    import torch
    from torch import nn

    from kforge_nb.targets.partition import cut
    from kforge_nb.workload.capture import capture_graphs, watch

    class Calls(nn.Module):
        def forward(self, *inputs: torch.Tensor) -> Any:
            return entry.fn(*inputs)

    module = Calls()
    inputs = [_tensor(*given, "cpu", seed) for seed, given in enumerate(entry.inputs)]
    torch._dynamo.reset()
    with torch.no_grad():
        workload = capture_graphs(watch(lambda: module(*inputs)))
    if len(workload.graphs) != 1:
        return None
    graph = workload.graphs[0].gm
    found = cut(graph, workload.graphs[0].example_inputs)
    given = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    whole = len(found) == 1 and [node.name for node in found[0].inputs] == given
    return found[0].fingerprint if whole else None


def _tensor(shape: tuple[int, ...], dtype: str, holds: str, device: str, seed: int) -> torch.Tensor:
    """Values that depend on ``seed`` alone, made on the CPU so that they are the same anywhere."""
    import torch

    if device == "meta":
        return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
    generator = torch.Generator().manual_seed(seed)
    kind, _, below = holds.partition(":")
    if kind in ("ids", "labels"):
        ids = torch.randint(0, int(below), shape, generator=generator)
        if kind == "labels":
            ids = ids.where(torch.rand(shape, generator=generator) >= 0.1, -100)
        return ids.to(device)
    values = torch.randn(shape, generator=generator)
    if kind == "positive":
        values = values.abs() + 0.5
    values = values.to(getattr(torch, dtype)).to(device)
    return values.to(memory_format=torch.channels_last) if kind == "last" else values
