"""The decision in the model: what wins stays, what does not is kept original with its reason."""

from __future__ import annotations

import copy
import math
import random
import threading

import pytest
import torch

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.errors import BadInput
from kforge_nb.guard import fidelity, launch
from kforge_nb.guard.accepted import Accepted
from kforge_nb.guard.decide import decide
from kforge_nb.guard.fidelity import check_fidelity
from kforge_nb.guard.measure import Model, Stopped, Timer, interleave
from kforge_nb.guard.redraw import fidelity_calls, redrawn, user_call
from kforge_nb.guard.routing import RoutedFloat64
from kforge_nb.guard.stats import compare
from kforge_nb.workload.capture import watch


@pytest.fixture(autouse=True)
def one_thread():
    """Timings of small models on a shared machine need no second thread to wait for."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Norms(torch.nn.Module):
    """Small and launch-bound: six norms of six operators each, then a softmax."""

    def __init__(self, norm):
        super().__init__()
        self.norms = torch.nn.ModuleList([copy.deepcopy(norm) for _ in range(6)])
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x):
        for norm in self.norms:
            x = norm(x)
            x = x @ self.linear.weight
        return self.linear(x).softmax(-1)


@pytest.fixture
def model(block):
    """A seeded Norms model in eval mode."""
    torch.manual_seed(2)
    return Norms(block.norm).eval().to(block.norm.weight.device)


@pytest.fixture
def x(device):
    """One input."""
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(3)).to(device)


@pytest.fixture
def workload(model, x):
    """One recorded call under no_grad."""

    def cell():
        with torch.no_grad():
            return model(x)

    return watch(cell)


def changed(kernel, old, new, build):
    """The same kernel with another source."""
    candidate = kernel.candidate
    source = candidate.source.replace(old, new)
    assert source != candidate.source
    other = Candidate(candidate.language, source, candidate.plan, candidate.title)
    fields = {name: getattr(kernel, name) for name in Accepted.__dataclass_fields__}
    return Accepted(**{**fields, "candidate": other, "library": build(other)})


def by_title(accepted):
    """Accepted kernels by candidate title."""
    return {kernel.candidate.title: kernel for kernel in accepted}


def decision_of(report, kernel):
    """The decision about one kernel."""
    return next(d for d in report.decisions if d.target_fingerprint == kernel.target_fingerprint)


def test_a_winner_stays_and_a_loser_goes(workload, model, accept, x, build):
    """The fused norm wins at its places and in the model; a slow softmax is kept original."""
    kernels = by_title(accept(model, x))
    slow = changed(  # a volatile counter is kept in a register, which a launch hides
        kernels["softmax"],
        "float top = in[0], sum = 0;",
        "float top = in[0], sum = 0;"
        " for (int i = 0; i < 20000; ++i) sum += ((const volatile float*)in)[0] * 0.0f;",
        build,
    )
    report = decide(workload, [kernels["rms norm"], slow], "eager", time_limit=40)
    norm, softmax = decision_of(report, kernels["rms norm"]), decision_of(report, slow)
    assert norm.installed, norm.reason
    assert norm.in_model.ratio > 1.2
    assert norm.in_model.low > 1
    assert not softmax.installed
    ran = launch.counters(slow.register())  # launches, and why the original ran instead, if it did
    assert "slower than the original at its place" in softmax.reason, ran
    assert {(w.rest, w.against) for w in report.whole} == {("eager", "empty"), ("eager", "eager")}
    assert report.fidelity["inputs"] == {"cell": 1, "user": 0, "redrawn": 7}
    assert report.fidelity["ratio"] <= 1.05
    assert report.best_rest == "eager"
    assert model._compiled_call_impl is None
    rows = report.to_document()
    assert rows["decisions"][0]["in_model"].keys() == {
        "ratio", "low", "high", "n", "ours_us", "against_us",
    }  # fmt: skip


def test_a_kernel_that_does_not_run_is_told_as_such(workload, model, accept, x):
    """Two timings of the original are no finding about a kernel."""
    with launch.originals():
        report = decide(workload, [by_title(accept(model, x))["rms norm"]], "eager", time_limit=20)
    assert not report.decisions[0].installed
    assert "its kernel never ran at its place" in report.decisions[0].reason


def test_a_kernel_that_spoils_fidelity_goes(workload, model, accept, x, build):
    """A scale error far below the shadow check's tolerance, in every norm, is not accepted."""
    norm = by_title(accept(model, x))["rms norm"]
    bad = changed(norm, "* scale * w[i]", "* scale * w[i] * 1.00001f", build)
    report = decide(workload, [bad], "eager", time_limit=40)
    decision = decision_of(report, bad)
    assert not decision.installed
    assert "further from float64" in decision.reason


def test_a_wrong_kernel_is_switched_off_before_it_is_measured(workload, model, accept, x, build):
    """Grossly wrong kernels do not get past the shadow check of the warm-up."""
    norm = by_title(accept(model, x))["rms norm"]
    bad = changed(norm, "* scale * w[i]", "* scale * w[i] * 1.1f", build)
    with pytest.warns(RuntimeWarning, match="differs from its original"):
        report = decide(workload, [bad], "eager", time_limit=40)
    assert "shadow check" in decision_of(report, bad).reason


def test_reasons_for_what_cannot_be_measured(workload, model, accept, x, tmp_path):
    """A target that does not occur and a library that is gone each get their own reason."""
    norm = by_title(accept(model, x))["rms norm"]
    fields = {name: getattr(norm, name) for name in Accepted.__dataclass_fields__}
    lost = Accepted(**{**fields, "library": tmp_path / "lost.so"})
    elsewhere = by_title(accept(model, torch.randn(4, 64, device=x.device)))["rms norm"]
    report = decide(workload, [lost, elsewhere], "eager", time_limit=20)
    assert "cannot be launched" in decision_of(report, lost).reason
    assert "does not occur" in decision_of(report, elsewhere).reason
    assert report.installed == []


def test_auto_measures_every_rest_and_recommends_one(workload, model, accept, x):
    """Rows for eager and Inductor, and a recommendation in words.

    Kernels that lose to the compiler alone are also tried left out with Inductor, where the graph
    without them is compiled outside Dynamo.
    """
    kernels = []
    for title, kernel in by_title(accept(model, x)).items():
        row = {"against": "compile", "low": 0.4, "high": 3.0, "n": 9, "ours_us": 1.0,
               "against_us": 2.0, "ratio": 0.5 if title == "softmax" else 2.0}  # fmt: skip
        fields = {name: getattr(kernel, name) for name in Accepted.__dataclass_fields__}
        kernels.append(Accepted(**{**fields, "evidence": {"timings": [row]}}))
    said = []
    report = decide(
        workload, kernels, progress=lambda text, share: said.append((text, share)),
        time_limit=150, against_compile=True,
    )  # fmt: skip
    rests = {"eager", "inductor"}
    if x.is_cuda:
        rests |= {"cudagraphs", "inductor-cudagraphs"}
    left_out = rests - {w.rest for w in report.whole}
    assert not left_out - {"inductor-cudagraphs"}
    late = [note for note in report.notes if "the guard's time was over (--guard-time 150" in note]
    assert all(any(f"rest={rest} was not " in note for note in late) for rest in left_out)
    assert any(w.against == "compile" for w in report.whole) or not report.installed
    assert not [note for note in report.notes if "failed" in note]
    assert report.best_rest in (*rests, "none")
    assert "×" in report.why_rest
    assert all(0 <= share <= 1 for _, share in said)
    assert any("inductor" in text for text, _ in said)


def test_stop_installs_nothing_and_leaves_the_model_alone(workload, model, accept, x):
    """Stop in the middle ends soon, with a report that says so."""
    stop = threading.Event()

    def progress(text, share):
        if "whole" in text:
            stop.set()

    kernels = accept(model, x)
    report = decide(workload, kernels, "eager", progress, stop=stop, time_limit=60)
    assert report.installed == []
    assert report.best_rest == "none"
    assert any("Stop" in note for note in report.notes)
    assert model._compiled_call_impl is None


def test_an_exception_passes_and_leaves_the_model_alone(workload, model, accept, x):
    """A model that fails in the middle raises its own exception and stays as it was."""
    kernels = accept(model, x)
    model.linear = torch.nn.Linear(3, 3, device=x.device)
    state = dict(vars(model))
    with pytest.raises(RuntimeError):
        decide(workload, kernels, "eager", time_limit=20)
    assert dict(vars(model)) == state


def test_stateful_calls_are_replayed_on_fresh_state(accept):
    """A call that grows a list it was given is measured many times without growing the user's."""

    class Remembers(torch.nn.Module):
        def forward(self, x, past):
            past.append(x)
            return torch.relu(x + past[0]) * len(past)

    module, x = Remembers(), torch.randn(8, 64)
    past = [torch.randn(8, 64)]
    workload = watch(lambda: module(x, past))
    assert len(past) == 2
    report = decide(workload, [], "eager", time_limit=5)
    assert len(past) == 2
    assert report.decisions == []
    for call in workload.calls:
        assert torch.equal(call.run(), call.run())


def test_bad_choices(workload):
    """An unknown rest and inputs of an unknown form are BadInput."""
    with pytest.raises(BadInput, match="rest"):
        decide(workload, [], "quick")
    with pytest.raises(BadInput, match="inputs="):
        user_call(workload.calls[0], 3)


def test_fidelity_of_honest_and_dishonest_kernels(workload, model, accept, x, build):
    """Honest rounding gives a ratio near 1, a tiny scale error a large one; each input counts."""
    norm = by_title(accept(model, x))["rms norm"]
    bad = changed(norm, "* scale * w[i]", "* scale * w[i] * 1.00001f", build)
    found = []
    for kernel in (norm, bad):
        live = Model.of(workload.calls, [kernel], "eager")
        enabled = frozenset({kernel.target_fingerprint})
        live.run(enabled)
        fresh = [torch.randn(8, 64, device=x.device) for _ in range(3)]
        extra = [fresh[0], (fresh[1],), {"x": fresh[2]}]
        found.append(check_fidelity(live, enabled, Timer.of(30), inputs=extra))
        torch._dynamo.reset()
    assert found[0].good
    assert 0.5 < found[0].ratio < 1.05
    assert found[0].inputs == {"cell": 1, "user": 3, "redrawn": 4}
    assert not found[1].good
    assert found[1].ratio > 1.5


@pytest.mark.parametrize(
    ("first", "later", "good", "more"),
    [
        ([1.06, 1.08, 1.3, 1.2, 1.1, 1.07, 1.4, 0.9], 1.0, True, True),
        ([1.06, 1.08, 1.3, 1.2, 1.1, 1.07, 1.4, 0.9], 1.1, False, True),
        ([1.2, 1.19, 1.22, 1.18, 1.21, 1.2, 1.2, 1.23], 1.0, False, False),
        ([1.0, 1.1, 1.1, math.inf, 1.1, 1.1, 1.1, 0.9], 1.0, False, False),
    ],
)
def test_chance_turns_no_kernel_away(workload, monkeypatch, first, later, good, more):
    """Small outputs make each ratio vary by a tenth: a median that may be chance is looked into."""
    ratios = [*first, *(later + 0.1 * math.sin(i) for i in range(99))]
    live = Model.of(workload.calls, [], "eager")
    monkeypatch.setattr(fidelity, "_one_input", lambda *_: ratios.pop(0))
    found = check_fidelity(live, frozenset(), Timer.of(30))
    assert found.good is good
    assert (len(found.ratios) > 8) is more


def test_an_error_of_zero_stays_zero(accept, build, device):
    """Where eager is exact, any error of ours is infinitely worse."""

    class Adds(torch.nn.Module):
        def forward(self, x, y):
            return torch.relu(x + y)

    module = Adds()
    x, y = (torch.randint(0, 9, (8, 64), device=device).float() for _ in range(2))
    kernel = accept(module, x, y)[0]
    bad = changed(kernel, "a[i] + b[i]", "a[i] + b[i] + (i == 5 ? 1e-5f : 0)", build)
    workload = watch(lambda: module(x, y))
    ratios = []
    for each in (kernel, bad):
        live = Model.of(workload.calls, [each], "eager")
        enabled = frozenset({each.target_fingerprint})
        found = check_fidelity(live, enabled, Timer.of(30), least=1)
        ratios.append((found.ratio, found.good))
        torch._dynamo.reset()
    assert ratios == [(1.0, True), (math.inf, False)]


def test_fidelity_gives_writing_graphs_fresh_inputs(accept, device):
    """A graph that writes to its input is run three times on the same values."""

    class Writes(torch.nn.Module):
        def forward(self, x, y):
            h = torch.relu(x + y)
            x.add_(1)
            return h * x.mean()

    module = Writes()
    x, y = torch.randn(8, 64, device=device), torch.randn(8, 64, device=device)
    kernel = accept(module, x.clone(), y)[0]
    workload = watch(lambda: module(x.clone(), y))
    live = Model.of(workload.calls, [kernel], "eager")
    found = check_fidelity(live, frozenset({kernel.target_fingerprint}), Timer.of(30), least=2)
    assert found.good
    assert all(0.5 < ratio < 1.05 for ratio in found.ratios)


def test_redraws_keep_ids_positions_and_masks():
    """Ids come from those seen, positions and masks stay, floats keep their spread; seeded."""
    ids = torch.tensor([[5, 900, 31, 5, 77, 12]])
    positions = torch.arange(6)[None]
    mask = torch.ones(1, 6, dtype=torch.long)
    floats = torch.randn(64, 64) * 3 + 7
    call = watch(lambda: torch.nn.Identity()(floats)).calls[0]
    call.args, call.kwargs = (ids, floats), {"position_ids": positions, "mask": mask}
    twin = redrawn(call, torch.Generator().manual_seed(1))
    again = redrawn(call, torch.Generator().manual_seed(1))
    assert set(twin.args[0].flatten().tolist()) <= set(ids.flatten().tolist())
    assert not torch.equal(twin.args[1], floats)
    assert abs(float(twin.args[1].mean()) - 7) < 0.3
    assert abs(float(twin.args[1].std()) - 3) < 0.3
    assert torch.equal(twin.kwargs["position_ids"], positions)
    assert torch.equal(twin.kwargs["mask"], mask)
    assert torch.equal(twin.args[1], again.args[1])
    origins = [origin for origin, _ in fidelity_calls([call], [], seed=0)]
    assert origins == ["cell", *["redrawn"] * 7]


def test_routing_is_pinned_to_eagers_choice():
    """Nearly equal scores would pick another expert in float64; the indices are eager's."""

    class Routes(torch.nn.Module):
        def forward(self, scores, experts):
            values, index = torch.topk(scores / 3, 1)
            return values * experts[index]

    graph = torch.fx.symbolic_trace(Routes())
    scores = torch.tensor([[1.0, 1.0 + 1e-7, 0.5]])
    experts = torch.tensor([1.0, 100.0, 0.0])
    eager = torch.topk(scores / 3, 1).indices
    interpreter = RoutedFloat64(graph, (scores, experts))
    result = interpreter.run(scores, experts)
    assert result.dtype == torch.float64
    assert torch.allclose(result, (scores.double() / 3).gather(-1, eager) * experts[eager])
    assert "routing was pinned" in interpreter.remarks()[-1]


def test_paired_samples_become_a_comparison():
    """The ratio survives drift and outliers; few samples give their own extremes."""
    rng = random.Random(1)
    base = [100 + 50 * math.sin(i / 5) + rng.random() for i in range(60)]
    ours = [b * (1 + 0.01 * rng.random()) for b in base]
    theirs = [1.5 * b * (1 + 0.01 * rng.random()) for b in base]
    theirs[7] *= 40
    found = compare("empty", ours, theirs)
    assert 1.45 < found.low < found.ratio < found.high < 1.55
    few = compare("empty", [1.0, 2.0], [2.0, 3.0])
    assert few.low == pytest.approx(1.5, rel=0.011)
    assert few.high == pytest.approx(2.0, rel=0.011)
    assert few.low < 1.5
    assert few.high > 2.0


def test_interleaving_stops_when_asked_and_when_enough():
    """Stop raises at once; enough ends early; a timer that is over still gives the least."""
    rng = random.Random(1)
    sides = {"a": lambda: 1, "b": lambda: 2}
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        interleave(sides, Timer.of(9, stop), rounds=10, rng=rng)
    over = interleave(sides, Timer.of(0), rounds=100, least=5, rng=rng)
    assert {name: len(values) for name, values in over.items()} == {"a": 3, "b": 3}
    early = interleave(sides, Timer.of(9), rounds=100, least=5, rng=rng, enough=lambda s: True)
    assert len(early["a"]) == 5
    whole = interleave(sides, Timer.of(9), rounds=12, least=5, rng=rng)
    assert whole["b"] == [2] * 12
