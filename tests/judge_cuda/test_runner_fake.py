"""The whole CUDA runner, process and protocol included, on a driver whose device is the CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from kforge_nb.candidates.candidate import Kernel, LaunchPlan, Scratch
from kforge_nb.errors import BadInput, ContractBreach
from kforge_nb.judge.cases import make_case
from kforge_nb.judge.cuda.binary import cuda_runner_binary
from kforge_nb.judge.cuda.handle import CudaLimits
from kforge_nb.judge.cuda.session import CudaCandidate, device_index
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.judge.runner_handle import RunnerFailed
from tests.judge.kernels import target_of
from tests.judge_cuda.fakes import CODE, on_device, one, plan_of, timed_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="runners need Linux")

N = 1000


def test_a_right_candidate_is_right_twice(run, case):
    """Inputs go up, outputs come down, and a second call over gaps gives the same bits."""
    loaded = run(one("twice"))
    assert loaded.load() is loaded.runner.strict
    checked = loaded.check([case])
    assert checked.wrong is None
    assert checked.repeatable is True
    assert torch.equal(loaded.outputs()[0], case.inputs[0] * 2)


def test_what_the_driver_says_of_a_kernel_arrives(run):
    """Registers, block size and occupancy come from the status page."""
    loaded = run(one("twice"))
    loaded.load()
    assert loaded.kernels["twice"]["registers"] == 16
    assert loaded.kernels["twice"]["max_threads"] == 1024
    assert loaded.kernels["twice"]["parameters"] == 3
    assert loaded.runner.occupancy == [16]


def test_it_starts_before_there_is_a_plan_or_code(target, timed, fake, cubin, case):
    """A runner warms up while the compiler works; plan and code come with load."""
    from kforge_nb.candidates.plan import resolve

    plan = one("twice")
    with CudaCandidate(
        target, None, timed, binary=cuda_runner_binary(), limits=CudaLimits(), device=0, driver=fake
    ) as early:
        with pytest.raises(BadInput, match="without a plan"):
            early.load()
        early.load(resolve(plan, target.inputs, target.outputs), cubin)
        assert early.check([case]).wrong is None


def test_every_kind_of_argument_arrives(run, case):
    """Integers and floats of both widths reach the kernel with their values."""
    more = (f"i64:{2**40 + 3}", "i32:-7", "f32:1.5", "f64:0.1")
    loaded = run(one("scalars", *more))
    loaded.load()
    assert loaded.check([case]).wrong is None


def test_the_grid_arrives(run):
    """A launch has the grid that the plan's expressions give."""
    loaded = run(one("grid"))
    loaded.load()
    loaded.runner.run()
    assert loaded.outputs()[0][:3].tolist() == [8.0, 2.0, 1.0]


def _two_kernels(init: str) -> LaunchPlan:
    return plan_of(
        Kernel("partial", ("in0", "total", "i64:N"), ("1", "1", "1"), ("128", "1", "1")),
        Kernel("apply", ("in0", "total", "out0", "i64:N"), ("8", "1", "1"), ("128", "1", "1")),
        total=Scratch("float32", ("1",), init),
    )


@pytest.mark.parametrize("init", ["zero", "none"])
def test_scratch_is_zero_only_where_it_was_asked_for(init, run, seen, timed):
    """Two kernels share scratch: zeroed before every call, or poisoned when it is not."""
    total = on_device(target_of(lambda x: x + x.sum(), torch.randn(N)))
    made = make_case(total.graph, "captured 0", seen)
    loaded = run(_two_kernels(init), of=total)
    loaded.load()
    checked = loaded.check([made])
    if init == "zero":
        assert checked.wrong is None
        assert checked.repeatable
        loaded.runner.upload(0, timed.slots)
        loaded.runner.hot(3)  # each call starts with zero, not with what the one before left
        given = timed.snapshot(2)[0]
        torch.testing.assert_close(loaded.fetch(0)[0], given + given.sum(), rtol=1e-4, atol=1e-2)
    else:
        assert checked.wrong is not None
        assert "NaN" in checked.wrong


@pytest.mark.parametrize(
    ("offset", "words"),
    [("-1", "guard zone"), ("N", "guard zone"), ("N + 200", "guard zone"), ("N + 9000", "far")],
)
def test_writing_beside_the_output_is_seen(offset, words, run, case):
    """Guard zones stand on both sides of every buffer, and wide ones around all of them."""
    loaded = run(one("beside", f"i64:{offset}"))
    loaded.load()
    wrong = loaded.check([case]).wrong
    assert wrong is not None
    assert words in wrong


@pytest.mark.parametrize("offset", ["-1", "1", "64"])
def test_writing_beside_scratch_is_seen(offset, run, case):
    """Guard zones of the scratch come back although the scratch itself does not."""
    plan = plan_of(
        Kernel("overrun", ("in0", "s", "i64:N", f"i64:{offset}", "out0")),
        s=Scratch("float32", ("1",), "none"),
    )
    loaded = run(plan)
    loaded.load()
    wrong = loaded.check([case]).wrong
    assert wrong is not None
    assert "guard zone" in wrong


def test_what_lies_between_inputs_is_poison(run, target):
    """Before the first input, behind the last, and between elements with gaps is no number."""
    loaded = run(one("twice"))
    (buffer,) = loaded._in_layout.buffers
    array = loaded.regions[0].array
    assert (array[: buffer.offset] == 0xFF).all()
    assert (array[buffer.offset + buffer.bytes :] == 0xFF).all()
    gaps = on_device(target_of(lambda x: x * 2.0, torch.randn(4, 8)[:, :5]))
    slots = timed_of(gaps, [torch.randn(4, 8)[:, :5]])
    try:
        strided = run(one("twice"), of=gaps, slots=slots)
        (buffer,) = strided._in_layout.buffers
        assert (strided.regions[0].array[: buffer.offset + buffer.bytes] == 0xFF).all()
    finally:
        slots.close()


def test_a_changed_input_is_seen(run, case):
    """What a candidate does to its inputs is found by comparing them after the call."""
    loaded = run(one("vandal"))
    loaded.load()
    assert loaded.check([case]).wrong == "it wrote to its input in0 on captured 0"


def test_trusting_what_the_output_memory_holds_is_seen(run, case):
    """A call that looks at the ends of an earlier result leaves the gaps in it."""
    loaded = run(one("trusting"))
    loaded.load()
    wrong = loaded.check([case]).wrong
    assert wrong is not None
    assert "unwritten" in wrong


def test_an_unsteady_candidate_is_not_repeatable(run, case):
    """Two calls on the same inputs are compared bit by bit."""
    loaded = run(one("restless"))
    loaded.load()
    assert loaded.check([case]).repeatable is False


BROKEN = {
    "illegal": (Verdict.CRASHED, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    "trap": (Verdict.CRASHED, "CUDA_ERROR_LAUNCH_FAILED"),
    "hang": (Verdict.TIMED_OUT, "no answer within"),
    "dies": (Verdict.CRASHED, "SIGSEGV"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_candidate_costs_only_itself(name, run, case):
    """Each way of breaking ends in words and a dead process, and the next candidate is fine."""
    verdict, words = BROKEN[name]
    loaded = run(one(name), call_seconds=1.0)
    loaded.load()
    with pytest.raises(RunnerFailed) as caught:
        loaded.check([case])
    assert caught.value.verdict is verdict
    assert words in caught.value.reason
    loaded.__exit__(None, None, None)
    assert not Path(f"/proc/{loaded.runner.child.pid}").exists()
    good = run(one("twice"))
    good.load()
    assert good.check([case]).wrong is None


def test_a_broken_context_fails_every_later_command(run, case):
    """Errors of a context stay: nothing that follows is taken for a result."""
    loaded = run(one("trap"))
    loaded.load()
    for _ in range(2):
        with pytest.raises(RunnerFailed, match="LAUNCH_FAILED"):
            loaded.check([case])


REFUSED = {
    "parameters": (one("scale"), "takes 4 parameters, but the plan gives 3"),
    "size of a parameter": (one("scale", "f64:2"), "has 4 bytes, but the plan gives one of 8"),
    "shared memory": (one("twice", shared="150000"), "150000 bytes of shared memory"),
    "threads": (one("twice", block="2048"), "at most 1024 threads"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_plan_that_does_not_fit_is_refused(what, run):
    """What the code or the device cannot do is said before anything is launched."""
    plan, words = REFUSED[what]
    with pytest.raises(RunnerFailed) as caught:
        run(plan).load()
    assert caught.value.verdict is Verdict.REFUSED
    assert words in caught.value.reason


def test_local_memory_that_is_not_there_is_the_kernels_fault(run, case):
    """A launch for which the driver finds no memory is refused with what the kernel takes."""
    loaded = run(one("sprawling"))
    loaded.load()
    with pytest.raises(RunnerFailed, match="local memory") as caught:
        loaded.check([case])
    assert caught.value.verdict is Verdict.REFUSED


def test_much_shared_memory_is_asked_for(run, case):
    """More than 48 KB of dynamic shared memory works where the device has it."""
    loaded = run(one("twice", shared="90000"))
    loaded.load()
    assert loaded.check([case]).wrong is None


def test_a_later_launch_with_less_shared_memory_takes_none_away(run, case):
    """A kernel that is launched twice gets the larger of its two sizes."""
    first, second = (one("twice", shared=size).kernels[0] for size in ("90000", "60000"))
    loaded = run(plan_of(first, second))
    loaded.load()
    assert loaded.check([case]).wrong is None


def test_code_that_cannot_be_loaded(run, tmp_path):
    """Another architecture, a missing kernel and rubbish each say what is the matter."""
    other = tmp_path / "other.cubin"
    other.write_text(CODE.replace("sm_90", "sm_80"))
    rubbish = tmp_path / "rubbish.cubin"
    rubbish.write_bytes(b"\x7fELF rubbish")
    for code, plan, words in (
        (other, one("twice"), "NO_BINARY_FOR_GPU .*sm_90"),
        (rubbish, one("twice"), "INVALID_IMAGE"),
        (None, one("absent"), "NOT_FOUND.*absent"),
    ):
        with pytest.raises(RunnerFailed, match=words) as caught:
            run(plan, **({"code": code} if code else {})).load()
        assert caught.value.verdict is Verdict.COMPILE_FAILED


def test_memory_beyond_the_limit_is_refused(run):
    """A layout over the limit is the plan's fault and says what takes how much."""
    with pytest.raises(RunnerFailed, match=r"scratch 1 MiB.*the limit is 1 MiB") as caught:
        run(one("twice"), device_memory=1 << 20).load()
    assert caught.value.verdict is Verdict.REFUSED


def test_memory_that_is_not_there_decides_nothing(run):
    """A full device is nobody's fault: undecided, with what is free."""
    plan = plan_of(*one("twice").kernels, big=Scratch("float32", ("1024 * 1024 * 20",), "none"))
    with pytest.raises(RunnerFailed, match="are free") as caught:
        run(plan).load()
    assert caught.value.verdict is Verdict.UNDECIDED


def test_no_thread_count_for_cuda(run):
    """An argument that only C++ kernels take breaks the contract."""
    with pytest.raises(ContractBreach, match="nthreads"):
        run(one("twice", "i32:nthreads")).load()


def test_device_names():
    """Numbers come from torch's names; other devices are bad input."""
    assert (device_index("cuda"), device_index("cuda:3")) == (0, 3)
    with pytest.raises(BadInput, match="no CUDA device"):
        device_index("cpu")
