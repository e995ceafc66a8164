"""What undo leaves behind, and what is recorded or differentiated through a guarded model."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from kforge_nb.guard.apply import apply
from kforge_nb.guard.backend import Backend


@pytest.fixture
def x():
    """The input that the kernels were accepted for."""
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(3))


def test_undo_leaves_no_attribute(block, accept, x):
    """After undo the module's own attributes are those of before, each the very object."""
    before = dict(vars(block))
    applied = apply([block], accept(block, x))
    with torch.no_grad():
        block(x)
    applied.undo()
    assert vars(block).keys() == before.keys()
    assert all(vars(block)[name] is value for name, value in before.items())


def test_a_model_is_freed_after_undo(make_block, accept, x):
    """Torch keeps backends and compiled code for good; they hold neither the model nor a weight."""
    block = make_block(3)
    applied = apply([block], accept(make_block(4), x))
    with torch.no_grad():
        block(x)
    applied.undo()
    model, weight = weakref.ref(block), weakref.ref(block.first.weight)
    del block, applied
    gc.collect()
    assert model() is None
    assert weight() is None


@pytest.mark.parametrize("way", ["apply", "backend"])
def test_forward_derivatives_are_eagers(block, accept, x, way):
    """Kernels have no tangents, and Dynamo no guard for this level: the original runs there."""
    twin = copy.deepcopy(block).requires_grad_(False)
    block.requires_grad_(False)
    accepted = accept(block, x)
    if way == "apply":
        backend, call = apply([block], accepted).backend, block
    else:
        backend = Backend(accepted)
        call = torch.compile(block, backend=backend)
    call(x)

    def tangent(model):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(
                model(forward_ad.make_dual(x, torch.ones_like(x)))
            ).tangent

    torch.testing.assert_close(tangent(call), tangent(twin))
    torch.testing.assert_close(call(x), twin(x))
    assert backend.graphs[0].replaced


def test_tracers_see_the_plain_model(block, accept, x):
    """``make_fx`` and a run on fake tensors go through the module itself, as export does."""
    apply([block], accept(block, x))
    with torch.no_grad():
        expected = block(x)
        traced = make_fx(block)(x)
        assert not [n for n in traced.graph.nodes if "kforge" in str(n.target)]
        torch.testing.assert_close(traced(x), expected)
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert block(mode.from_tensor(x)).shape == expected.shape
        torch.testing.assert_close(block(x), expected)
