"""The whole judge: one verdict for every kind of candidate, and nothing left behind."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
import torch
from judge_kernels import (
    FAST_NORM,
    GELU,
    LAYER_NORM,
    RMS_NORM,
    SILU,
    SOFTMAX,
    candidate,
    gelu,
    layer_norm,
    rms_norm,
    rows_kernel,
    silu,
    softmax,
    target_of,
)

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan
from kforge_nb.engines.local import LocalEngine
from kforge_nb.errors import BadInput
from kforge_nb.judge import bench as benches
from kforge_nb.judge import host
from kforge_nb.judge.evaluation import Evaluation, Verdict
from kforge_nb.judge.judge import Judge
from kforge_nb.judge.timing import BaselineSide, Plan, run_session
from kforge_nb.settings import Settings

CORRECT = {Verdict.ACCEPTED, Verdict.SLOWER, Verdict.UNDECIDED}


def _decided(found: Evaluation, verdict: Verdict) -> bool:
    """The verdict, or none while other programs keep the machine busy: noise must not decide."""
    busy = found.resources.get("foreign_load", 0.0) > 0.3
    return found.verdict is verdict or (busy and found.verdict is Verdict.UNDECIDED)


def test_a_fast_kernel_is_accepted_with_its_evidence(norm_bench):
    """One pass against eager's five: faster beyond doubt, and everything is reported."""
    found = norm_bench.evaluate(candidate(FAST_NORM))
    assert _decided(found, Verdict.ACCEPTED), found.reason
    assert found.speedup > 1.0
    timing = found.against("eager")
    assert timing.low <= timing.ratio <= timing.high
    assert len(timing.ours_samples_us) == len(timing.against_samples_us) == timing.n
    assert found.repeatable is True
    assert {"policy", "compile", "correctness", "timing", "total"} <= set(found.seconds)
    assert {e.input_set for e in found.errors} == set(norm_bench.cases)
    assert all(e.candidate <= e.budget for e in found.errors)
    assert Evaluation.from_document(found.to_document()) == found


WASTE = "for (volatile int64_t w = 0; w < 40 * c;) w = w + 1;\n"
SLOW = FAST_NORM.replace("float q", WASTE + "float q")


def test_a_slow_kernel_is_slower(norm_bench):
    """Right, but forty times the work."""
    found = norm_bench.evaluate(candidate(SLOW))
    assert _decided(found, Verdict.SLOWER), found.reason
    assert found.speedup < 1.0


def test_a_winner_is_confirmed_on_fresh_samples(norm_bench, monkeypatch):
    """Confirming takes new processes, inputs and samples, and both baselines if asked."""
    monkeypatch.setattr(benches, "CONFIRM", Plan(seconds=1.0, narrow=0.2))
    found = norm_bench.confirm(candidate(FAST_NORM))
    assert _decided(found, Verdict.ACCEPTED), found.reason
    assert found.against("eager").n >= 20
    assert {"expect", "timing"} <= set(found.seconds)


def _memo(before: str, body: str) -> str:
    return rows_kernel(body, before)


FAILURES = {
    "wrong by a thousandth": (
        FAST_NORM.replace("a[i] * k", "a[i] * k * 1.001f"),
        Verdict.WRONG,
        "error budget",
    ),
    "skips the last row": (
        FAST_NORM.replace("r < rows", "r < rows - 1"),
        Verdict.WRONG,
        "NaN",
    ),
    "ignores half of a long row": (
        FAST_NORM.replace("i < c; ++i) q", "i < c - 1; ++i) q"),
        Verdict.WRONG,
        "error budget",
    ),
    "computes in half precision": (
        FAST_NORM.replace("o[i] = a[i] * k", "o[i] = (float)(_Float16)(a[i] * k)"),
        Verdict.WRONG,
        "error budget",
    ),
    "hard-coded to no NaN": (
        FAST_NORM.replace("o[i] = a[i] * k", "{ float v = a[i] * k; o[i] = v == v ? v : 0.0f; }"),
        Verdict.WRONG,
        "specials",
    ),
    "writes beside": (
        FAST_NORM.replace("float q", "y[rows * c] = 1; float q"),
        Verdict.WRONG,
        "guard",
    ),
    "does not compile": (FAST_NORM.replace("float q", "flot q"), Verdict.COMPILE_FAILED, "flot"),
    "crashes": (
        FAST_NORM.replace("float q", "*(volatile int*)8 = 1; float q"),
        Verdict.CRASHED,
        "SIG",
    ),
    "calls a library": (
        FAST_NORM.replace("float q", "cblas_sscal(c, 1.0f, o, 1); float q").replace(
            'extern "C"', 'extern "C" void cblas_sscal(int, float, float*, int);\nextern "C"', 1
        ),
        Verdict.WRAPPER,
        "cblas_sscal",
    ),
    "exits": (
        FAST_NORM.replace("float q", "std::exit(0); float q").replace(
            "#include <cmath>", "#include <cmath>\n#include <cstdlib>"
        ),
        Verdict.REFUSED,
        "exit",
    ),
    "keeps state": (
        FAST_NORM.replace('extern "C"', 'int calls = 0;\nextern "C"').replace(
            "float q", "calls++; float q"
        ),
        Verdict.REFUSED,
        "calls",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_every_failure_has_its_verdict_and_words(name, norm_bench):
    """What is wrong with a candidate is a value that says so, never an exception."""
    source, verdict, words = FAILURES[name]
    found = norm_bench.evaluate(candidate(source))
    assert found.verdict is verdict, found.reason
    assert words in found.reason + found.log
    assert not found.timings


def test_mismatches_are_shown(norm_bench):
    """A wrong candidate's author sees where it was wrong and what was expected."""
    found = norm_bench.evaluate(candidate(FAILURES["wrong by a thousandth"][0]))
    assert {"index", "got", "eager", "float64"} <= set(found.mismatches[0])


BAD_PLANS = {
    "unknown buffer": Kernel("kernel", ("in0", "out7", "i64:1", "i64:1", "i32:nthreads")),
    "no threads": Kernel("kernel", ("in0", "out0", "i64:1", "i64:1")),
    "bad expression": Kernel("kernel", ("in0", "out0", "i64:in0.data", "i64:1", "i32:nthreads")),
}


@pytest.mark.parametrize("name", BAD_PLANS)
def test_bad_plans_are_refused(name, norm_bench):
    """A plan is data from a stranger: what the contract does not grant is refused."""
    found = norm_bench.evaluate(candidate(FAST_NORM, LaunchPlan((BAD_PLANS[name],))))
    assert found.verdict is Verdict.REFUSED


def test_another_language_is_refused(norm_bench):
    """A CUDA candidate for a CPU target is a breach, not a crash."""
    found = norm_bench.evaluate(Candidate("cuda", "", LaunchPlan((Kernel("k", ("out0",)),))))
    assert found.verdict is Verdict.REFUSED


# A kernel may look at the values themselves; these cheat on what they have seen before. State in a
# library is refused, so they are tried with the policy out of the way.
KEEPS = """
static float kept[1 << 18];
static const float* key = nullptr;
static long calls = 0;
"""
HONEST_ROW = FAST_NORM.split("float* o = y + r * c;")[1].rsplit("  }\n}", 1)[0]
STATEFUL = {
    "remembers by address": KEEPS
    + """
extern "C" void kernel(const float* x, float* y, int64_t rows, int64_t c, int32_t nthreads) {
  static const float* known[4096]; static float* results[4096]; static int count = 0;
  for (int i = 0; i < count && ++calls > 40; ++i)
    if (known[i] == x) { std::memcpy(y, results[i], rows * c * 4); return; }
  for (int64_t r = 0; r < rows; ++r) { const float* a = x + r * c; float* o = y + r * c;
"""
    + HONEST_ROW
    + """
  }
  if (count < 4096) { known[count] = x; results[count] = (float*)malloc(rows * c * 4);
    std::memcpy(results[count++], y, rows * c * 4); }
}
""",
    "honest for thirty calls": KEEPS
    + """
extern "C" void kernel(const float* x, float* y, int64_t rows, int64_t c, int32_t nthreads) {
  if (++calls > 30) return;
  for (int64_t r = 0; r < rows; ++r) { const float* a = x + r * c; float* o = y + r * c;
"""
    + HONEST_ROW
    + "\n  }\n}\n",
}


@pytest.mark.parametrize("name", STATEFUL)
def test_memory_of_earlier_calls_does_not_help(name, norm_bench, monkeypatch):
    """Timed calls are checked on values that were never there before."""
    monkeypatch.setattr(host.policy, "inspect_library", lambda *_: [])
    monkeypatch.setattr(host.policy, "scan_source", lambda *_: [])
    head = "#include <cmath>\n#include <cstdint>\n#include <cstdlib>\n#include <cstring>\n"
    found = norm_bench.evaluate(candidate(head + STATEFUL[name]))
    assert found.verdict is Verdict.SUSPICIOUS, found.reason
    assert "wrong when timed" in found.reason


FAMILIES = {
    "softmax": (softmax, SOFTMAX, (96, 333)),
    "layer norm": (layer_norm, LAYER_NORM, (64, 768)),
    "rms norm": (rms_norm, RMS_NORM, (64, 1023)),
    "silu": (silu, SILU, (31, 257)),
    "gelu": (gelu, GELU, (64, 130)),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_plain_honest_kernels_are_right(name, judge):
    """The loops that anybody would write are inside the budget on every hard set."""
    function, source, shape = FAMILIES[name]
    bench = judge.open(target_of(function, torch.randn(shape), family=function.__name__))
    found = bench.evaluate(candidate(source), stop=threading.Event())
    bench.close()
    assert found.verdict in CORRECT, found.reason


def test_a_twin_of_eager_is_not_called_faster(norm_bench, judge):
    """A/A: eager against itself, through the whole timing, is never told apart by much."""
    sides = [BaselineSide(judge.place("cpu").worker, norm_bench._key, "eager") for _ in range(2)]
    plan = Plan(seconds=1.0, probes=0)
    session = run_session(*sides, norm_bench._slots, plan, lambda _: [], lambda: False)
    assert session.found.low < 1.05
    assert session.found.high > 0.95


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x * 0.0 + 0.0, "all zeros"),
        (lambda x: x * 1.0, "its input in0"),
        (lambda x: x.isnan() & x.isinf(), "all zeros"),
    ],
    ids=["zeros", "identity", "constant mask"],
)
def test_a_task_that_cannot_tell_is_weak(function, words, judge):
    """Where computing nothing would pass, no candidate gets credit."""
    bench = judge.open(target_of(function, torch.randn(8, 8)))
    if bench.weak is None:
        assert "zeros" in words  # NaN * 0 is NaN: eager's NaNs make even this task tell
        bench.close()
        return
    found = bench.evaluate(candidate(FAST_NORM))
    bench.close()
    assert words in bench.weak
    assert found.verdict is Verdict.WEAK_TASK
    assert words in found.reason


def test_many_inputs_outputs_strides_and_dtypes(judge):
    """Strided, expanded, integer and half inputs, and two outputs of different kinds."""
    x = torch.randn(16, 24).t()
    bias = torch.randn(1, 16).expand(24, 16)
    keep = torch.rand(24, 16) > 0.5
    half = torch.randn(24, 16).to(torch.bfloat16)

    def function(x, bias, keep, half):
        y = torch.where(keep, x + bias, half.float())
        return y.to(torch.bfloat16), y > 0.5

    bench = judge.open(target_of(function, x, bias, keep, half))
    plan = LaunchPlan(
        (
            Kernel(
                "kernel",
                ("in0", "in1", "in2", "in3", "out0", "out1", "i64:in0.stride(0)",
                 "i64:in0.stride(1)", "i64:out0.stride(0)", "i64:out0.stride(1)", "i32:nthreads"),
            ),
        )
    )  # fmt: skip
    source = """
#include <cstdint>
#include <cstring>
static float up(uint16_t h) {
  uint32_t b = (uint32_t)h << 16; float f; std::memcpy(&f, &b, 4);
  return f;
}
static uint16_t down(float f) {
  uint32_t b; std::memcpy(&b, &f, 4);
  if (f != f) return 0x7fc0;
  return (uint16_t)((b + 0x7fff + ((b >> 16) & 1)) >> 16);
}
extern "C" void kernel(const float* x, const float* bias, const uint8_t* keep, const uint16_t* half,
                       uint16_t* y, uint8_t* big, int64_t s0, int64_t s1, int64_t t0, int64_t t1,
                       int32_t) {
  for (int64_t i = 0; i < 24; ++i)
    for (int64_t j = 0; j < 16; ++j) {
      float v = keep[i * 16 + j] ? x[i * s0 + j * s1] + bias[j] : up(half[i * 16 + j]);
      y[i * t0 + j * t1] = down(v);
      big[i * BIG0 + j * BIG1] = v > 0.5f;
    }
}
"""
    strides = bench.target.outputs[1].stride
    source = source.replace("BIG0", str(strides[0])).replace("BIG1", str(strides[1]))
    found = bench.evaluate(candidate(source, plan))
    wrong = bench.evaluate(candidate(source.replace("bias[j]", "bias[i]"), plan))
    bench.close()
    assert found.verdict in CORRECT, found.reason
    assert wrong.verdict is Verdict.WRONG


def test_stopping_ends_an_evaluation_early(norm_bench):
    """Stop is asked between the stages; what was not timed is undecided."""
    stop = threading.Event()
    stop.set()
    found = norm_bench.evaluate(candidate(FAST_NORM), stop)
    assert found.verdict is Verdict.UNDECIDED
    assert "stopped" in found.reason
    assert not found.timings


def test_bad_targets_are_bad_input(judge):
    """A target that cannot be judged says so when it is opened."""
    bare = target_of(rms_norm, torch.randn(4, 4))
    bare.captured = None
    with pytest.raises(BadInput, match="captured"):
        judge.open(bare)


def test_a_closed_bench_says_so(judge):
    """Using a bench after closing it is an error in words."""
    bench = judge.open(target_of(rms_norm, torch.randn(4, 4)))
    bench.close()
    bench.close()
    with pytest.raises(BadInput, match="closed"):
        bench.evaluate(candidate(FAST_NORM))


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _shared_memory() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:kforge")


def _children() -> set[str]:
    tasks = Path("/proc/self/task").glob("*/children")
    return {pid for task in tasks for pid in task.read_text().split()}


@pytest.mark.timeout(240)
def test_fifty_candidates_leave_nothing_behind(tmp_path, judge):
    """A third crashes, a third is wrong: afterwards no process, file, memory or descriptor."""
    target = target_of(rms_norm, torch.randn(16, 64))
    sources = [
        FAST_NORM.replace("float q", "*(volatile int*)8 = 1; float q"),
        FAST_NORM.replace("a[i] * k", "a[i] * k * 1.01f"),
        FAST_NORM.replace("float q", "flot q"),
    ]
    gc.collect()
    before = (_descriptors(), _shared_memory(), _children())
    with Judge(Settings(), tmp_path) as fresh, LocalEngine(2) as engine:
        bench = fresh.open(target)
        found = list(engine.map(bench, [candidate(sources[i % 3]) for i in range(50)]))
    gc.collect()
    assert {f.verdict for f in found} == {Verdict.CRASHED, Verdict.WRONG, Verdict.COMPILE_FAILED}
    assert list(tmp_path.iterdir()) == []
    assert (_descriptors(), _shared_memory(), _children()) == before
