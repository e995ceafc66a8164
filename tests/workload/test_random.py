"""Replays draw the random numbers of the recorded call, and leave the user's generators alone."""

from __future__ import annotations

import torch
from torch import nn

from kforge_nb.workload.capture import capture_graphs, watch


class Noisy(nn.Module):
    """Adds noise of torch's default generator, as samplers do."""

    def forward(self, x):
        """``x`` with noise."""
        return x + torch.randn_like(x)


def test_a_replay_draws_what_the_recorded_call_drew():
    """A replay gives the recorded result, whatever the generator has drawn since."""
    model, x = Noisy(), torch.zeros(8)
    torch.manual_seed(3)
    torch.randn(5)
    workload = watch(lambda: model(x))
    torch.randn(7)
    assert torch.equal(workload.calls[0].run(), workload.result)
    assert torch.equal(workload.calls[0].run(), workload.result)


def test_replays_and_traces_leave_the_users_generator_alone():
    """What the user draws after a profile is what he would have drawn without it."""
    model, x = Noisy(), torch.zeros(8)
    torch.manual_seed(3)
    workload = watch(lambda: model(x))
    state = torch.get_rng_state()
    workload.calls[0].run()
    capture_graphs(workload)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_replay_that_raises_puts_the_generator_back():
    """An exception in a replay is no reason to leave the generator somewhere else."""
    model, x = Noisy(), torch.zeros(8)
    workload = watch(lambda: model(x))
    torch.manual_seed(11)
    state = torch.get_rng_state()

    def fails(*_):
        torch.randn(100)
        raise ValueError

    try:
        workload.calls[0].run(fails)
    except ValueError:
        assert torch.equal(torch.get_rng_state(), state)
    else:
        raise AssertionError("the exception must pass through")


def test_a_call_that_draws_nothing_leaves_the_generators_to_others():
    """What another thread draws while such a call is replayed is not drawn a second time."""
    model, x = nn.Linear(8, 8), torch.zeros(8)
    torch.manual_seed(3)
    workload = watch(lambda: model(x))
    drawn = []

    def meanwhile(*args):
        drawn.append(torch.randn(4))
        return model(*args)

    workload.calls[0].run(meanwhile)
    drawn.append(torch.randn(4))
    assert not torch.equal(*drawn)
    assert workload.calls[0].random is None
