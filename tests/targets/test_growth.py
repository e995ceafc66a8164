"""Work grows no faster than the nodes of an unrolled graph, counted in calls, not in seconds."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
import torch
from torch import fx

from benchmarks.unrolled_model import repeated, unrolled
from kforge_nb.targets.build import find_targets
from kforge_nb.targets.dataflow import analyse
from kforge_nb.targets.inputs import CapturedInputs
from kforge_nb.targets.observe import _observe, _Run
from kforge_nb.targets.operators import describe
from kforge_nb.targets.partition import cut
from kforge_nb.targets.recurrences import _Calls, find_recurrences
from kforge_nb.targets.regions import find_regions
from kforge_nb.targets.rewrite import replace
from kforge_nb.targets.schedule import Schedule

TIMES = (1, 2)


@pytest.fixture(scope="module")
def workloads():
    """A small graph of Qwen's make-up, and one of twice its size."""
    period = unrolled(length=32, chunk=8)
    return [repeated(period, times) for times in TIMES]


def calls_of(run):
    """How many functions are called while ``run`` runs, Python's and C's."""
    count = Counter()

    def note(frame, event, argument):
        count[event] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count["call"] + count["c_call"]


def rewritten(workload):
    (graph,) = workload.graphs
    cuts = [c for c in cut(graph.gm, graph.example_inputs) if c.family == "rms_norm"]
    return replace(graph.gm, [(c, torch.relu) for c in cuts])


STEPS = {
    "region": lambda w: find_targets(w, "region", vendor=True),
    "module": lambda w: find_targets(w, "module"),
    "op": lambda w: find_targets(w, "op", vendor=True),
    "rewrite": rewritten,
}


@pytest.mark.parametrize("step", STEPS)
def test_calls_grow_with_the_nodes(step, workloads):
    """Twice the graph takes at most a little over twice the function calls."""
    STEPS[step](workloads[0])  # what is cached for the whole process is not counted
    small, large = (calls_of(lambda w=w: STEPS[step](w)) for w in workloads)
    nodes = [len(w.graphs[0].gm.graph.nodes) for w in workloads]
    assert nodes[1] > 1.75 * nodes[0]
    assert large / small <= 1.1 * nodes[1] / nodes[0]


def test_edges_and_steps_grow_with_the_nodes(workloads):
    """So do the dependencies of an analysis and the steps that merging groups takes."""
    found = []
    for workload in workloads:
        (graph,) = workload.graphs
        flow = analyse(graph.gm, graph.example_inputs)
        schedule = Schedule(flow.deps)
        groups = find_regions(flow, schedule)
        found.append((sum(map(len, flow.deps)), schedule.steps, len(groups)))
    assert all(large <= 2.2 * small for small, large in zip(*found, strict=True))


def test_every_copy_of_a_period_is_cut_alike(workloads):
    """The rule of each linear attention is one cut, in the large graph as in the small one."""
    for workload, times in zip(workloads, TIMES, strict=True):
        (graph,) = workload.graphs
        cuts = cut(graph.gm, graph.example_inputs)
        counts = Counter(c.family for c in cuts)
        assert counts["delta_rule"] == 3 * times
        assert counts["rotary"] == 2 * times
        assert counts["rms_norm"] == 13 * times


def test_a_body_that_is_no_recurrence_is_looked_at_once(monkeypatch, workloads):
    """Each of its many writes would tell the same: a look for each makes a loop quadratic."""
    (graph,) = workloads[0].graphs
    flow = analyse(graph.gm, graph.example_inputs)
    for i, op in enumerate(flow.operators):
        flow.autocast[i] = op.name == "exp"
    looks = []
    real = _Calls.of
    monkeypatch.setattr(_Calls, "of", lambda self, node: looks.append(node) or real(self, node))
    assert find_recurrences(flow) == []
    assert len(looks) <= 2 * len(flow.nodes)


def test_memory_that_is_held_is_counted_as_it_comes(monkeypatch, workloads):
    """Bytes of one target are asked for when it gets inputs, never those of all targets."""
    real, asked = CapturedInputs.nbytes, []
    monkeypatch.setattr(
        CapturedInputs, "nbytes", property(lambda self: asked.append(self) or real.fget(self))
    )
    targets = find_targets(workloads[0], "op", vendor=True)
    sets = sum(len(t.captured) for t in targets if t.captured is not None)
    assert sets > 50
    assert len(asked) <= 2 * sets
    asked.clear()
    spilled = find_targets(workloads[0], "op", memory_limit=0, vendor=True)
    assert len(asked) <= 3 * sets
    assert all(t.captured.nbytes == 0 for t in spilled if t.captured is not None)


def test_writes_that_are_spelled_out_need_no_run(monkeypatch, workloads):
    """Where Dynamo's values tell the sizes, writes are noted without a run, and as a run does."""
    (graph,) = workloads[0].graphs
    operators = [describe(n) for n in graph.gm.graph.nodes]
    real = _observe(_Run(graph.gm, graph.example_inputs, operators))
    ran: list[fx.Node] = []
    call = _Run._call
    monkeypatch.setattr(
        _Run, "_call", lambda self, node, *given: ran.append(node) or call(self, node, *given)
    )
    traced = _Run(graph.gm, graph.example_inputs, operators, really=False)
    assert traced.mode == "traced"
    found = _observe(traced)
    assert [n.name for n in ran] == []
    assert [bool(o.written) for o in found] == [bool(o.written) for o in real]
    assert [o.spec for o in found] == [o.spec for o in real]
    assert [o.aliases for o in found] == [o.aliases for o in real]
