"""CUDA graphs around a model with kernels, and what its user does next, against a plain twin."""

from __future__ import annotations

import copy
import threading

import pytest
import torch

from kforge_nb.guard import launch, replay
from kforge_nb.guard.apply import apply
from tests.guard.rests.common import check, close, replays


def test_calls_are_replays_with_kernels_inside(guarded, x):
    """Each call is one replay, kernels counted, and another input gives its own result."""
    model, applied, twin = guarded
    for turn in range(4):
        check(model, twin, x + turn)
    assert replays(applied) == 4
    assert applied.counters()["replayed"] == 12
    assert not [r for g in applied.report()["graphs"] for r in g["reasons"]]


def _noted(name, real, told):
    """The method, which first notes its name."""

    def method(self, *args, **kwargs):
        told.append(name)
        return real(self, *args, **kwargs)

    return method


def test_a_recording_has_workspaces_of_its_own(guarded, x, monkeypatch):
    """None of cuBLAS's workspaces is there when a recording begins, and none of its own stays.

    They are given back whenever Inductor records, and a replay would write into freed memory.
    """
    model, applied, twin = guarded
    told = []
    monkeypatch.setattr(
        torch._C, "_cuda_clearCublasWorkspaces", lambda: told.append("clear"), raising=False
    )
    graph = torch.cuda.CUDAGraph
    for step in ("capture_begin", "capture_end"):
        monkeypatch.setattr(graph, step, _noted(step, getattr(graph, step), told))
    applied.backend.release()
    check(model, twin, x)
    assert told == ["clear", "capture_begin", "capture_end", "clear"]


def test_held_outputs_never_change(guarded, x):
    """Outputs that the user keeps are not overwritten by later replays."""
    model, _, twin = guarded
    with torch.no_grad():
        held = [model(x + i) for i in range(5)]
        expected = [twin(x + i) for i in range(5)]
    for mine, theirs in zip(held, expected, strict=True):
        close(mine, theirs)


def test_the_kill_switch_stops_replays(guarded, x):
    """With the switch on nothing recorded runs, and originals give the result."""
    model, applied, twin = guarded
    check(model, twin, x)
    before = replays(applied)
    with launch.originals():
        check(model, twin, x)
    assert replays(applied) == before
    assert sum(applied.counters()["fallbacks"].values()) == 3
    check(model, twin, x)
    assert replays(applied) == before + 1


def test_a_kernel_switched_off_leaves_the_recording(guarded, x):
    """A kernel that is disabled after recording does not run in later replays."""
    model, applied, twin = guarded
    check(model, twin, x)
    handle = next(iter(applied.backend.handles.values()))
    launch.enable(handle, False, "test")
    try:
        check(model, twin, x)
        before = launch.counters(handle)["launches"]
        applied.backend.graphs[0].replay.release()
        check(model, twin, x)
        assert launch.counters(handle)["launches"] == before
    finally:
        launch.enable(handle, True)


@pytest.mark.parametrize("change", ["in place", "copied in", "assigned", "moved"])
def test_weights_change_after_recording(guarded, x, make_block, change):
    """A replay reads the weights of now, wherever they lie."""
    model, _, twin = guarded
    check(model, twin, x)
    state = make_block(9).state_dict()
    for module in (model, twin):
        if change == "in place":
            with torch.no_grad():
                module.norm.weight.mul_(2)
        elif change == "moved":
            for tensor in module.parameters():
                tensor.data = tensor.data.clone()
        else:
            module.load_state_dict(state, assign=change == "assigned")
    for turn in range(3):
        check(model, twin, x + turn)


def test_half_after_recording(guarded, x):
    """Another dtype is another graph, without kernels and right; the recording before is gone."""
    model, applied, twin = guarded
    check(model, twin, x)
    before = applied.backend.graphs[0].replay
    assert before.recorded
    for module in (model, twin):
        module.half()
    with torch.no_grad():
        torch.testing.assert_close(model(x.half()), twin(x.half()), rtol=1e-2, atol=1e-3)
    assert not before.recorded


def test_shapes_a_b_a(guarded, x):
    """Each shape has a recording of its own."""
    model, applied, twin = guarded
    for rows in (8, 5, 8, 5, 8):
        check(model, twin, torch.randn(rows, 64, device=x.device))
    assert replays(applied) == 5
    assert applied.counters()["replayed"] == 9


def test_grad_modes(guarded, x):
    """no_grad, inference mode, and gradients, in any order."""
    model, _, twin = guarded
    for mode in (torch.no_grad, torch.inference_mode, torch.no_grad):
        with mode():
            close(model(x), twin(x))
    for module in (model, twin):
        module(x).square().sum().backward()
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-5)
    check(model, twin, x)


def test_undo_gives_the_memory_back_and_apply_records_again(block, accept, x):
    """After undo nothing recorded is held; installing again works."""
    twin = copy.deepcopy(block)
    applied = apply([block], accept(block, x), "cudagraphs")
    check(block, twin, x)
    assert applied.backend.graphs[0].replay.recorded
    applied.undo()
    assert not applied.backend.graphs[0].replay.recorded
    applied.install()
    check(block, twin, x)
    assert replays(applied) == 2
    applied.undo()


def test_memory_is_given_back_when_the_last_replay_has_ended(block, accept, x, monkeypatch):
    """A replay on another stream may still be running: undo and a new recording wait for it."""
    held, real = [], replay.Lane.drain

    def drain(lane):
        held.append(applied.backend.graphs[0].replay.recorded)
        real(lane)

    monkeypatch.setattr(replay.Lane, "drain", drain)
    applied = apply([block], accept(block, x), "cudagraphs")
    with torch.no_grad():
        block(x)
        for tensor in block.parameters():
            tensor.data = tensor.data.clone()
        block(x)
    assert held == [True]
    applied.undo()
    assert held == [True, True]


def test_a_second_apply_gives_back_what_the_first_recorded(block, accept, x):
    """A covered installation holds no recording; uncovered, it records again."""
    twin = copy.deepcopy(block)
    first = apply([block], accept(block, x), "cudagraphs")
    check(block, twin, x)
    replayed = first.backend.graphs[0].replay
    assert replayed.recorded
    second = apply([block], accept(block, x), "cudagraphs")
    assert not replayed.recorded
    check(block, twin, x)
    second.undo()
    check(block, twin, x)
    assert replayed.recorded
    first.undo()


def test_recordings_given_back_do_not_count_as_moves(block, accept, x, monkeypatch):
    """A graph whose memory is given back often is recorded each time."""
    monkeypatch.setattr(replay, "MOST_RECORDINGS", 2)
    twin = copy.deepcopy(block)
    applied = apply([block], accept(block, x), "cudagraphs")
    for _ in range(4):
        check(block, twin, x)
        applied.backend.release()
    assert replays(applied) == 4
    applied.undo()


class Casts(torch.nn.Module):
    """A weight that autocast casts; ``inside`` opens a block of its own."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.linear, self.inside = torch.nn.Linear(64, 64), inside

    def forward(self, x):
        if not self.inside:
            return torch.relu(self.linear(x))
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return torch.relu(self.linear(x))


@pytest.mark.parametrize("inside", [False, True], ids=["around", "around and inside"])
def test_casts_of_weights_are_recorded_and_not_looked_up(device, monkeypatch, inside):
    """Autocast's copies end with the user's block, so a replay must cast the weights of now."""
    model, x = Casts(inside).to(device), torch.randn(8, 64, device=device)
    twin, looked_up = copy.deepcopy(model), []
    real = replay._Recording._record

    def record(self, run, *rest):
        def watched(*args):
            looked_up.append(torch.is_autocast_cache_enabled())
            return run(*args)

        return real(self, watched, *rest)

    monkeypatch.setattr(replay._Recording, "_record", record)
    applied = apply([model], [], "cudagraphs")
    for turn in range(4):
        with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
            mine = model(x + turn)
            spare = [torch.full((64, 64), 9.0, device=device).bfloat16() for _ in range(8)]
        with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
            torch.testing.assert_close(mine, twin(x + turn), rtol=2e-2, atol=2e-2)
            assert torch.is_autocast_cache_enabled()
        del spare
        with torch.no_grad():
            for weight in (model.linear.weight, twin.linear.weight):
                weight.mul_(1.5)
    assert replays(applied) == 4
    assert looked_up[0] is False
    applied.undo()


def test_calls_from_another_thread_and_on_another_stream(guarded, x):
    """A recording made in one thread serves others, and streams do not overtake each other."""
    model, _, twin = guarded
    check(model, twin, x)
    found = []

    def work():
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            found.extend(model(x + turn) for turn in range(20))
            torch.cuda.current_stream().synchronize()

    torch.cuda.synchronize()
    thread = threading.Thread(target=work)
    thread.start()
    with torch.no_grad():
        here = [model(x - turn) for turn in range(20)]
    thread.join()
    with torch.no_grad():
        for turn in range(20):
            close(found[turn], twin(x + turn))
            close(here[turn], twin(x - turn))
