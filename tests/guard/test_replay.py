"""What of recorded graphs needs no GPU: copying in and out, when not to record, pace, memory."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kforge_nb.errors import BadInput
from kforge_nb.guard import decide as deciding
from kforge_nb.guard import fidelity
from kforge_nb.guard.ahead import Ahead
from kforge_nb.guard.decide import decide
from kforge_nb.guard.decider import Decider
from kforge_nb.guard.fidelity import check_fidelity
from kforge_nb.guard.handout import Handout, buffer_like, flat, span
from kforge_nb.guard.measure import Model, OutOfMemory, Pace, Timer, one_sample
from kforge_nb.guard.policy import Rest
from kforge_nb.guard.replay import Lane, Replay, why_not_recorded
from kforge_nb.guard.stage import Stage
from kforge_nb.guard.switch import SwitchBackend
from kforge_nb.workload.capture import watch


def strided(shape, stride):
    """A tensor with these strides, values counting up."""
    size = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    return torch.arange(float(size)).as_strided(shape, stride)


@pytest.mark.parametrize(
    ("shape", "stride"),
    [
        ((3, 4), (4, 1)),
        ((3, 4), (1, 3)),
        ((3, 4), (8, 1)),
        ((3, 4), (0, 1)),
        ((), ()),
        ((2, 0), (1, 1)),
    ],
    ids=["contiguous", "transposed", "gaps", "expanded", "scalar", "empty"],
)
def test_buffers_keep_strides_and_share_nothing(shape, stride):
    """A buffer has an input's sizes, strides and values, in memory of its own."""
    value = strided(shape, stride) if 0 not in shape else torch.empty(shape)
    fresh = buffer_like(value)
    assert torch.equal(fresh, value)
    assert fresh.stride() == value.stride()
    assert fresh.untyped_storage()._cdata != value.untyped_storage()._cdata
    assert flat(value).numel() == span(value)


def test_outputs_are_copies_with_eagers_aliases():
    """Outputs share memory with each other and with inputs exactly where the recorded ones do."""
    x, base = torch.randn(6, 4), torch.randn(5, 4)
    outputs = (base, base[1:], base.t(), x[2:], torch.randn(3), None, 7, strided((2, 3), (5, 1)))
    handout = Handout(outputs, [x])
    given = torch.randn(6, 4)
    made = handout.make([given])
    assert made[5:7] == (None, 7)
    for mine, theirs in zip(made, outputs, strict=True):
        if isinstance(theirs, torch.Tensor):
            assert mine.shape == theirs.shape
            assert mine.stride() == theirs.stride()
    assert torch.equal(made[0], base)
    assert torch.equal(made[3], given[2:])
    made[0].fill_(3)
    assert torch.equal(made[1], torch.full((4, 4), 3.0))
    assert not torch.equal(base[0], made[0][0])
    made[3].fill_(9)
    assert float(given[2:].mean()) == 9
    again = handout.make([given])
    assert torch.equal(again[0], base)
    assert not torch.equal(made[0], again[0])


def test_outputs_that_cannot_be_copied_are_told():
    """Memory read as two dtypes, and pending conjugation, are refused instead of copied wrongly."""
    base = torch.randn(4)
    with pytest.raises(ValueError, match="dtypes"):
        Handout((base, base.view(torch.int32)), [])
    with pytest.raises(ValueError, match="dtype"):
        Handout((base.view(torch.int32),), [base])
    with pytest.raises(ValueError, match="conjugation"):
        Handout((torch.randn(3, dtype=torch.complex64).conj(),), [])


def graph_of(fn, *args, dynamic=False):
    """The graph and inputs that Dynamo gives a backend."""
    found = []

    def keep(gm, example_inputs):
        found.append((gm, list(example_inputs)))
        return gm.forward

    compiled = torch.compile(fn, backend=keep, dynamic=dynamic)
    with torch.no_grad():
        compiled(*args)
    return found[-1]


def test_graphs_of_the_cpu_are_not_recorded_and_run_plain():
    """A graph off the GPU, or with sizes that change, says why and gives its own result."""
    gm, inputs = graph_of(lambda x: (x + 1,), torch.randn(4))
    assert "no tensor on a CUDA device" in why_not_recorded(gm, inputs)
    replay = Replay(gm.forward, gm, inputs, Lane())
    assert torch.equal(replay(*inputs)[0], inputs[0] + 1)
    assert replay.replays == 0
    gm, inputs = graph_of(lambda x: (x + 1,), torch.randn(4, 3), dynamic=True)
    assert "sizes change" in why_not_recorded(gm, inputs)


def test_a_graph_on_two_devices_names_both():
    """What would be read once, at recording, is a reason not to record."""
    gm, inputs = graph_of(lambda x: (x + 1, x * 2), torch.randn(4))
    with FakeTensorMode():
        elsewhere = torch.empty(4, device="cuda:0")
    last = [node for node in gm.graph.nodes if node.op == "call_function"][-1]
    last.meta["example_value"] = elsewhere
    assert why_not_recorded(gm, inputs) == (
        "its tensors lie on cpu and cuda:0, not on one CUDA device"
    )


def test_cuda_graphs_are_refused_on_a_cpu_in_words(block):
    """The rest itself, and a decision about a model on the CPU, name what to use instead."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    x = torch.randn(8, 64)
    workload = watch(lambda: block(x))
    for rest in ("cudagraphs", "inductor-cudagraphs"):
        with pytest.raises(BadInput, match="use 'eager' or 'inductor'"):
            Rest(rest)
        with pytest.raises(BadInput, match="CUDA device"):
            decide(workload, [], rest)
    assert deciding._rests("auto", workload) == ["eager", "inductor"]


def test_auto_tries_what_takes_no_compiler_first(block, monkeypatch):
    """On a GPU all four rests are tried, eager and plain CUDA graphs before Inductor."""
    workload = watch(lambda: block(torch.randn(8, 64)))
    monkeypatch.setattr(deciding, "_on_cuda", lambda call: True)
    assert deciding._rests("auto", workload) == [
        "eager", "cudagraphs", "inductor", "inductor-cudagraphs",
    ]  # fmt: skip


def test_short_calls_are_made_many_times_on_a_gpu_only(block, monkeypatch):
    """A sample of a call of 100 µs is the mean of 50, one of 1 s is itself, and so on a CPU."""
    call = watch(lambda: block(torch.randn(8, 64))).calls[0]
    pace = Pace()
    pace.learn(call, 1e-4)
    assert pace.repeats(call) == 1
    monkeypatch.setattr("kforge_nb.guard.measure.gpus", lambda call: [0])
    for seconds, wanted in ((1e-4, 50), (1e-3, 5), (1.0, 1), (0.0, 50)):
        pace.learn(call, seconds)
        assert pace.repeats(call) == wanted


def full():
    """What a side does whose memory does not suffice."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has …")


def test_a_shortage_of_memory_has_the_name_of_its_side():
    """The reason names the side and what was asked for, and holds no memory of it."""
    with pytest.raises(OutOfMemory, match="guarded") as caught:
        one_sample("guarded", full)
    assert caught.value.side == "guarded"
    assert "CUDA out of memory" in str(caught.value)
    assert caught.value.__context__ is None


@pytest.fixture
def workload(block):
    """One recorded call under no_grad."""
    x = torch.randn(8, 64)

    def cell():
        with torch.no_grad():
            return block(x)

    return watch(cell)


def test_a_rest_without_memory_is_named_and_the_next_one_runs(workload, block, accept, monkeypatch):
    """Inductor runs out of memory here: the report says so, eager is measured, nothing is left."""
    real = SwitchBackend.__init__

    def short(self, accepted, rest="eager", early=()):
        if rest == "inductor":
            full()
        real(self, accepted, rest, early)

    monkeypatch.setattr(SwitchBackend, "__init__", short)
    monkeypatch.setattr(Ahead, "compile", lambda *_: "")
    report = decide(workload, accept(block, torch.randn(8, 64)), time_limit=20)
    assert any("rest=inductor failed: OutOfMemoryError" in note for note in report.notes)
    assert {w.rest for w in report.whole} == {"eager"}
    assert block._compiled_call_impl is None


def test_without_memory_for_eager_the_other_rests_are_still_measured(
    workload, accept, block, monkeypatch
):
    """Screening fails for want of memory: every kernel stays original for that reason."""
    monkeypatch.setattr(Decider, "screen", lambda self, model: full())
    monkeypatch.setattr(Ahead, "compile", lambda *_: "")
    kernels = accept(block, torch.randn(8, 64))
    report = decide(workload, kernels, time_limit=40)
    assert {w.rest for w in report.whole} == {"inductor"}
    assert report.installed == []
    assert all("out of memory" in d.reason for d in report.decisions)


def test_a_side_that_may_be_left_out_is_left_out(workload, accept, block, monkeypatch):
    """A shortage while one kernel is tried left out costs that comparison only."""
    kernels = accept(block, torch.randn(8, 64))
    decider = Decider(workload.calls, kernels, Timer.of(20), None, (), 0)
    model = decider.prepare("eager", kernels)
    stage = Stage("eager", model, frozenset(model.backend.replaced))
    assert len(stage.kept) == 3
    real = model.run

    def run(enabled):
        return real(enabled) if len(enabled) != 2 else full()

    monkeypatch.setattr(model, "run", run)
    samples = decider._whole_samples(stage)
    assert set(samples) == {"empty", "eager", "guarded"}
    assert sum("left out" in note for note in decider.notes) == 3


@pytest.fixture
def short_of_memory(monkeypatch):
    """Float64 runs fail for want of memory, except on the CPU; the list says where they ran."""
    real, places = fidelity.RoutedFloat64, []

    def made(gm, inputs, *, on_cpu=False, watch=None):
        places.append(on_cpu)
        if not on_cpu:
            full()
        return real(gm, inputs, on_cpu=on_cpu, watch=watch)

    monkeypatch.setattr(fidelity, "RoutedFloat64", made)
    return places


def test_float64_moves_to_the_cpu_where_memory_is_short(workload, accept, block, short_of_memory):
    """The comparison is the same, and the note says where float64 ran."""
    kernels = accept(block, torch.randn(8, 64))
    model = Model.of(workload.calls, kernels, "eager")
    kept = frozenset(k.target_fingerprint for k in kernels)
    model.run(kept)
    found = check_fidelity(model, kept, Timer.of(60), least=2)
    assert found.ratio is not None
    assert len(found.ratios) == 2
    assert short_of_memory == [False, True] * 2
    assert sum("did not fit into cpu's memory" in note for note in found.notes) == 1


def test_float64_on_the_cpu_has_a_time_limit(workload, accept, block, short_of_memory):
    """A float64 run that takes too long is broken off: nothing was compared, and it says so."""
    kernels = accept(block, torch.randn(8, 64))
    model = Model.of(workload.calls, kernels, "eager")
    kept = frozenset(k.target_fingerprint for k in kernels)
    model.run(kept)
    found = check_fidelity(model, kept, Timer.of(0), least=1)
    assert found.ratio is None
    assert not found.good
    assert any("did not end in time" in note for note in found.notes)
