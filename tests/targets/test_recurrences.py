"""An unrolled recurrence is one cut, by what its graph does and not by what it is called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from kforge_nb.targets.build import find_targets
from kforge_nb.targets.dataflow import analyse
from kforge_nb.targets.document import graph_from_document, graph_to_document
from kforge_nb.targets.partition import cut
from kforge_nb.targets.recurrences import find_recurrences
from kforge_nb.targets.regions import find_regions
from kforge_nb.targets.schedule import Schedule
from kforge_nb.workload.capture import capture_graphs, watch
from tests.recipes.delta import by_chunks, by_tokens, delta_inputs, delta_target

SIZES = (1, 40, 2, 4, 16, 32)


def rules(graph: Any) -> list[Any]:
    return [c for c in cut(graph.gm, graph.example_inputs) if c.family == "delta_rule"]


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("fn", [by_chunks, by_tokens])
def test_the_whole_rule_is_one_cut(fn, state, captured, same_bits):
    """In chunks and by tokens, with and without a state, and its own graph gives the same bits."""
    graph = captured(fn, *delta_inputs(*SIZES, state=state))
    (found,) = rules(graph)
    assert len(found.inputs) == 5 + state
    assert len(found.outputs) == 1 + state
    assert found.name == "delta_rule"
    outside = [n for n in graph.gm.graph.nodes if n not in found.nodes]
    assert [n.op for n in outside if n.op.startswith("call")] == []
    same_bits(graph, [found])


def test_repeated_heads_come_along(captured):
    """Where the caller repeats heads for the rule alone, the cut takes them as they were before."""

    def fn(q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
        q, k = q.repeat_interleave(2, dim=2), k.repeat_interleave(2, dim=2)
        return by_tokens(q, k, v, g, beta)

    inputs = delta_inputs(1, 3, 2, 4, 16, 16)
    (found,) = rules(captured(fn, *inputs))
    assert [s.shape for s in found.input_specs][:2] == [(1, 3, 2, 16)] * 2


def weighed(q: Any, k: Any, v: Any, g: Any, beta: Any, w: Any) -> Any:
    out = torch.zeros_like(v)
    for t in range(3):
        out[:, t] = (v[:, t] * g[:, t].exp().unsqueeze(-1)) @ w + q[:, t] * k[:, t] * beta[
            :, t, :, None
        ]
    return out


def written(q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
    for t in range(3):
        v[:, t] = v[:, t] * g[:, t].exp().unsqueeze(-1) + q[:, t] * k[:, t] * beta[:, t, :, None]
    return v * 1.0


def torch_chunk_gated_delta_rule(x: Any, y: Any) -> Any:
    out = torch.zeros_like(x)
    for t in range(3):
        out[:, t] = x[:, t].exp() * y[:, t]
    return out


@pytest.mark.parametrize("fn", [weighed, written, torch_chunk_gated_delta_rule])
def test_what_only_looks_like_one_is_left(fn, captured, same_bits):
    """A product with a given matrix, a write to an input, and the name alone make no recurrence."""
    inputs = delta_inputs(1, 3, 4, 4, 16, 16)
    count = fn.__code__.co_argcount
    inputs = [*inputs, torch.randn(16, 16)][:count] if count > 2 else inputs[:2]
    graph = captured(fn, *inputs)
    assert rules(graph) == []
    same_bits(graph, cut(graph.gm, graph.example_inputs))


def test_without_traces_nothing_is_guessed(captured):
    """A graph whose nodes do not say where they come from has no recurrences."""
    graph = captured(by_tokens, *delta_inputs(1, 4, 4, 4, 16, 16))
    for node in graph.gm.graph.nodes:
        node.meta.pop("stack_trace", None)
    assert rules(graph) == []


class Layers(nn.Module):
    """Rules with a projection between them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.mixes = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(count))

    def forward(self, q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
        for mix in self.mixes:
            v = v + mix(by_tokens(q, k, v, g, beta))
        return v


def test_equal_rules_of_a_model_are_one_target():
    """Each layer's rule is found by itself, and all of them are occurrences of one target."""
    inputs, model = delta_inputs(1, 5, 2, 2, 16, 16), Layers(3)
    with torch.no_grad():
        targets = find_targets(capture_graphs(watch(lambda: model(*inputs))))
    (found,) = [t for t in targets if t.family == "delta_rule"]
    assert len(found.occurrences) == 3
    assert len(found.captured.sets()) == 2


def test_work_grows_with_the_nodes_and_not_faster(captured, monkeypatch):
    """Twice the layers are twice the steps of the schedule and twice the traces looked at."""
    steps: list[tuple[int, int, int]] = []
    for count in (3, 6):
        graph = captured(Layers(count), *delta_inputs(1, 24, 2, 2, 16, 16))
        flow = analyse(graph.gm, graph.example_inputs)
        looked = 0
        from kforge_nb.targets import recurrences

        known = recurrences._inside

        def counted(*args: Any, known: Any = known) -> bool:
            nonlocal looked
            looked += 1
            return known(*args)

        monkeypatch.setattr(recurrences, "_inside", counted)
        assert len(find_recurrences(flow)) == count
        monkeypatch.setattr(recurrences, "_inside", known)
        schedule = Schedule(flow.deps)
        find_regions(flow, schedule)
        assert sum(len(d) for d in flow.deps) < 6 * len(flow.nodes)
        steps.append((len(flow.nodes), schedule.steps, looked))
    (nodes, few, seen), (more_nodes, many, more_seen) = steps
    grown = more_nodes / nodes * 1.25
    assert more_seen <= seen * grown
    assert many <= max(few, nodes) * grown


def test_its_graph_passes_through_a_document():
    """Workers get a rule as data, writes and all, and compute the same."""
    target = delta_target(by_chunks, delta_inputs(*SIZES))
    again = graph_from_document(graph_to_document(target.graph))
    (inputs,) = target.captured.sets()
    assert torch.equal(again(*inputs)[0], target.graph(*inputs)[0])
