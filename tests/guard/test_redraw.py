"""A redraw has other values and the same form: whatever was compiled for the call serves it too."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kforge_nb.guard.measure import Model
from kforge_nb.guard.redraw import fidelity_calls, redrawn
from kforge_nb.workload.capture import watch


class _Sum(nn.Module):
    def forward(self, *given, **named):
        return sum((t.float().sum() for t in (*given, *named.values())), torch.zeros(()))


def _forms():
    ids = torch.arange(98).reshape(1, 98) * 7 % 31
    wide = torch.randn(3, 4, 5, 6)
    with torch.inference_mode():
        inferred = torch.randn(4, 4)
    return {
        "a row of a longer one": (ids[:, :97].contiguous(),),
        "channels-last": (wide.contiguous(memory_format=torch.channels_last),),
        "turned": (wide[0, 0].t(),),
        "expanded": (torch.randn(4, 1).expand(4, 5),),
        "made under inference mode": (inferred,),
        "passed twice": (wide, wide),
    }


@pytest.mark.parametrize("form", list(_forms()))
def test_a_redraw_is_served_by_what_the_call_was_compiled_for(form):
    """A model of thousands of nodes is not traced again for its fidelity, nor compiled again."""
    given, model = _forms()[form], _Sum()
    with torch.no_grad():
        workload = watch(lambda: model(*given))
        measured = Model.of(workload.calls, [], "eager")
        measured.run(frozenset())
        calls = fidelity_calls(workload.calls, (), 0, 3)
        for _, call in calls:
            call.run(measured.runner(call))
    assert len(measured.backend.sites) == 1
    first, second = (call.args[0] for _, call in calls[1:])
    assert first.stride() == given[0].stride()
    assert not torch.equal(first, second)


def test_what_is_not_redrawn_stays_the_same_tensor():
    """Masks and positions mean something: they are the call's own."""
    mask, places = torch.ones(2, 4, dtype=torch.bool), torch.arange(6)
    with torch.no_grad():
        (call,) = watch(lambda: _Sum()(mask, places)).calls
    again = redrawn(call, torch.Generator().manual_seed(0))
    assert all(a is b for a, b in zip(again.args, call.args, strict=True))
