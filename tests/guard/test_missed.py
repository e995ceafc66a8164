"""Calls that run the original in graphs without a launch are counted, each with its reason."""

from __future__ import annotations

import pytest
import torch

from kforge_nb.guard.apply import apply
from kforge_nb.guard.missed import AUTOCAST, HOOKED, UNCOMPILED, VARYING, Place


@pytest.fixture
def x():
    """The input that the kernels were accepted for."""
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def applied(block, accept, x):
    """Three kernels in a block, after one call that fits."""
    found = apply([block], accept(block, x))
    quietly(block, x)
    assert found.counters()["launches"] == 3
    return found


def quietly(model, *args):
    """A call under no_grad."""
    with torch.no_grad():
        return model(*args)


def told(applied):
    """Launches, fallbacks by reason, and calls in which an original ran."""
    found = applied.counters()
    assert sum(sum(k["fallbacks"].values()) for k in found["kernels"]) == sum(
        found["fallbacks"].values()
    )
    return found["launches"], found["fallbacks"], found["calls"]["original"]


def test_fitting_calls_have_no_fallback(applied, block, x):
    """Where every place is a launch nothing is counted beside the launches."""
    quietly(block, x)
    assert told(applied) == (6, {}, 0)


def test_another_shape(applied, block, x):
    """Every call of another batch counts each place once, for each kernel, and a fit nothing."""
    for rows in (3, 3, 8):
        quietly(block, x[:rows].clone())
    assert told(applied) == (6, {"another shape": 6}, 2)
    assert [k["fallbacks"] for k in applied.counters()["kernels"]] == [{"another shape": 2}] * 3


def test_a_gradient(applied, block, x):
    """Calls with gradients run originals, of the known shape and of another one."""
    block(x).sum().backward()
    block(x[:3]).sum().backward()
    assert told(applied) == (3, {"a gradient is needed": 6}, 2)


def test_another_dtype(applied, block, x):
    """A model that was converted after apply() runs originals because of its dtype."""
    block.double()
    quietly(block, x.double())
    assert told(applied) == (3, {"another dtype": 3}, 1)


def test_autocast(applied, block, x):
    """Under autocast targets are not cut as they were; they count as originals all the same."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        quietly(block, x)
    launches, fallbacks, calls = told(applied)
    assert launches + sum(fallbacks.values()) == 6
    assert fallbacks.keys() <= {AUTOCAST, "another dtype"}
    assert calls == 1


def test_a_graph_for_many_shapes(applied, block):
    """Once symbolic graphs take over, their calls count as such."""
    for rows in range(2, 7):
        quietly(block, torch.randn(rows, 64))
    launches, fallbacks, calls = told(applied)
    assert launches == 3
    assert sum(fallbacks.values()) == 3 * calls == 15
    assert fallbacks[VARYING] % 3 == 0
    assert set(fallbacks) == {VARYING, "another shape"}


def test_calls_past_the_compiler(applied, block, x, monkeypatch):
    """A call that ran no compiled graph, or plain for a hook, counts what one call meets."""
    handle = block.register_forward_hook(lambda mod, args, out: out)
    quietly(block, x)
    handle.remove()
    (call,) = applied.guarded
    monkeypatch.setattr(call, "call", lambda module, args, kwargs: module._call_impl(*args))
    quietly(block, x)
    quietly(block, x)
    assert told(applied) == (3, {HOOKED: 3, UNCOMPILED: 6}, 0)


class TwoWidths(torch.nn.Module):
    """Softmax of two widths; one of them keeps its original."""

    def __init__(self):
        super().__init__()
        self.wide = torch.nn.Linear(64, 128)

    def forward(self, x):
        return (self.wide(x.softmax(-1))).softmax(-1)


@pytest.mark.parametrize("rows", [8, 3])
def test_targets_that_stay_original_are_no_fallbacks(accept, x, rows):
    """A target that was left alone on purpose is not taken for a place of its like's kernel."""
    model = TwoWidths().eval()
    narrow, wide = accept(model, x)
    assert narrow.inputs[0].shape == (8, 64)
    graph = torch.fx.symbolic_trace(lambda x: (x.softmax(-1),))
    others = [Place.of(k.target_fingerprint, graph, k.inputs) for k in (narrow, wide)]
    found = apply([model], [narrow], others=others)
    quietly(model, x[:rows].clone())
    assert told(found) == ((1, {}, 0) if rows == 8 else (0, {"another shape": 1}, 1))
