"""Targets as JSON: whole there and back, and nothing but known operators comes in."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

from kforge_nb.errors import BadInput, DocumentError
from kforge_nb.targets.build import find_targets
from kforge_nb.targets.document import (
    graph_from_document,
    graph_to_document,
    target_from_document,
    target_to_document,
)
from kforge_nb.targets.partition import cut
from kforge_nb.workload.capture import capture_graphs, watch
from tests.helpers import trace


def attention_tail(s, mask, v):
    p = torch.where(mask, s, float("-inf")).softmax(-1, dtype=torch.float32)
    return torch.cat((p[..., 1:], -p[..., :1]), dim=-1).to(v.dtype) * v


@pytest.fixture
def targets():
    """A region target and a vendor target with captured inputs."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU())
    x = torch.randn(4, 8)
    with torch.no_grad():
        workload = capture_graphs(watch(lambda: model(x)))
    return find_targets(workload, vendor=True)


def test_a_graph_comes_back_and_computes_the_same(captured):
    """Slices, dtypes, infinities and tuples survive plain JSON."""
    args = (torch.randn(2, 8), torch.rand(2, 8) > 0.3, torch.randn(2, 8))
    graph = captured(attention_tail, *args)
    text = json.dumps(graph_to_document(graph.gm), allow_nan=False)
    again = graph_from_document(json.loads(text))
    assert torch.equal(again(*graph.example_inputs)[0], graph.gm(*graph.example_inputs)[0])


def test_a_target_comes_back_with_its_inputs(targets, tmp_path):
    """Fingerprint, variant, occurrences, and captured tensors with their strides."""
    for target in targets:
        document = json.loads(json.dumps(target_to_document(target, tmp_path)))
        again = target_from_document(document, tmp_path)
        assert again.fingerprint == target.fingerprint
        assert again.inputs == target.inputs
        assert again.outputs == target.outputs
        assert again.occurrences == target.occurrences
        assert again.vendor == target.vendor
        ours, theirs = again.captured.sets()[0], target.captured.sets()[0]
        assert [t.stride() for t in ours] == [t.stride() for t in theirs]
        assert torch.equal(again.graph(*ours)[0], target.graph(*theirs)[0])


def test_hand_traced_graphs_can_be_written_too():
    """Targets made by tests and tools go the same way."""
    gm = trace(lambda x: F.silu(x) * 2, torch.randn(2))
    again = graph_from_document(graph_to_document(gm))
    assert torch.equal(again(torch.ones(2))[0], gm(torch.ones(2))[0])


@pytest.mark.parametrize(
    ("home", "name"),
    [
        ("torch", "load"), ("torch", "compile"), ("operator", "attrgetter"), ("operator", "call"),
        ("method", "__class__"), ("method", "backward"), ("method", "numpy"), ("os", "system"),
        ("torch.nn.functional", "torch"), ("builtins", "eval"), ("torch", "save"),
        ("method", "share_memory_"), ("torch._C", "_set_grad_enabled"), ("torch", "manual_seed"),
        ("aten", "set_.source_Storage"), ("torch.functional", "os"), ("method", "__reduce__"),
    ],
)  # fmt: skip
def test_operators_outside_the_list_are_refused(home, name):
    """Nothing is looked up that is not a known tensor operation."""
    document = {
        "schema": "kforge.graph/1",
        "nodes": [
            {"op": "placeholder", "name": "in0"},
            {"op": "call", "home": home, "name": name, "args": [{"node": 0}], "kwargs": {}},
            {"op": "output", "args": {"tuple": [{"node": 1}]}},
        ],
    }
    with pytest.raises(DocumentError, match="not allowed"):
        graph_from_document(document)


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.update(schema="kforge.graph/9"),
        lambda d: d["nodes"].pop(),
        lambda d: d["nodes"][1].update(args=[{"node": 5}]),
        lambda d: d["nodes"][1].update(args=[{"node": -1}]),
        lambda d: d["nodes"][1].update(args=[{"dtype": "object"}]),
        lambda d: d["nodes"][1].update(args=[{"unknown": 1}]),
        lambda d: d["nodes"][0].update(name="x = __import__('os')"),
        lambda d: d["nodes"][1].pop("name"),
        lambda d: d.update(nodes="none"),
    ],
)
def test_damaged_documents_are_one_clear_error(damage):
    """Whatever is wrong with it, a document gives DocumentError and nothing else."""
    document = graph_to_document(trace(lambda x: torch.tanh(x), torch.randn(2)))
    damage(document)
    with pytest.raises(DocumentError):
        graph_from_document(document)


def test_a_target_document_cannot_point_outside_its_folder(targets, tmp_path):
    """The folder of the captured inputs is a plain name."""
    document = target_to_document(targets[0], tmp_path / "inside")
    document["captured"] = "../inside"
    with pytest.raises(DocumentError, match="outside"):
        target_from_document(document, tmp_path / "inside")


def test_an_operator_that_is_not_known_cannot_be_written(captured):
    """A graph with a foreign call is refused when it is written, not when it is read."""
    gm = trace(lambda x: torch.tanh(x), torch.randn(2))
    node = next(n for n in gm.graph.nodes if n.op == "call_function")
    node.target = print
    with pytest.raises(BadInput, match="cut around it"):
        graph_to_document(gm)


def test_every_cut_can_be_written(captured):
    """What may be cut can be sent to a worker, at every granularity."""

    def fn(x, w):
        h = F.layer_norm(x, (8,), w)
        h = torch.cat((-h[..., 4:], h[..., :4]), dim=-1) * h + F.pad(h, (0, 0))
        return F.max_pool2d(h[None], 2), F.softmax(h, -1).type_as(x), h.clamp(min=0)

    graph = captured(fn, torch.randn(2, 4, 8), torch.ones(8))
    for granularity in ("op", "module", "region"):
        for found in cut(graph.gm, graph.example_inputs, granularity, vendor=True):
            target = found.to_graph()
            again = graph_from_document(graph_to_document(target))
            assert [n.op for n in again.graph.nodes] == [n.op for n in target.graph.nodes]
