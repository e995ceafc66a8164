"""A workload that keeps gradients everywhere is refused before anything is searched."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import kforge_nb
from kforge_nb.errors import BadInput
from kforge_nb.run.gradients import refuse_gradients
from kforge_nb.workload.capture import capture_graphs, watch


def mlp():
    """A model as users make it, with weights that require gradients."""
    return nn.Sequential(nn.Linear(8, 8), nn.GELU()).eval()


def check(fn):
    """Captures a workload and looks for gradients."""
    refuse_gradients(capture_graphs(watch(fn)))


@pytest.mark.parametrize("dry_run", [True, False])
def test_optimize_says_so_instead_of_searching(tmp_path, dry_run):
    """Plain ``model(x)`` gets one line with the fix, and leaves no run behind."""
    model, x = mlp(), torch.randn(4, 8)

    with pytest.raises(BadInput) as caught:
        kforge_nb.optimize(lambda: model(x), store=tmp_path / "store", dry_run=dry_run)

    text = str(caught.value)
    assert "`with torch.inference_mode():`" in text
    assert "model.requires_grad_(False)" in text
    assert "\n" not in text
    assert kforge_nb.runs(store=tmp_path / "store").empty


def test_without_gradients_nothing_is_refused():
    """Inference mode, no_grad, frozen weights, and no_grad inside the model all let kernels run."""
    model, x = mlp(), torch.randn(4, 8)

    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            check(lambda: model(x))
    check(lambda: mlp().requires_grad_(False)(x))


def test_one_call_without_gradients_is_enough():
    """Where only some modules keep gradients, the others are worth a search."""
    model, frozen, x = mlp(), mlp().requires_grad_(False), torch.randn(4, 8)

    check(lambda: (model(x), frozen(x)))
    with pytest.raises(BadInput):
        check(lambda: (model(x), mlp()(x)))


def test_an_input_that_requires_a_gradient_is_named():
    """Freezing a frozen model is no cure; what helps is said of the input that needs a gradient."""

    class Two(nn.Module):
        def forward(self, x, bias=None):
            return nn.functional.gelu(x) + bias["b"]

    net, x = Two(), torch.randn(4, 8)
    z = torch.randn(4, 8, requires_grad=True)
    with pytest.raises(BadInput) as caught:
        check(lambda: net(x, bias={"b": z}))
    text = str(caught.value)
    assert "by .detach() (the input bias of net requires a gradient)" in text
    assert "requires_grad_(False)" not in text
    check(lambda: net(x, bias={"b": z.detach()}))
