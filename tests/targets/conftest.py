"""Graphs as Dynamo gives them, and a check that a rewritten graph computes the same bits."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from kforge_nb.targets.build import replay_inputs
from kforge_nb.targets.dataflow import analyse
from kforge_nb.targets.rewrite import replace
from kforge_nb.workload.capture import capture_graphs, watch


class _Calls(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, *args):
        return self.fn(*args)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def captured():
    """Captures a function (or module) called with tensors; returns its one graph."""

    def capture(fn, *args):
        module = fn if isinstance(fn, nn.Module) else _Calls(fn)
        with torch.no_grad():
            workload = capture_graphs(watch(lambda: module(*args)))
        (graph,) = workload.graphs
        return graph

    return capture


@pytest.fixture
def same_bits():
    """Runs a graph and its rewrite (each cut a call of its own subgraph) and compares bits.

    Outputs and inputs (the graph may write to them) are compared; returns the rewritten module.
    """

    def check(graph, cuts):
        rewritten = replace(graph.gm, [(c, c.to_graph()) for c in cuts])
        flow = analyse(graph.gm, graph.example_inputs)
        ours = replay_inputs(flow, graph.example_inputs)
        theirs = replay_inputs(flow, graph.example_inputs)
        with torch.no_grad():
            got = [*pytree.tree_leaves(rewritten(*ours)), *ours]
            expected = [*pytree.tree_leaves(graph.gm(*theirs)), *theirs]
        assert len(got) == len(expected)
        for one, two in zip(got, expected, strict=True):
            if isinstance(two, torch.Tensor):
                assert one.stride() == two.stride()
                assert torch.equal(one, two)
        return rewritten

    return check
