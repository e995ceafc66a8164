"""The launch op on a GPU: values, layouts, scratch, shared memory, fallbacks, errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan
from kforge_nb.errors import ContractBreach
from kforge_nb.guard import launch
from kforge_nb.targets.target import TensorSpec
from tests.guard_cuda.launching import (
    ADD_RELU,
    SPEC,
    add_relu,
    build,
    call,
    graph,
    register,
    two_steps,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]


def randn(*sizes, **more):
    """Normal values on the GPU."""
    return torch.randn(*sizes, device="cuda", **more)


@pytest.fixture
def handle(nvrtc_cache):
    """A fresh handle of add_relu at 8x64, with no shadow checks."""
    return register(add_relu(), nvrtc_cache)


def test_a_launch_gives_the_kernels_result(handle):
    """The kernel runs on the GPU, its result equals eager's, and it is counted once."""
    a, b = randn(8, 64), randn(8, 64)
    assert torch.equal(call(handle, a, b), torch.relu(a + b))
    assert launch.counters(handle) == {"launches": 1, "copies": 0, "shadowed": 0, "fallbacks": {}}


def test_the_short_form_is_the_same_launch(handle):
    """Without lists: the same result, also from a captured graph on new values."""
    a, b = randn(8, 64), randn(8, 64)
    op = torch.ops.kforge.launch.in2
    assert torch.equal(op(a, b, handle), torch.relu(a + b))
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = op(a, b, handle)
    a.copy_(randn(8, 64))
    captured.replay()
    assert torch.equal(out, torch.relu(a + b))
    assert launch.counters(handle)["launches"] == 2


@pytest.mark.parametrize(
    ("make", "copies"),
    [
        (lambda: randn(8, 128)[:, ::2], 1),
        (lambda: randn(64, 8).t(), 1),
        (lambda: randn(8 * 64 + 1)[1:].view(8, 64), 1),
        (lambda: randn(8 * 64 + 4)[4:].view(8, 64), 0),
        (lambda: randn(1, 64).expand(8, 64), 1),
    ],
    ids=["strided", "transposed", "4 bytes off", "16 bytes off", "expanded"],
)
def test_other_layouts_are_copied(handle, make, copies):
    """A view that 16-byte accesses cannot read as it lies is copied, and only such a view."""
    a, b = make(), randn(8, 64)
    assert torch.equal(call(handle, a, b), torch.relu(a + b))
    assert launch.counters(handle)["copies"] == copies
    assert launch.counters(handle)["launches"] == 1


def test_kernels_run_in_order_over_zeroed_scratch(nvrtc_cache):
    """Two kernels share scratch that is zero before every call, whatever memory it comes from."""
    handle = register(
        two_steps(), nvrtc_cache, lambda x: (2.5 * (x - x.mean()) + 0.25,), inputs=1
    )  # fmt: skip
    for seed in range(5):
        torch.manual_seed(seed)
        torch.full((4096,), float("nan"), device="cuda")  # freed at once: poison for what comes
        x = randn(8, 64)
        torch.testing.assert_close(call(handle, x), 2.5 * (x - x.mean()) + 0.25)
    assert launch.counters(handle)["launches"] == 5


@pytest.mark.parametrize("shared", [48 << 10, 100 << 10, 200 << 10])
def test_large_dynamic_shared_memory(nvrtc_cache, shared):
    """More than 48 KB of shared memory is asked for once, when the kernel is added."""
    most = torch.cuda.get_device_properties("cuda").shared_memory_per_block_optin
    if shared > most:
        pytest.skip(f"this GPU gives a block {most} bytes")
    handle = register(
        two_steps(shared), nvrtc_cache, lambda x: (2.5 * (x - x.mean()) + 0.25,), inputs=1
    )  # fmt: skip
    x = randn(8, 64)
    torch.testing.assert_close(call(handle, x), 2.5 * (x - x.mean()) + 0.25)
    assert launch.counters(handle)["fallbacks"] == {}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: randn(4, 64), "another shape"),
        (lambda: randn(8, 64, dtype=torch.float64), "another dtype"),
        (lambda: randn(8, 64).bfloat16(), "another dtype"),
        (lambda: torch.randn(8, 64), "another device"),
    ],
    ids=["shape", "float64", "bfloat16", "on the CPU"],
)
@pytest.mark.filterwarnings("ignore:kforge")
def test_what_does_not_fit_runs_the_original(handle, make, reason):
    """Another shape, dtype or device gives eager's result, and the reason is counted."""
    a, b = make(), make()
    assert torch.equal(call(handle, a, b), torch.relu(a + b))
    assert launch.counters(handle)["fallbacks"] == {reason: 1}
    assert launch.counters(handle)["launches"] == 0


@pytest.mark.filterwarnings("ignore:kforge")
def test_a_needed_gradient_runs_the_original_and_flows(handle):
    """A launch with a gradient needed gives eager's gradient; without one the kernel runs."""
    a = randn(8, 64, requires_grad=True)
    b = randn(8, 64)
    call(handle, a, b).sum().backward()
    assert torch.equal(a.grad, ((a + b) > 0).float())
    assert launch.counters(handle)["fallbacks"] == {"a gradient is needed": 1}
    with torch.no_grad():
        call(handle, a, b)
    call(handle, b, b)
    with torch.inference_mode():
        call(handle, b, b)
    assert launch.counters(handle)["launches"] == 3


def test_the_kill_switch_sends_everything_to_the_original(handle):
    """Off means the original for every launch; on again means the kernel."""
    a, b = randn(8, 64), randn(8, 64)
    with launch.originals():
        assert torch.equal(call(handle, a, b), torch.relu(a + b))
    call(handle, a, b)
    found = launch.counters(handle)
    assert (found["launches"], found["fallbacks"]) == (1, {"the kill switch is on": 1})


def test_the_shadow_check_switches_a_wrong_kernel_off(nvrtc_cache):
    """A kernel that differs on its first live call is disabled and the original's result used."""
    handle = register(add_relu(ADD_RELU.replace("x.y + y.y", "x.y - y.y")), nvrtc_cache, shadow=2)
    a, b = randn(8, 64), randn(8, 64)
    with pytest.warns(RuntimeWarning, match="differs from its original"):
        assert torch.equal(call(handle, a, b), torch.relu(a + b))
    assert torch.equal(call(handle, a, b), torch.relu(a + b))
    assert launch.counters(handle)["shadowed"] == 1
    assert "shadow check" in launch.kernel(handle).note


def test_a_failing_launch_runs_the_original_and_is_not_tried_again(nvrtc_cache):
    """A block that the kernel was not compiled for fails; the result is eager's, once and later."""
    source = ADD_RELU.replace("void add_relu", "void __launch_bounds__(32) add_relu")
    handle = register(add_relu(source, block="1024"), nvrtc_cache)
    a, b = randn(8, 64), randn(8, 64)
    with pytest.warns(RuntimeWarning, match="switched off.*CUDA_ERROR"):
        assert torch.equal(call(handle, a, b), torch.relu(a + b))
    assert torch.equal(call(handle, a, b), torch.relu(a + b))
    torch.cuda.synchronize()
    assert launch.counters(handle)["fallbacks"] == {
        "a launch that failed": 1,
        "switched off after a mismatch or an error": 1,
    }
    assert "CUDA_ERROR" in launch.kernel(handle).note


@pytest.mark.filterwarnings("ignore:kforge")
def test_no_memory_for_the_output_is_eagers_error_and_passes(nvrtc_cache):
    """Out of memory is counted and says so as eager does; the kernel runs when there is room."""
    rows = 1 << 20
    spec = TensorSpec((rows, 64), (64, 1), "float32", "cuda:0")
    handle = register(add_relu(), nvrtc_cache, spec=spec)
    a = randn(rows, 64)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties("cuda").total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (64 << 20)) / total)
    try:
        with pytest.raises(RuntimeError, match="out of memory"):
            call(handle, a, a)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert launch.counters(handle)["fallbacks"] == {"no memory for its outputs": 1}
    assert torch.equal(call(handle, a, a), torch.relu(a + a))
    assert launch.counters(handle)["launches"] == 1


def test_register_refuses_code_that_cannot_run_here(nvrtc_cache, tmp_path):
    """A cubin without the kernel, of another architecture, or no cubin at all is refused."""
    original, candidate = graph(lambda a, b: (torch.relu(a + b),)), add_relu()
    cubin = build(candidate, nvrtc_cache)
    other = Candidate("cuda", "", LaunchPlan((Kernel("absent", candidate.plan.kernels[0].args),)))
    with pytest.raises(ContractBreach, match=r"NOT_FOUND|not found"):
        launch.register(other, cubin, original, [SPEC, SPEC], [SPEC])
    rubbish = tmp_path / "rubbish.cubin"
    rubbish.write_bytes(b"no cubin" * 100)
    with pytest.raises(ContractBreach, match=r"INVALID_IMAGE|NO_BINARY"):
        launch.register(candidate, rubbish, original, [SPEC, SPEC], [SPEC])


STICKY = """
import torch
from pathlib import Path
from kforge_nb.guard import launch
from tests.guard_cuda.launching import ADD_RELU, add_relu, call, register
cache = Path({cache!r})
good = register(add_relu(), cache)
bad = register(add_relu(ADD_RELU.replace("o[i] =", "o[i + (1ll << 40)] =")), cache)
a = torch.randn(8, 64, device="cuda")
call(bad, a, a)
try:
    torch.cuda.synchronize()
except Exception:
    pass
try:
    call(good, a, a)
except RuntimeError as problem:
    print("WORDS", problem)
"""


def test_a_broken_context_is_said_in_words(nvrtc_cache):
    """After an illegal access nothing can run in this process: the error says what to do."""
    done = subprocess.run(
        [sys.executable, "-c", STICKY.format(cache=str(nvrtc_cache))],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    words = [line for line in done.stdout.splitlines() if line.startswith("WORDS")]
    assert words, done.stdout + done.stderr
    assert "context of cuda:0 is broken" in words[0]
    assert "Restart" in words[0]
