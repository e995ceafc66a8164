"""Which regions come out of code as models write it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kforge_nb.targets.partition import cut


def rms_norm(x, w):
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (h * (1.0 + w.float())).to(x.dtype)


def rms_norm_pow(x, w):
    h = x.float()
    return (h * torch.pow(h.pow(2).mean(-1, keepdim=True) + 1e-6, -0.5) * w.float()).type_as(x)


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def softmax_scores(s, mask):
    p = F.softmax(s * 0.125 + mask, dim=-1, dtype=torch.float32).to(s.dtype)
    return F.dropout(p, 0.1, training=False)


def modulated(x, w, b, scale, shift):
    return F.layer_norm(x, (8,), w, b) * (1 + scale[:, None]) + shift[:, None]


def residual_norm(x, y, w, b):
    s = x + y
    return s, F.layer_norm(s, (8,), w, b)


def batch_norm_add_relu(x, y, mean, var, w, b):
    out = F.batch_norm(x, mean, var, w, b)
    out += y
    return F.relu(out)


def softcap(x):
    return torch.tanh(x / 30.0) * 30.0


T = torch.randn
CASES = {
    "rms_norm": (rms_norm, (T(2, 4, 8).bfloat16(), T(8).bfloat16()), "rms_norm", 8),
    "rms_norm by pow": (rms_norm_pow, (T(2, 4, 8).bfloat16(), T(8).bfloat16()), "rms_norm", 8),
    "softmax": (softmax_scores, (T(2, 4, 8, 8).bfloat16(), T(2, 1, 8, 8).bfloat16()), "softmax", 4),
    "layer norm, modulated": (
        modulated,
        (T(2, 4, 8), T(8), T(8), T(2, 8), T(2, 8)),
        "layer_norm",
        4,
    ),
    "residual, layer norm": (residual_norm, (T(2, 4, 8), T(2, 4, 8), T(8), T(8)), "layer_norm", 2),
    "gelu × up": (
        lambda g, u: F.gelu(g, approximate="tanh") * u,
        (T(2, 8), T(2, 8)),
        "activation",
        2,
    ),
    "silu × up": (lambda g, u: F.silu(g) * u, (T(2, 8), T(2, 8)), "activation", 2),
    "group norm, silu": (
        lambda x, w: F.silu(F.group_norm(x, 4, w, w)),
        (T(2, 8, 4, 4), T(8)),
        "group_norm",
        2,
    ),
    "batch norm, add, relu": (
        batch_norm_add_relu,
        (T(2, 3, 4, 4), T(2, 3, 4, 4), T(3), T(3).abs() + 1, T(3), T(3)),
        "batch_norm",
        3,
    ),
    "rotary": (
        lambda q, c, s: q * c + rotate_half(q) * s,
        (T(2, 2, 4, 8), T(2, 1, 4, 8), T(2, 1, 4, 8)),
        "rotary",
        7,
    ),
    "softcap": (softcap, (T(2, 8),), "activation", 3),
    "cross entropy": (
        lambda x, t: F.cross_entropy(x, t),
        (T(4, 8), torch.tensor([1, 2, 3, 0])),
        "cross_entropy",
        1,
    ),
    "max pooling": (lambda x: F.max_pool2d(x, 3, 2, 1), (T(2, 3, 8, 8),), "pooling", 1),
    "global pooling": (lambda x: F.adaptive_avg_pool2d(x, 1), (T(2, 3, 8, 8),), "pooling", 1),
}


@pytest.mark.parametrize("name", CASES)
def test_each_pattern_is_one_region(name, captured, same_bits):
    """The whole pattern is one cut of the right family; rewritten, it gives the same bits."""
    fn, args, family, calls = CASES[name]
    graph = captured(fn, *args)
    cuts = cut(graph.gm, graph.example_inputs)
    assert [c.family for c in cuts] == [family]
    body = [n for n in cuts[0].to_graph().graph.nodes if n.op.startswith("call")]
    assert len(body) >= calls
    inside = {n for c in cuts for n in c.nodes}
    outside = [
        n for n in graph.gm.graph.nodes
        if n.op.startswith("call") and n not in inside
        and cuts[0].flow.operators[cuts[0].flow.index[n]].kind != "view"
    ]  # fmt: skip
    assert outside == []
    same_bits(graph, cuts)


def test_a_vendor_operator_ends_a_region(captured, same_bits):
    """Norm, projection, norm: two regions, the product between them only when asked for."""

    def fn(x, w, m):
        return rms_norm(F.linear(rms_norm(x, w), m), w)

    graph = captured(fn, T(2, 4, 8), T(8), T(8, 8))
    cuts = cut(graph.gm, graph.example_inputs)
    assert [c.family for c in cuts] == ["rms_norm", "rms_norm"]
    assert cuts[0].fingerprint == cuts[1].fingerprint
    with_vendor = cut(graph.gm, graph.example_inputs, vendor=True)
    assert [c.family for c in with_vendor] == ["rms_norm", "vendor:linear", "rms_norm"]
    assert [c.vendor for c in with_vendor] == [False, True, False]
    same_bits(graph, with_vendor)


def test_one_row_domain_per_region(captured, same_bits):
    """Softmax over the last axis and a norm over the one before it are different loops."""

    def fn(x):
        p = F.softmax(x, dim=-1)
        return F.softmax(p.transpose(1, 2).contiguous(), dim=-1)

    graph = captured(fn, T(2, 4, 8))
    cuts = cut(graph.gm, graph.example_inputs)
    assert [c.family for c in cuts] == ["softmax", "softmax"]
    same_bits(graph, cuts)


def test_a_reduction_over_other_axes_is_not_taken_along(captured):
    """A mean over the first axis cannot be part of a row kernel."""
    graph = captured(lambda x: torch.exp(x).mean(0), T(4, 8))
    cuts = cut(graph.gm, graph.example_inputs)
    assert [[n.name for n in c.nodes] for c in cuts] == [["exp"]]


def test_a_small_value_needed_elsewhere_stays_outside(captured, same_bits):
    """``exp(scale)`` serves two regions of different shapes: it is computed once, apart."""

    def fn(x, y, scale):
        s = torch.exp(scale)
        return F.softmax(x * s, -1), F.softmax(y * s, -1)

    graph = captured(fn, T(4, 8), T(6, 8), T(8))
    cuts = cut(graph.gm, graph.example_inputs)
    assert [c.name for c in cuts] == ["exp", "mul·softmax", "mul·softmax"]
    same_bits(graph, cuts)


def test_a_single_cheap_operation_is_not_worth_a_kernel(captured):
    """An addition already runs at the speed of memory; at granularity op it is shown."""
    graph = captured(lambda x, y: x + y, T(4, 8), T(4, 8))
    assert cut(graph.gm, graph.example_inputs) == []
    assert len(cut(graph.gm, graph.example_inputs, "op")) == 1


def test_too_many_results_are_halved_and_connected_parts_stay_whole(captured, same_bits):
    """Six activations of one sum: no cut hands out more than four tensors."""

    def fn(x, y):
        s = torch.exp(x) + y
        return tuple(torch.tanh(s * k) for k in range(6))

    graph = captured(fn, T(4, 8), T(4, 8))
    cuts = cut(graph.gm, graph.example_inputs)
    assert max(len(c.outputs) for c in cuts) <= 4
    assert sum("tanh" in c.name for c in cuts) >= 2
    same_bits(graph, cuts)


def test_what_autocast_changes_is_not_cut(captured, same_bits):
    """Under autocast a softmax of bf16 gives fp32; alone it would not. The norm in fp32 may go."""

    def fn(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = torch.matmul(x, w)
            return F.layer_norm(h, (8,)), torch.exp(h) * 2

    graph = captured(fn, T(4, 8), T(8, 8))
    cuts = cut(graph.gm, graph.example_inputs, "op")
    dtypes = {c.name: c.output_specs[0].dtype for c in cuts}
    outside = [
        n for n, c in zip(cuts[0].flow.nodes, cuts[0].flow.autocast, strict=True) if c
    ]  # fmt: skip
    for node in outside:
        assert all(node not in c.nodes for c in cuts)
    for c in cuts:
        again = c.to_graph()(
            *(torch.ones(s.shape, dtype=getattr(torch, s.dtype)) for s in c.input_specs)
        )
        assert str(again[0].dtype).endswith(dtypes[c.name])
    same_bits(graph, cuts)
