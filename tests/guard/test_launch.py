"""The launch op: what it accepts, copies, refuses and counts."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import fx

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan
from kforge_nb.errors import BadInput, ContractBreach
from kforge_nb.guard import launch
from kforge_nb.targets.target import TensorSpec

SPEC = TensorSpec((8, 64), (64, 1), "float32", "cpu")


def add_relu_graph():
    """The original of the add_relu kernel."""
    return fx.symbolic_trace(lambda a, b: (torch.relu(a + b),))


@pytest.fixture
def handle(build, kernels):
    """A fresh handle of add_relu at 8x64, with no shadow checks."""
    candidate = kernels["add_relu"]()
    graph = add_relu_graph()
    return launch.register(candidate, build(candidate), graph, [SPEC, SPEC], [SPEC], shadow=0)


def call(handle, *inputs):
    """One launch with one output."""
    return torch.ops.kforge.launch.default(list(inputs), handle)[0]


def test_a_launch_gives_the_kernels_result(handle):
    """The kernel runs and its result equals eager's."""
    a, b = torch.randn(8, 64), torch.randn(8, 64)
    assert torch.equal(call(handle, a, b), torch.relu(a + b))
    assert launch.counters(handle) == {"launches": 1, "copies": 0, "shadowed": 0, "fallbacks": {}}


@pytest.mark.parametrize(
    ("make", "copies"),
    [
        (lambda: torch.randn(8, 128)[:, ::2], 1),
        (lambda: torch.randn(64, 8).t(), 1),
        (lambda: torch.randn(8 * 64 + 1)[1:].view(8, 64), 1),
        (lambda: torch.randn(16, 64)[8:], 0),
        (lambda: torch.randn(1, 64).expand(8, 64), 1),
    ],
    ids=["strided", "transposed", "misaligned", "aligned offset", "expanded"],
)
def test_other_layouts_are_copied(handle, make, copies):
    """What Dynamo's guards do not see (strides, offset, alignment) is mended by a copy."""
    a, b = make(), torch.randn(8, 64)
    assert torch.equal(call(handle, a, b), torch.relu(a + b))
    assert launch.counters(handle)["copies"] == copies
    assert launch.counters(handle)["launches"] == 1


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: torch.randn(4, 64), "another shape"),
        (lambda: torch.randn(2, 4, 64), "another shape"),
        (lambda: torch.randn(8, 64, dtype=torch.float64), "another dtype"),
        (lambda: torch.randn(8, 64).bfloat16(), "another dtype"),
    ],
    ids=["shape", "rank", "float64", "bfloat16"],
)
@pytest.mark.filterwarnings("ignore:kforge")
def test_what_does_not_fit_runs_the_original(handle, make, reason):
    """Another shape or dtype gives eager's result, and the reason is counted."""
    a, b = make(), make()
    assert torch.equal(call(handle, a, b), torch.relu(a + b))
    assert launch.counters(handle)["fallbacks"] == {reason: 1}
    assert launch.counters(handle)["launches"] == 0


@pytest.mark.filterwarnings("ignore:kforge")
def test_a_needed_gradient_runs_the_original_and_flows(handle):
    """The Autograd net: a launch that reaches the op with grad needed gives eager's gradient."""
    a = torch.randn(8, 64, requires_grad=True)
    b = torch.randn(8, 64)
    call(handle, a, b).sum().backward()
    assert torch.equal(a.grad, ((a + b) > 0).float())
    assert launch.counters(handle)["fallbacks"] == {"a gradient is needed": 1}
    with torch.no_grad():
        call(handle, a, b)
    call(handle, b, b)  # grad mode on, but no input needs one
    assert launch.counters(handle)["launches"] == 2


def test_inference_tensors_are_launched(handle):
    """Inference mode takes another dispatch path and must reach the same kernel."""
    with torch.inference_mode():
        a, b = torch.randn(8, 64), torch.randn(8, 64)
        assert torch.equal(call(handle, a, b), torch.relu(a + b))
    assert launch.counters(handle)["launches"] == 1


def test_the_kill_switch_sends_everything_to_the_original(handle):
    """Off means the original for every launch, without a warning; on again means the kernel."""
    a, b = torch.randn(8, 64), torch.randn(8, 64)
    with launch.originals():
        assert not launch.running()
        assert torch.equal(call(handle, a, b), torch.relu(a + b))
    call(handle, a, b)
    found = launch.counters(handle)
    assert (found["launches"], found["fallbacks"]) == (1, {"the kill switch is on": 1})


def test_the_shadow_check_switches_a_wrong_kernel_off(build, kernels):
    """A kernel that differs on its first live call is disabled and the original's result used."""
    wrong = kernels["add_relu"]()
    wrong = Candidate("cpp", wrong.source.replace("a[i] + b[i]", "a[i] - b[i]"), wrong.plan)
    graph = add_relu_graph()
    handle = launch.register(wrong, build(wrong), graph, [SPEC, SPEC], [SPEC], shadow=2)
    a, b = torch.randn(8, 64), torch.randn(8, 64)
    with pytest.warns(RuntimeWarning, match="differs from its original"):
        assert torch.equal(call(handle, a, b), torch.relu(a + b))
    assert torch.equal(call(handle, a, b), torch.relu(a + b))
    found = launch.counters(handle)
    assert found["shadowed"] == 1
    assert found["fallbacks"] == {"switched off after a mismatch or an error": 1}
    assert "shadow check" in launch.kernel(handle).note


def test_an_honest_kernel_passes_the_shadow_check(build, kernels):
    """Rounding noise is no mismatch: softmax sums in another order than torch."""
    candidate, spec = kernels["softmax"](), SPEC
    graph = fx.symbolic_trace(lambda x: (torch.softmax(x, -1),))
    handle = launch.register(candidate, build(candidate), graph, [spec], [spec], shadow=3)
    x = torch.randn(8, 64) * 20
    for _ in range(4):
        torch.testing.assert_close(call(handle, x), torch.softmax(x, -1))
    found = launch.counters(handle)
    assert (found["launches"], found["shadowed"], found["fallbacks"]) == (4, 3, {})


def test_an_error_of_the_original_keeps_its_words(handle):
    """A failing fallback says what failed, although exceptions cross a C interface."""
    with pytest.raises(RuntimeError, match="must match the size"):
        call(handle, torch.randn(3, 4), torch.randn(8, 64))


def test_an_unknown_handle_is_an_error(handle):
    """A handle of another process is refused in words."""
    with pytest.raises(RuntimeError, match="no kernel is registered"):
        call(handle + 10_000, torch.randn(8, 64), torch.randn(8, 64))
    with pytest.raises(BadInput, match="no kernel"):
        launch.kernel(handle + 10_000)


def test_register_refuses_what_cannot_be_launched(build, kernels):
    """Other languages, plans that miss an output and libraries without the entry are refused."""
    graph, candidate = add_relu_graph(), kernels["add_relu"]()
    library = build(candidate)
    extension = Candidate("cuda_extension", "", candidate.plan)
    with pytest.raises(BadInput, match="cuda_extension"):
        launch.register(extension, library, graph, [SPEC, SPEC], [SPEC])
    plan = LaunchPlan((Kernel("add_relu", ("in0", "in1", "out0")),))
    with pytest.raises(BadInput, match="on one GPU"):
        launch.register(Candidate("cuda", "", plan), library, graph, [SPEC, SPEC], [SPEC])
    other = Candidate("cpp", "", LaunchPlan((Kernel("absent", candidate.plan.kernels[0].args),)))
    with pytest.raises(ContractBreach, match="absent"):
        launch.register(other, library, graph, [SPEC, SPEC], [SPEC])
    blind = Candidate("cpp", "", LaunchPlan((Kernel("add_relu", ("in0", "i32:nthreads")),)))
    with pytest.raises(ContractBreach, match="out0"):
        launch.register(blind, library, graph, [SPEC, SPEC], [SPEC])


@pytest.mark.filterwarnings("ignore:kforge")
def test_the_fake_gives_the_variants_strides_and_symbolic_sizes(handle):
    """Inductor and export see outputs as the kernel will give them, also for symbolic sizes."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def run(x):
        return call(handle, x, x)

    def seen(mode, *sizes):
        traced = make_fx(run, tracing_mode=mode)(torch.randn(*sizes))
        node = next(n for n in traced.graph.nodes if n.target is torch.ops.kforge.launch.default)
        return traced, node.meta["val"][0]

    _, out = seen("fake", 8, 64)
    assert (tuple(out.shape), out.stride()) == ((8, 64), (64, 1))
    traced, out = seen("symbolic", 10, 64)
    assert isinstance(out.shape[0], torch.SymInt)
    assert torch.equal(traced(torch.ones(6, 64)), torch.full((6, 64), 2.0))


def test_launches_from_many_threads_are_counted(handle):
    """The table and the counters are safe without the GIL."""
    a, b = torch.randn(8, 64), torch.randn(8, 64)
    expected, wrong = torch.relu(a + b), []

    def work():
        for _ in range(200):
            wrong.extend([1] * (not torch.equal(call(handle, a, b), expected)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert launch.counters(handle)["launches"] == 800
