"""What a profile says about the parts of a workload that its table does not show."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kforge_nb.profile.profile import profile


def notes(fn):
    return "; ".join(profile(fn, seconds=0.02).notes)


def test_needed_gradients_are_said_before_a_search_is_paid_for(calibrated):
    """A plain model(x) keeps gradients, so nothing could ever be installed: the profile says so."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()).eval(), torch.randn(4, 8)

    assert "gradients are enabled where model runs" in notes(lambda: model(x))
    with torch.no_grad():
        assert "gradients" not in notes(lambda: model(x))
    with torch.inference_mode():
        assert "gradients" not in notes(lambda: model(x))
    model.requires_grad_(False)
    assert "gradients" not in notes(lambda: model(x))


@pytest.mark.parametrize("fast", [True, False])
def test_a_transformer_encoder_says_where_its_time_goes(calibrated, fast):
    """Its layers are one fused operator, or its attention is one; neither has a row of its own."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model, x = (
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(),
        torch.ones(2, 3, 16),
    )
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fast)
    try:
        with torch.inference_mode():
            said = notes(lambda: model(x))
    finally:
        torch.backends.mha.set_fastpath_enabled(before)

    name = "_transformer_encoder_layer_fwd" if fast else "multi_head_attention_forward"
    assert f"left to torch and not in the table: {name} ×2" in said
    assert ("set_fastpath_enabled(False)" in said) is fast


def test_batch_norm_in_training_is_named(calibrated):
    """A model that was left in training mode shows no batch norm; the reason must be seen."""
    model, x = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
        torch.randn(2, 3, 8, 8),
    )
    with torch.no_grad():
        assert "batch_norm (training) ×1" in notes(lambda: model(x))
        model.eval()
        assert "not in the table" not in notes(lambda: model(x))
