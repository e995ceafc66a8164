"""Dynamo graphs of recorded calls: what they hold, and what is left of Dynamo afterwards."""

from __future__ import annotations

import torch
from torch import nn
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

from kforge_nb.workload.capture import capture_graphs, watch


class Broken(nn.Module):
    """A graph break between two halves."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x).relu()
        torch._dynamo.graph_break()
        return y.softmax(-1)


class Opaque(nn.Module):
    """Python that Dynamo cannot trace at all."""

    @torch._dynamo.disable
    def forward(self, x):
        return x + 1


def test_one_graph_with_sources_told_by_identity():
    """Parameters and buffers are the model's own tensors, whatever Dynamo calls them."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    x = torch.randn(2, 4)
    (graph,) = capture_graphs(watch(lambda: model(x))).graphs
    kinds = sorted(graph.sources.values())
    assert kinds.count("param") == 4
    assert kinds.count("buffer") == 2
    assert kinds.count("input") == 1
    places = [i for i, state in enumerate(graph.is_state) if state]
    own = {id(t) for t in (*model.parameters(), *model.buffers())}
    assert all(id(graph.example_inputs[i]) in own for i in places)
    assert torch.equal(graph.gm(*graph.example_inputs)[0], model(x))


def test_calls_multiply_executions_by_the_count_of_the_call():
    """A graph inside a loop of three calls runs three times in a workload."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.randn(2, 4)
    workload = capture_graphs(watch(lambda: [model(x) for _ in range(3)]))
    assert [g.calls for g in workload.graphs] == [3]


def test_graph_breaks_are_notes_and_all_parts_are_captured():
    """The halves before and after the break are graphs of their own."""
    model, x = Broken(), torch.randn(2, 4)
    workload = capture_graphs(watch(lambda: model(x)))
    assert len(workload.graphs) == 2
    assert any("breaks into 2 graphs" in note for note in workload.notes)


def test_an_untraceable_module_is_a_note_and_the_others_come():
    """One module that cannot be traced does not cost the profile of the rest."""
    opaque, model, x = Opaque(), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4)
    workload = capture_graphs(watch(lambda: model(opaque(x))))
    assert [g.call.module for g in workload.graphs] == [model]
    assert any("opaque" in note for note in workload.notes)


def test_an_error_of_the_replay_is_a_note():
    """A module that works only once (and says so) does not end the capture."""

    class Once(nn.Module):
        used = False

        def forward(self, x):
            if self.used:
                raise RuntimeError("only once")
            self.used = True
            return x

    once, x = Once(), torch.randn(2)
    workload = capture_graphs(watch(lambda: once(x)))
    assert workload.graphs == []
    assert any("only once" in note for note in workload.notes)


def test_nothing_of_the_capture_stays_in_dynamo():
    """No entry of ours is left on the module's code, and the user's compiled code is kept."""
    model, x = Broken(), torch.randn(2, 4)
    code = Broken.forward.__code__
    capture_graphs(watch(lambda: model(x)))
    assert _debug_get_cache_entry_list(code) == []
    seen = []

    def backend(gm, inputs):
        seen.append(gm)
        return gm.forward

    users = torch.compile(Broken(), backend=backend)
    users(x)
    before = len(seen)
    capture_graphs(watch(lambda: model(x)))
    users(x)
    assert before == 2
    assert len(seen) == before
    torch._dynamo.reset_code(code)


def test_capturing_runs_under_the_state_of_the_call():
    """A cell under no_grad and autocast is traced under both, whoever asks."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)), torch.randn(2, 4)

    def cell():
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)

    (graph,) = capture_graphs(watch(cell)).graphs
    assert graph.state.autocast == (("cpu", torch.bfloat16),)
    assert not graph.state.grad


def test_example_inputs_are_those_before_the_graph_ran():
    """A graph that writes to its argument is kept with the argument as it was."""

    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("runs", torch.zeros(1))

        def forward(self, cache, x):
            self.runs += 1
            cache[:, 1:] += x
            return cache * self.runs

    model, cache, x = Counts(), torch.zeros(2, 3), torch.ones(2, 2)
    workload = watch(lambda: model(cache, x))
    first = workload.calls[0].run()
    (graph,) = capture_graphs(workload).graphs
    assert torch.equal(first, workload.calls[0].run())
    assert float(model.runs) == 1.0
    inputs = [v for v, s in zip(graph.example_inputs, graph.is_state, strict=True) if not s]
    assert sorted(float(v.sum()) for v in inputs) == [0.0, 4.0]
    assert torch.equal(cache, torch.tensor([[0.0, 1, 1], [0, 1, 1]]))
