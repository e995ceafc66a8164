"""Dynamo with ``inline_inbuilt_nn_modules`` off: weights are in the graph, not among its inputs."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch

from kforge_nb.guard.apply import apply
from kforge_nb.guard.replay import why_not_recorded
from tests.guard.pretend import pretend


@pytest.fixture
def uninlined():
    """Graphs hold modules and their weights themselves, where this torch can do that at all."""
    inputs = []

    def backend(gm, example_inputs):
        inputs.extend(example_inputs)
        return gm.forward

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        with torch._dynamo.config.patch(inline_inbuilt_nn_modules=False):
            torch.compile(torch.nn.Linear(2, 2), backend=backend)(torch.randn(2, 2))
            if len(inputs) > 1:
                pytest.skip("this torch always makes weights inputs of graphs")
            torch._dynamo.reset()
            yield


def graph_with(op, target, holder):
    """A graph of one node that reads what ``holder`` has, added to its input."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    value = graph.create_node(op, target, (x,) if op == "call_module" else ())
    graph.output((graph.call_function(torch.add, (x, value)),))
    return torch.fx.GraphModule(holder, graph)


def test_a_graph_that_holds_a_weight_is_not_recorded(monkeypatch):
    """In a module or by itself; a body of a higher-order operator is no reason."""
    pretend(monkeypatch)
    holder = torch.nn.Module()
    holder.linear = torch.nn.Linear(4, 4)
    holder.weight = torch.nn.Parameter(torch.randn(4))
    holder.register_buffer("constant", torch.randn(4))
    x = [torch.randn(4, 4)]
    for op, target in (
        ("call_module", "linear"),
        ("get_attr", "weight"),
        ("get_attr", "constant"),
        ("get_attr", "linear.bias"),
    ):
        told = why_not_recorded(graph_with(op, target, holder), x)
        assert "weights are not among its inputs" in told
    holder.body = torch.fx.symbolic_trace(torch.nn.ReLU())
    assert why_not_recorded(graph_with("get_attr", "body", holder), x) == ""


@pytest.mark.parametrize("rest", ["eager", "cudagraphs"])
@pytest.mark.usefixtures("uninlined")
def test_weights_that_move_are_the_ones_that_are_read(rest, block, make_block, monkeypatch):
    """New weights, assigned, count from the next call on; such a graph is not recorded, and why."""
    pretend(monkeypatch)
    x, twin = torch.randn(8, 64), copy.deepcopy(block)
    applied = apply([block], [], rest)
    state = make_block(9).state_dict()
    with torch.no_grad():
        for assign in (None, False, True):
            if assign is not None:
                for module in (block, twin):
                    module.load_state_dict(copy.deepcopy(state), assign=assign)
                state = {name: value * 1.5 for name, value in state.items()}
            for _ in range(3):
                torch.testing.assert_close(block(x), twin(x))
    told = [reason for graph in applied.report()["graphs"] for reason in graph["reasons"]]
    if rest == "cudagraphs":
        assert told
        assert all("weights are not among its inputs" in reason for reason in told)
    applied.undo()


@pytest.mark.usefixtures("uninlined")
def test_a_weight_that_the_graph_reads_by_itself_is_not_recorded_either(monkeypatch):
    """A parameter without a module of its own around it."""
    pretend(monkeypatch)

    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.randn(64))

        def forward(self, x):
            return torch.relu(x * self.scale)

    model, twin, x = Scale().eval(), Scale().eval(), torch.randn(8, 64)
    applied = apply([model], [], "cudagraphs")
    with torch.no_grad():
        for _ in range(2):
            twin.load_state_dict({"scale": torch.randn(64)}, assign=True)
            model.load_state_dict(copy.deepcopy(twin.state_dict()), assign=True)
            torch.testing.assert_close(model(x), twin(x))
    reasons = [reason for graph in applied.report()["graphs"] for reason in graph["reasons"]]
    assert any("weights are not among its inputs" in reason for reason in reasons)
    applied.undo()
