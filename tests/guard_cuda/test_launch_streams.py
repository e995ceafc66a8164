"""The launch op under CUDA-graph capture, on several streams and threads, and inside Inductor."""

from __future__ import annotations

import threading

import pytest
import torch

from kforge_nb.guard import launch
from tests.guard_cuda.launching import add_relu, call, reading_late, register, two_steps

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]


def randn(*sizes):
    """Normal values on the GPU."""
    return torch.randn(*sizes, device="cuda")


def mean_off(x):
    """What two_steps computes."""
    return (2.5 * (x - x.mean()) + 0.25,)


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "first call"])
def test_capture_and_replay_with_other_inputs(nvrtc_cache, warm):
    """A captured call, also a kernel's very first, replays on new values, its scratch zeroed."""
    handle = register(two_steps(), nvrtc_cache, mean_off, inputs=1)
    x = randn(8, 64)
    if warm:
        call(handle, x)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = call(handle, x)
    for _ in range(3):
        x.copy_(randn(8, 64))
        captured.replay()
        torch.testing.assert_close(out, mean_off(x)[0])
    assert launch.counters(handle) == {
        "launches": 1 + warm, "copies": 0, "shadowed": 0, "fallbacks": {},
    }  # fmt: skip


def test_a_capture_copies_misaligned_inputs_each_replay(nvrtc_cache):
    """The copy that mends a layout is part of the graph, so later values are seen."""
    handle = register(add_relu(), nvrtc_cache)
    a, b = randn(8 * 64 + 1)[1:].view(8, 64), randn(8, 64)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = call(handle, a, b)
    a.copy_(randn(8, 64))
    captured.replay()
    assert torch.equal(out, torch.relu(a + b))


def test_no_shadow_check_inside_a_capture(nvrtc_cache):
    """Comparing would read values, which a capture forbids; the check waits for a plain call."""
    handle = register(add_relu(), nvrtc_cache, shadow=1)
    a, b = randn(8, 64), randn(8, 64)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = call(handle, a, b)
    captured.replay()
    assert torch.equal(out, torch.relu(a + b))
    assert launch.counters(handle)["shadowed"] == 0
    call(handle, a, b)
    assert launch.counters(handle)["shadowed"] == 1


def test_a_kernel_added_while_a_graph_is_captured(nvrtc_cache):
    """Loading code does not break a capture that is under way, and the launch is part of it."""
    register(two_steps(), nvrtc_cache, mean_off, inputs=1)  # built and cached before
    x = randn(8, 64)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        handle = register(two_steps(512 * 4), nvrtc_cache, mean_off, inputs=1)
        out = call(handle, x)
    captured.replay()
    torch.testing.assert_close(out, mean_off(x)[0])


def test_a_launch_runs_on_the_current_stream(nvrtc_cache):
    """An event recorded behind a slow launch is what another stream's launch waits for."""
    slow, quick = register(reading_late(), nvrtc_cache), register(add_relu(), nvrtc_cache)
    a, b = randn(8, 64), randn(8, 64)
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(5):
        with torch.cuda.stream(first):
            between = call(slow, a, b)
            done = torch.cuda.Event()
            done.record()
            assert not done.query(), "the event does not stand behind the launch"
        with torch.cuda.stream(second):
            second.wait_event(done)
            out = call(quick, between, b)
        torch.cuda.synchronize()
        assert torch.equal(out, torch.relu(torch.relu(a + b) + b))


def test_threads_on_streams_of_their_own(nvrtc_cache):
    """New threads have no CUDA context of their own making, and every launch is counted."""
    handle = register(two_steps(), nvrtc_cache, mean_off, inputs=1)
    wrong: list[str] = []

    def work(seed: int) -> None:
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                x = torch.full((8, 64), float(seed), device="cuda")
                x[0, 0] = 100.0
                for _ in range(50):
                    out = call(handle, x)
                    torch.testing.assert_close(out, mean_off(x)[0])
        except Exception as problem:  # noqa: BLE001 (told by the main thread)
            wrong.append(repr(problem))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert launch.counters(handle)["launches"] == 200


def test_a_first_launch_from_a_bare_thread(nvrtc_cache):
    """A thread that has made no CUDA call yet launches straight away."""
    handle = register(add_relu(), nvrtc_cache)
    a, b = randn(8, 64), randn(8, 64)
    call(handle, a, b)  # memory for the output is cached, so the thread allocates without CUDA
    found: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: found.append(call(handle, a, b)))
    thread.start()
    thread.join()
    assert torch.equal(found[0], torch.relu(a + b))
    assert launch.counters(handle)["fallbacks"] == {}


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_inside_inductor(nvrtc_cache, mode):
    """Inductor keeps the op whole, fuses around it, and its CUDA graphs replay it."""
    handle = register(two_steps(), nvrtc_cache, mean_off, inputs=1)

    def function(x, y):
        return torch.ops.kforge.launch.default([x * 2], handle)[0] + y

    compiled = torch.compile(function, mode=mode, fullgraph=True, dynamic=False)
    with torch.no_grad():
        for _ in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            x, y = randn(8, 64), randn(8, 64)
            torch.testing.assert_close(compiled(x, y), mean_off(x * 2)[0] + y)
    assert launch.counters(handle)["launches"] >= 1
    assert launch.counters(handle)["fallbacks"] == {}
