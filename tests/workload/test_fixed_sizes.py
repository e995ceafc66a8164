"""Fixed sizes in several threads at once leave Dynamo's settings as they were."""

from __future__ import annotations

import threading

import pytest
import torch

from kforge_nb.workload import fixed_sizes
from kforge_nb.workload.fixed_sizes import compiled

NAMES = ("automatic_dynamic_shapes", "assume_static_by_default")


def settings():
    """What torch.compile(dynamic=False) changes while a call runs."""
    return [getattr(torch._dynamo.config, name) for name in NAMES]


class Gate:
    """Where a thread stands still until it is let go."""

    def __init__(self):
        self.reached, self.open = threading.Event(), threading.Event()

    def wait(self):
        self.reached.set()
        assert self.open.wait(60)


gates: dict[str, Gate] = {}


@torch._dynamo.disable
def stand():
    """Wait at the gate of this thread, if it has one."""
    if threading.current_thread().name in gates:
        gates[threading.current_thread().name].wait()


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """No compiled code of one test serves another."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("per_thread", [True, False], ids=["as torch is", "counted"])
def test_the_last_call_out_puts_back_what_the_first_found(monkeypatch, per_thread):
    """The second begins while the first is inside and ends after it: settings are as before."""
    if not per_thread:
        monkeypatch.setattr(fixed_sizes, "_settings_per_thread", lambda: False)
    gates.update(first=Gate(), second=Gate())

    def entry(x):
        y = x + 1
        stand()
        return y * 2

    function = compiled(entry, lambda gm, example_inputs: gm.forward, dynamic=False)
    before, results = settings(), [function(torch.ones(2))]  # compiled here, as threads only call

    def work():
        results.append(function(torch.ones(2)))

    threads = [threading.Thread(target=work, name=name) for name in gates]
    for thread in threads:
        thread.start()
        assert gates[thread.name].reached.wait(60)
    for thread in threads:
        gates[thread.name].open.set()
        thread.join(60)
    assert [r.tolist() for r in results] == [[4.0, 4.0]] * 3
    assert settings() == before


def test_sizes_are_fixed_while_a_call_runs_and_free_afterwards(monkeypatch):
    """Counted or not, each shape gets a graph of its own; a later compile may turn symbolic."""
    monkeypatch.setattr(fixed_sizes, "_settings_per_thread", lambda: False)
    graphs = []

    def backend(gm, example_inputs):
        graphs.append(
            [type(size) for value in example_inputs for size in getattr(value, "shape", ())]
        )
        return gm.forward

    fixed = compiled(lambda x: x + 1, backend, dynamic=False)
    for rows in (2, 3, 4):
        assert fixed(torch.ones(rows)).tolist() == [2.0] * rows
    assert graphs == [[int]] * 3
    free = compiled(lambda x: x + 2, backend, dynamic=None)
    for rows in (2, 3, 4, 5):
        assert free(torch.ones(rows)).tolist() == [3.0] * rows
    assert len(graphs) <= 5


def test_an_exception_leaves_settings_as_they_were(monkeypatch):
    """A call that fails is out as well."""
    monkeypatch.setattr(fixed_sizes, "_settings_per_thread", lambda: False)
    before = settings()
    function = compiled(lambda x: x @ x, lambda gm, example_inputs: gm.forward, dynamic=False)
    with pytest.raises(Exception, match=r"shape|size|mat"):
        function(torch.ones(2, 3))
    assert settings() == before
