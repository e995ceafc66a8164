"""The exact reference: casts to lower precision become casts to float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kforge_nb.targets.float64 import Float64Interpreter, reference
from tests.helpers import trace


def test_casts_inside_the_graph_do_not_round(captured):
    """A norm that goes through float32 and back to bf16 has no rounding in the reference."""

    def fn(x, w):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return h.to(x.dtype) * w, F.softmax(x, -1, dtype=torch.float32).type_as(x)

    x, w = torch.randn(4, 64).bfloat16(), torch.randn(64).bfloat16()
    graph = captured(fn, x, w)
    got = reference(graph.gm, graph.example_inputs)
    d = x.double()
    expected = d * torch.rsqrt(d.pow(2).mean(-1, keepdim=True) + 1e-6) * w.double()
    assert [t.dtype for t in got] == [torch.float64, torch.float64]
    torch.testing.assert_close(got[0], expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(got[1], F.softmax(d, -1), rtol=1e-14, atol=0)


def test_factories_and_integers(captured):
    """Made tensors are float64 too; integers and booleans stay what they are."""

    def fn(x):
        mask = torch.zeros(4, dtype=torch.float32).masked_fill(torch.arange(4) > 1, -1e30)
        return x + mask, torch.ones(4) * x, (x > 0).sum(-1)

    graph = captured(fn, torch.randn(3, 4))
    got = reference(graph.gm, graph.example_inputs)
    assert [t.dtype for t in got] == [torch.float64, torch.float64, torch.int64]


def test_inputs_are_never_changed_though_the_graph_writes(captured):
    """A cache written through a view is written in a float64 copy."""

    def fn(cache, x):
        cache[:, 1:] += x
        return cache * 2

    cache, x = torch.zeros(2, 3), torch.full((2, 2), 0.1)
    graph = captured(fn, cache, x)
    before = [t.clone() for t in graph.example_inputs]
    (got,) = reference(graph.gm, graph.example_inputs)
    assert all(torch.equal(a, b) for a, b in zip(graph.example_inputs, before, strict=True))
    assert torch.equal(got[:, 1:], torch.full((2, 2), 2 * float(torch.tensor(0.1))).double())


def test_whole_models_with_low_precision_weights(captured):
    """A bf16 layer stack agrees with the same stack converted to float64."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
    model = model.bfloat16()
    x = torch.randn(3, 8).bfloat16()
    graph = captured(model, x)
    (got,) = reference(graph.gm, graph.example_inputs)
    torch.testing.assert_close(got, model.double()(x.double()), rtol=1e-12, atol=1e-12)


def test_an_operator_without_float64_uses_its_named_fallback():
    """A grouped product refuses float64; its fallback is used and named."""
    offs = torch.tensor([2, 5], dtype=torch.int32)
    a, b = torch.randn(5, 16).bfloat16(), torch.randn(2, 16, 16).bfloat16()
    gm = trace(lambda x, y, o: torch._grouped_mm(x, y, offs=o), a, b, offs)
    interpreter = Float64Interpreter(gm)
    with torch.no_grad():
        (got,) = interpreter.run(a, b, offs)
    expected = torch.cat([a[:2].double() @ b[0].double(), a[2:].double() @ b[1].double()])
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    assert any("_grouped_mm refuses float64" in note for note in interpreter.notes)


def test_other_errors_pass_through():
    """A graph that is wrong says what torch says."""
    gm = trace(lambda x, y: torch.matmul(x, y), torch.ones(2, 3), torch.ones(3, 2))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        reference(gm, [torch.ones(2, 3), torch.ones(2, 3)])
