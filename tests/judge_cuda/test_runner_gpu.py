"""The CUDA runner on a real device: right answers, every way to break, and times that agree."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest
import torch

from kforge_nb.candidates.candidate import Kernel, LaunchPlan, Scratch
from kforge_nb.candidates.plan import resolve
from kforge_nb.compilers.nvrtc import CudaBuilt, build_cuda, device_arch
from kforge_nb.judge.cases import make_case, secret_generator
from kforge_nb.judge.cuda.binary import cuda_facts, cuda_runner_binary
from kforge_nb.judge.cuda.flush import build_flush
from kforge_nb.judge.cuda.handle import CudaLimits
from kforge_nb.judge.cuda.session import CudaCandidate
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.judge.protocol import HELD_CALLS
from kforge_nb.judge.runner_handle import RunnerFailed
from kforge_nb.judge.slots import TimedInputs
from tests.judge.kernels import target_of
from tests.judge_cuda.fakes import on_device, one, plan_of

pytestmark = pytest.mark.gpu
N = 1 << 16

SOURCE = """
#define INDEX (blockIdx.x * (long long)blockDim.x + threadIdx.x)
#define KERNEL(name, ...) \\
  extern "C" __global__ void name(const float* x, float* y, long long n, ##__VA_ARGS__)
#define TWICE if (INDEX < n && blockIdx.y == 0) y[INDEX] = 2.0f * x[INDEX];
KERNEL(twice) { TWICE }
KERNEL(scale, float f) { if (INDEX < n && blockIdx.y == 0) y[INDEX] = f * x[INDEX]; }
KERNEL(beside, long long at) { TWICE; if (INDEX == 0) y[at] = 1.0f; }
KERNEL(vandal) { TWICE; if (INDEX == 0) const_cast<float*>(x)[1] = 3.0f; }
KERNEL(illegal) { TWICE; if (INDEX == 0) *(volatile float*)64 = 1.0f; }
KERNEL(trap) { TWICE; if (INDEX == 0) __trap(); }
KERNEL(hang) { TWICE; while (*(volatile unsigned*)y != 0x12345678u) {} }
KERNEL(greedy) {
  extern __shared__ float s[];
  s[threadIdx.x] = 2.0f;
  __syncthreads();
  if (INDEX < n && blockIdx.y == 0) y[INDEX] = s[threadIdx.x ^ 1] * x[INDEX];
}
KERNEL(finds) {  // y[1] says whether y[0] was there already
  if (INDEX == 0) {
    const bool found = y[0] == 2.0f * x[0];
    y[0] = 2.0f * x[0];
    y[1] = found ? -1.0f : 2.0f * x[1];
  } else if (INDEX > 1) {
    TWICE
  }
}
extern "C" __global__ void partial(const float* x, float* total, long long n) {
  float s = 0.0f;
  for (long long i = threadIdx.x; i < n; i += blockDim.x) s += x[i];
  for (int d = 16; d > 0; d /= 2) s += __shfl_xor_sync(~0u, s, d);
  if (threadIdx.x % 32 == 0) atomicAdd(total, s);
}
extern "C" __global__ void apply(const float* x, const float* total, float* y, long long n) {
  if (INDEX < n) y[INDEX] = x[INDEX] + *total;
}
"""
NAMES = ("twice", "scale", "beside", "vandal", "illegal", "trap", "hang", "greedy", "finds",
         "partial", "apply")  # fmt: skip


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return tmp_path_factory.mktemp("cubins")


@pytest.fixture(scope="session")
def cubin(cache) -> Path:
    built = build_cuda(SOURCE, NAMES, cache=cache)
    assert isinstance(built, CudaBuilt), built.distilled
    return built.cubin


@pytest.fixture(scope="session")
def flush(cache) -> Path:
    return build_flush(cache, device_arch())


def _target(count: int = N):
    return on_device(target_of(lambda x: x * 2.0, torch.randn(count)))


@pytest.fixture(scope="module")
def target():
    return _target()


@pytest.fixture(scope="module")
def timed(target):
    inputs = TimedInputs(target.inputs, [torch.randn(N)], secret_generator())
    yield inputs
    inputs.close()


@pytest.fixture
def case(target):
    return make_case(target.graph, "captured 0", [torch.randn(N, device="cuda")])


@pytest.fixture
def run(target, timed, cubin, flush):
    """Starts a candidate; it is ended with the test."""
    opened: list[CudaCandidate] = []

    def starter(plan: LaunchPlan, of=None, slots=None, **limits):
        chosen = of or target
        made = CudaCandidate(
            chosen,
            resolve(plan, chosen.inputs, chosen.outputs),
            slots or timed,
            binary=cuda_runner_binary(),
            cubin=cubin,
            limits=CudaLimits(**{"call_seconds": 10.0, **limits}),
            flush=flush,
        )
        opened.append(made)
        return made

    yield starter
    for made in opened:
        made.__exit__(None, None, None)


def _grid(name: str, *more: str, shared: str = "0") -> LaunchPlan:
    """One kernel over all elements; the second row of blocks has nothing to do."""
    return one(name, *more, shared=shared)


def test_a_right_candidate_on_the_device(run, case):
    """Right, repeatable, and compared on the device where the expected values are."""
    loaded = run(_grid("twice"))
    loaded.load()
    checked = loaded.check([case])
    assert checked.wrong is None
    assert checked.repeatable is True
    assert loaded.kernels["twice"]["registers"] > 0
    assert loaded.runner.occupancy[0] > 0


def test_the_driver_works_confined(run):
    """The system-call filter holds where the driver is the real one."""
    facts = cuda_facts(0)
    assert {"privileges", "processes", "network", "other processes"} <= set(facts["confined"])
    assert facts["arch"] == device_arch()
    loaded = run(_grid("twice"))
    assert loaded.load() is True


BROKEN = {
    "illegal": (Verdict.CRASHED, "ILLEGAL_ADDRESS"),
    "trap": (Verdict.CRASHED, "CUDA_ERROR_LAUNCH_FAILED"),
    "hang": (Verdict.TIMED_OUT, "no answer within"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_candidate_is_followed_by_a_good_one(name, run, case):
    """A fault or a hang costs its own process and context only."""
    verdict, words = BROKEN[name]
    loaded = run(_grid(name), call_seconds=2.0 if name == "hang" else 60.0)
    loaded.load()
    with pytest.raises(RunnerFailed) as caught:
        loaded.check([case])
    assert caught.value.verdict is verdict, caught.value.reason
    assert words in caught.value.reason
    loaded.__exit__(None, None, None)
    assert not Path(f"/proc/{loaded.runner.child.pid}").exists()
    good = run(_grid("twice"))
    good.load()
    assert good.check([case]).wrong is None
    assert torch.equal(torch.ones(4, device="cuda") * 2, torch.full((4,), 2.0, device="cuda"))


@pytest.mark.parametrize(
    ("offset", "words"), [("-1", "guard zone"), ("N", "guard zone"), ("N + 12000", "far")]
)
def test_a_write_beside_the_output_is_seen(offset, words, run, case):
    """Device memory around every buffer is watched."""
    loaded = run(_grid("beside", f"i64:{offset}"))
    loaded.load()
    wrong = loaded.check([case]).wrong
    assert wrong is not None
    assert words in wrong
    good = run(_grid("twice"))
    good.load()
    assert good.check([case]).wrong is None


def test_a_changed_input_is_seen(run, case):
    """Inputs are compared after the call, on the host."""
    loaded = run(_grid("vandal"))
    loaded.load()
    assert loaded.check([case]).wrong == "it wrote to its input in0 on captured 0"


def test_shared_memory(run, case):
    """200 KB of dynamic shared memory work on a device that has them, a megabyte is refused."""
    most = int(cuda_facts(0)["shared"])
    loaded = run(_grid("greedy", shared=str(most)))
    loaded.load()
    assert loaded.check([case]).wrong is None
    with pytest.raises(RunnerFailed, match="shared memory") as caught:
        run(_grid("greedy", shared=str(1 << 20))).load()
    assert caught.value.verdict is Verdict.REFUSED


def test_too_few_arguments_are_refused(run):
    """A plan that gives a kernel less than it takes never reaches the driver."""
    with pytest.raises(RunnerFailed, match="takes 4 parameters") as caught:
        run(_grid("scale")).load()
    assert caught.value.verdict is Verdict.REFUSED


def test_code_for_another_architecture_says_so(target, timed, cache, cubin):
    """A cubin of another generation is not loaded, and the message names this device's."""
    other = "sm_80" if device_arch() != "sm_80" else "sm_90"
    built = build_cuda(SOURCE, NAMES, cache=cache, arch=other)
    assert isinstance(built, CudaBuilt)
    plan = resolve(_grid("twice"), target.inputs, target.outputs)
    with (
        CudaCandidate(
            target, plan, timed, binary=cuda_runner_binary(), cubin=built.cubin, limits=CudaLimits()
        ) as loaded,
        pytest.raises(RunnerFailed, match=device_arch()) as caught,
    ):
        loaded.load()
    assert caught.value.verdict is Verdict.COMPILE_FAILED


def test_two_kernels_with_scratch(run):
    """Scratch that starts as zero is zero before every call, checked and replayed."""
    total = on_device(target_of(lambda x: x + x.sum(), torch.randn(N)))
    plan = plan_of(
        Kernel("partial", ("in0", "t", "i64:N"), ("1", "1", "1"), ("256", "1", "1")),
        Kernel("apply", ("in0", "t", "out0", "i64:N"), ("ceil_div(N, 256)", "1", "1"),
               ("256", "1", "1")),
        t=Scratch("float32", ("1",), "zero"),
    )  # fmt: skip
    slots = TimedInputs(total.inputs, [torch.randn(N)], secret_generator())
    try:
        loaded = run(plan, of=total, slots=slots)
        loaded.load()
        made = make_case(total.graph, "captured 0", [torch.randn(N, device="cuda")])
        assert loaded.check([made]).wrong is None
        loaded.runner.upload(0, slots.slots)
        loaded.runner.prepare(6)
        loaded.runner.batch(3)
        again = make_case(total.graph, "timed", [slots.snapshot(5)[0].cuda()])
        torch.testing.assert_close(
            loaded.fetch(0)[0].cuda(), again.expected[0].eager, rtol=1e-4, atol=1e-2
        )
    finally:
        slots.close()


def test_replays_give_right_values(run, timed):
    """Every call of a graph has its own slot, outputs rotate, new values are seen."""
    loaded = run(_grid("scale", "f32:3"))
    loaded.load()
    loaded.runner.upload(0, timed.slots)
    calls = timed.slots + 2
    loaded.runner.prepare(calls)
    for _ in range(2):
        loaded.runner.batch(2)
        for age in range(HELD_CALLS):
            given = timed.snapshot((calls - 1 - age) % timed.slots)[0]
            assert torch.equal(loaded.fetch(age)[0], given * 3)
        timed.renew(0, timed.slots, random.Random(5))
        loaded.runner.upload(0, timed.slots)


def test_timed_calls_do_not_find_their_results(run, timed):
    """Outputs are wiped before every call of a graph, so that none finds an earlier result."""
    loaded = run(_grid("finds"))
    loaded.load()
    loaded.runner.upload(0, timed.slots)
    loaded.runner.prepare(4)
    loaded.runner.batch(3)
    assert torch.equal(loaded.fetch(0)[0], timed.snapshot(3)[0] * 2)


def test_the_judges_clock_and_the_devices_agree(run):
    """Net of flushes, wall time and events give the same time of a call within a tenth."""
    large = _target(1 << 24)
    slots = TimedInputs(large.inputs, [torch.randn(1 << 24)], secret_generator())
    try:
        loaded = run(_grid("twice"), of=large, slots=slots)
        loaded.load()
        loaded.runner.upload(0, slots.slots)
        loaded.runner.prepare(16)
        loaded.runner.batch(4)
        figures = [[loaded.runner.batch(8, empty) for empty in (False, True)] for _ in range(9)]
    finally:
        slots.close()
    net = [statistics.median((full[i] - empty[i]) / 128 for full, empty in figures) for i in (0, 1)]
    assert net[0] == pytest.approx(net[1], rel=0.10), net
    copied = 2 * 4 * (1 << 24) / net[1]
    assert 2e11 < copied < 2e13, net  # bytes a second: between a slow GPU and no GPU there is


@pytest.mark.parametrize("count", [600, 9000, 1 << 19])
def test_staged_inputs_are_what_the_judge_says(run, count):
    """The device and the judge draw the same, by elements, by 16 and by 64 bytes; notes agree."""
    large = _target(count)
    slots = TimedInputs(large.inputs, [torch.randn(count)], secret_generator(), most=8)
    try:
        loaded = run(_grid("twice"), of=large, slots=slots)
        loaded.load()
        loaded.runner.upload(0, slots.slots)
        for _ in range(2):
            staging = loaded.staging()
            loaded.runner.prepare(12, staging)
            loaded.runner.batch(2, empty=True)
            loaded.runner.batch(3)
            for call in (0, 5, 11):
                tick, values = loaded.noted(staging, call)
                (x,), (places,) = staging.staged(slots, tick, call), staging.places(tick, call)
                assert torch.equal(values[0], 2.0 * x[torch.from_numpy(places)])
            tick, _ = loaded.noted(staging, 0)
            for age in range(HELD_CALLS):
                (x,) = staging.staged(slots, tick, 11 - age)
                assert torch.equal(loaded.fetch(age)[0], 2.0 * x)
        loaded.audit()
    finally:
        slots.close()


def test_hot_calls(run, timed):
    """A launch from the host takes microseconds, not milliseconds."""
    loaded = run(_grid("twice"))
    loaded.load()
    loaded.runner.upload(0, timed.slots)
    loaded.runner.hot(10)
    assert 1e-7 < loaded.runner.hot(1000) < 2e-4
