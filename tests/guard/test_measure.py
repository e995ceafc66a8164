"""Measuring the live model leaves no trace in it."""

from __future__ import annotations

import torch

from kforge_nb.guard.measure import Model, timed
from kforge_nb.workload.capture import watch


class Counting(torch.nn.Module):
    """Writes to a buffer of its own and to running statistics on every call."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(64)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return torch.relu(self.norm(x))


def test_timed_calls_put_buffers_back():
    """Timing a model in training mode changes neither its statistics nor its own buffers."""
    module, x = Counting().train(), torch.randn(8, 64)
    with torch.no_grad():
        workload = watch(lambda: module(x))
    before = [t.clone() for t in module.buffers()]
    model = Model.of(workload.calls, [], "eager")
    model.run(frozenset())
    timed(workload.calls[0], module)
    for was, now in zip(before, module.buffers(), strict=True):
        assert torch.equal(was, now)
