"""CUDA graphs around a model with kernels: every trap of recording, against a plain twin."""

from __future__ import annotations

import copy
import threading

import pytest
import torch

from kforge_nb.errors import BadInput
from kforge_nb.guard import launch, replay
from kforge_nb.guard.apply import apply
from kforge_nb.guard.decide import decide
from kforge_nb.workload.capture import watch
from tests.guard.pretend import pretend

GPU = pytest.mark.gpu
PLACES = [
    pytest.param(("pretended", "cudagraphs"), id="pretended"),
    pytest.param(("cuda", "cudagraphs"), id="cudagraphs", marks=GPU),
    pytest.param(("cuda", "inductor-cudagraphs"), id="inductor-cudagraphs", marks=GPU),
]


def pytest_generate_tests(metafunc):
    """Tests of an installed model meet each rest, the others plain CUDA graphs alone."""
    if "guarded" in metafunc.fixturenames:
        metafunc.parametrize("place", PLACES, indirect=True)
    elif "place" in metafunc.fixturenames:
        metafunc.parametrize("place", PLACES[:2], indirect=True)


@pytest.fixture
def place(request, monkeypatch):
    """(device, rest); CUDA graphs are pretended on the CPU, real ones need a GPU."""
    device, rest = request.param
    if device == "pretended":
        pretend(monkeypatch)
        return "cpu", rest
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return device, rest


@pytest.fixture
def device(place):
    """The device of the model."""
    return place[0]


@pytest.fixture
def gpu():
    """A test that asks for this needs a GPU."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return "cuda"


@pytest.fixture
def x(device):
    """The input that the kernels were accepted for."""
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(3)).to(device)


@pytest.fixture
def guarded(place, block, accept, x):
    """(model, its Applied, an untouched twin) for each rest with CUDA graphs."""
    twin = copy.deepcopy(block)
    applied = apply([block], accept(block, x), place[1])
    yield block, applied, twin
    applied.undo()


def close(mine, theirs):
    """Equal up to what another order of additions may do."""
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def check(model, twin, *args):
    """The model gives the twin's result under no_grad."""
    with torch.no_grad():
        close(model(*args), twin(*args))


def replays(applied):
    """Replays of all graphs since installation."""
    return sum(g.replay.replays for g in applied.backend.graphs if g.replay is not None)


def test_calls_are_replays_with_kernels_inside(guarded, x):
    """Each call is one replay, kernels counted, and another input gives its own result."""
    model, applied, twin = guarded
    for turn in range(4):
        check(model, twin, x + turn)
    assert replays(applied) == 4
    assert applied.counters()["replayed"] == 12
    assert not [r for g in applied.report()["graphs"] for r in g["reasons"]]


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


@GPU
def test_inside_the_users_own_capture(gpu, make_block, accept):
    """A model that the user records in a CUDA graph of his own is recorded plainly."""
    model, x = make_block().to(gpu), torch.randn(8, 64, device=gpu)
    twin = copy.deepcopy(model)
    applied = apply([model], accept(model, x), "cudagraphs")
    with torch.no_grad():
        model(x)
        static = x.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(static)
        static.copy_(x + 1)
        graph.replay()
        close(out, twin(x + 1))
    applied.undo()


class Writes(torch.nn.Module):
    """Counts in a buffer, writes to its input, returns views and its input."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x, y):
        h = torch.relu(x + y)
        self.seen.add_(1)
        x.mul_(2)
        return h, h[:, 3:], x, x[1:], self.seen + 0


def test_graphs_that_write(accept, device):
    """Buffers and inputs are written exactly once a call, and aliases are those of eager."""
    model, twin = Writes().to(device), Writes().to(device)
    x, y = torch.randn(8, 64, device=device), torch.randn(8, 64, device=device)
    with torch.no_grad():
        applied = apply([model], accept(model, x.clone(), y), "cudagraphs")
    model.seen.zero_()
    for turn in range(4):
        mine, theirs = x + turn, x + turn
        with torch.no_grad():
            got, expected = model(mine, y), twin(theirs, y)
        assert torch.equal(mine, theirs)
        assert torch.equal(model.seen, twin.seen)
        for a, b in zip(got, expected, strict=True):
            assert torch.equal(a, b)
            assert a.stride() == b.stride()
        mine.fill_(7)
        assert bool((got[3] == 7).all())
        got[0].fill_(5)
        assert bool((got[1] == 5).all())
    assert replays(applied) == 4, [g.remarks for g in applied.backend.graphs]
    applied.undo()


class Peeks(torch.nn.Module):
    """Writes to a buffer of its own, then reads an argument, which may be a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(8, 64))

    def forward(self, x, row):
        self.seen.add_(x)
        return row * 2


def test_an_argument_that_is_a_part_of_a_written_buffer(device):
    """What the graph writes to the buffer shows in the argument, as it does without kforge."""
    model, twin = Peeks().to(device), Peeks().to(device)
    x, apart = torch.randn(8, 64, device=device), torch.randn(1, 64, device=device)
    with torch.no_grad():
        applied = apply([model], [], "cudagraphs")
        assert torch.equal(model(x, apart), twin(x, apart))
        for turn in range(3):
            got = model(x + turn, model.seen[:1])
            assert torch.equal(got, twin(x + turn, twin.seen[:1]))
            assert torch.equal(model.seen, twin.seen)
        assert torch.equal(model(x, apart), twin(x, apart))
    assert replays(applied) == 2
    applied.undo()


class Decodes(torch.nn.Module):
    """Writes a row of a cache that it is given, as decoding with a static cache does."""

    def forward(self, x, cache, at):
        cache.index_copy_(0, at, torch.relu(x + x.flip(-1)))
        return cache @ x.t()


@pytest.mark.parametrize("static", [False, True], ids=["plain", "at a static address"])
def test_a_cache_that_every_call_writes_to(accept, device, static):
    """Steps go into the caller's cache in order, also into another cache of the same size."""
    model, twin = Decodes(), Decodes()
    x = torch.randn(1, 64, device=device)
    caches = [[torch.zeros(6, 64, device=device) for _ in range(2)] for _ in range(2)]
    at = torch.zeros(1, dtype=torch.long, device=device)
    if static:
        for cache in caches[0]:
            torch._dynamo.mark_static_address(cache)
    accepted = accept(model, x, torch.zeros(6, 64, device=device), at)
    applied = apply([model], accepted, "cudagraphs")
    for step in range(6):
        for mine, theirs in zip(*caches, strict=True):
            with torch.no_grad():
                close(model(x + step, mine, at + step), twin(x + step, theirs, at + step))
            close(mine, theirs)
    assert replays(applied) == 12, [g.remarks for g in applied.backend.graphs]
    assert applied.counters()["replayed"] == 12 * len(accepted)
    applied.undo()


@GPU
def test_a_model_over_two_gpus(gpu, accept):
    """Each half keeps its kernels, the graph is not recorded, and the report names both GPUs."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")

    class Two(torch.nn.Module):
        def forward(self, x):
            h = torch.relu(x + x.flip(-1)).to("cuda:1")
            return (h @ h.t()).softmax(-1)

    model, twin, x = Two(), Two(), torch.randn(8, 64, device="cuda:0")
    accepted = accept(model, x)
    applied = apply([model], accepted, "cudagraphs")
    check(model, twin, x)
    reasons = " ".join(applied.report()["graphs"][0]["reasons"])
    assert "cuda:0 and cuda:1" in reasons
    applied.undo()


def test_random_numbers_are_eagers(device):
    """A recorded dropout draws what eager draws from the same seed, on every call."""

    class Drops(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.dropout(x * 2, 0.5, True)

    model, twin, x = Drops(), Drops(), torch.ones(64, 64, device=device)
    applied = apply([model], [], "cudagraphs")
    results = []
    for module in (model, twin):
        torch.manual_seed(5)
        with torch.no_grad():
            results.append([module(x) for _ in range(3)])
    for mine, theirs in zip(*results, strict=True):
        assert torch.equal(mine, theirs)
    assert replays(applied) == 3
    applied.undo()


class Split(torch.nn.Module):
    """Half on the GPU, half on the CPU."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, 64).cuda()
        self.second = torch.nn.Linear(64, 64)

    def forward(self, x):
        h = torch.relu(self.first(x) + x)
        return self.second(h.cpu()).softmax(-1)


@GPU
def test_a_model_half_on_the_cpu(gpu, accept):
    """Targets of one device are replaced, the graph is not recorded, and both are said."""
    torch.manual_seed(0)
    model, x = Split().eval(), torch.randn(8, 64, device=gpu)
    twin = copy.deepcopy(model)
    accepted = accept(model, x)
    assert {k.outputs[0].device for k in accepted} == {"cuda:0", "cpu"}
    applied = apply([model], accepted, "cudagraphs")
    check(model, twin, x)
    graph = applied.report()["graphs"][0]
    assert sum(graph["replaced"].values()) == 2
    assert any("cpu and cuda:0" in reason for reason in graph["reasons"])
    assert any("no CUDA graph" in reason for reason in graph["reasons"])
    applied.undo()
    with torch.no_grad():
        workload = watch(lambda: model(x))
    report = decide(workload, accepted, "cudagraphs", time_limit=20)
    assert any("could be recorded" in note for note in report.notes), report.notes


@GPU
def test_a_model_on_the_cpu_beside_a_gpu(gpu, block):
    """CUDA graphs are refused in words where the model is not on a GPU, though there is one."""
    x = torch.randn(8, 64)
    with torch.no_grad():
        workload = watch(lambda: block(x))
    with pytest.raises(BadInput, match="on a CUDA device"):
        decide(workload, [], "cudagraphs")


@GPU
def test_running_out_of_memory_is_no_end(gpu, make_block, accept, monkeypatch):
    """A rest that does not fit is named, the next one is measured, the model is as it was."""
    block, x = make_block().to(gpu), torch.randn(8, 64, device=gpu)
    with torch.no_grad():
        workload = watch(lambda: block(x))
    accepted = accept(block, x)

    def no_room(*args):
        return torch.empty(1 << 50, dtype=torch.uint8, device="cuda")

    monkeypatch.setattr(replay._Recording, "_record", no_room)
    report = decide(workload, accepted, time_limit=60)
    assert any("cudagraphs" in n and "memory does not suffice" in n for n in report.notes)
    assert {w.rest for w in report.whole} == {"eager", "inductor"}
    assert block._compiled_call_impl is None


class Waits(torch.nn.Module):
    """Waits for the device in the middle, which no recording can hold."""

    def forward(self, x):
        return torch.relu(x + torch.ops.kforge_test.wait(x))


@GPU
def test_a_graph_that_waits_for_the_device_runs_plain(gpu):
    """The reason is told once, results are eager's, and random numbers still come."""
    library = torch.library.Library("kforge_test", "FRAGMENT")
    library.define("wait(Tensor x) -> Tensor")
    library.impl("wait", _wait, "CUDA")
    torch.library.register_fake("kforge_test::wait", torch.empty_like, lib=library)
    model, x = Waits(), torch.randn(8, 64, device=gpu)
    applied = apply([model], [], "cudagraphs")
    with torch.no_grad():
        for turn in range(3):
            assert torch.equal(model(x + turn), torch.relu(2 * (x + turn)))
    assert replays(applied) == 0
    assert "recording it failed" in applied.report()["graphs"][0]["reasons"][0]
    assert torch.rand(3, device=gpu).shape == (3,)
    applied.undo()


def _wait(x):
    torch.cuda.synchronize()
    return x.clone()


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (RuntimeError("operation not permitted when stream is capturing"), "recording it failed"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "memory does not suffice"),
    ],
    ids=["refused", "no memory"],
)
def test_what_cannot_be_recorded_runs_plain(block, accept, x, monkeypatch, problem, words):
    """A recording that fails is tried once; from then on the graph runs as it is, and says why."""
    tries, mended = [], []

    def failing(*_):
        tries.append(1)
        raise problem

    monkeypatch.setattr(replay._Recording, "_record", failing)
    monkeypatch.setattr(replay, "_mend_generators", mended.append)
    twin = copy.deepcopy(block)
    applied = apply([block], accept(block, x), "cudagraphs")
    for turn in range(3):
        check(block, twin, x + turn)
    assert (len(tries), len(mended), replays(applied)) == (1, 1, 0)
    assert words in " ".join(applied.report()["graphs"][0]["reasons"])
    applied.undo()


def test_a_graph_that_never_settles_is_given_up(block, accept, x, monkeypatch):
    """Weights that move again and again are recorded only so often."""
    monkeypatch.setattr(replay, "MOST_RECORDINGS", 3)
    twin = copy.deepcopy(block)
    applied = apply([block], accept(block, x), "cudagraphs")
    for _ in range(5):
        for tensor in block.parameters():
            tensor.data = tensor.data.clone()
        check(block, twin, x)
    assert replays(applied) == 3
    assert "moved more than 3 times" in " ".join(applied.report()["graphs"][0]["reasons"])
    applied.undo()
