"""Graphs that are hard to record, or cannot be: eager's result, and the reason in the report."""

from __future__ import annotations

import copy

import pytest
import torch

from kforge_nb.errors import BadInput
from kforge_nb.guard import replay
from kforge_nb.guard.apply import apply
from kforge_nb.guard.decide import decide
from kforge_nb.workload.capture import watch
from tests.guard.rests.common import GPU, check, close, replays


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
