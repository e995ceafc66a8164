"""What tests of recorded graphs share beside their fixtures."""

from __future__ import annotations

import pytest
import torch

GPU = pytest.mark.gpu


def close(mine, theirs):
    """Equal up to what another order of additions may do."""
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def check(model, twin, *args):
    """The model gives the twin's result under no_grad."""
    with torch.no_grad():
        close(model(*args), twin(*args))


def replays(applied):
    """Replays of all graphs since installation."""
    return sum(g.replay.replays for g in applied.backend.graphs if g.replay is not None)
