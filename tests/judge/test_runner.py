"""The runner's isolation, with the static policy out of the way: what a candidate costs itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from judge_kernels import ROWS_PLAN, rms_norm, rows_kernel, target_of

from kforge_nb.candidates.candidate import Kernel, LaunchPlan, Scratch
from kforge_nb.candidates.plan import resolve
from kforge_nb.compilers.cpp import Built, build
from kforge_nb.judge import sandbox
from kforge_nb.judge.binary import library_folder, runner_binary
from kforge_nb.judge.cases import Case, make_case, secret_generator
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.judge.runner_handle import Limits, RunnerFailed
from kforge_nb.judge.session import LoadedCandidate
from kforge_nb.judge.slots import TimedInputs

PLAIN = "for (int64_t i = 0; i < c; ++i) o[i] = a[i];"


@pytest.fixture(scope="module")
def target():
    return target_of(rms_norm, torch.randn(64, 96), family="rms_norm")


@pytest.fixture(scope="module")
def timed(target):
    inputs = TimedInputs(target.inputs, target.captured.sets()[0], secret_generator())
    yield inputs
    inputs.close()


@pytest.fixture(scope="module")
def case(target) -> Case:
    return make_case(target.graph, "captured 0", target.captured.sets()[0])


@pytest.fixture
def load(target, timed, tmp_path):
    """Builds a source and gives its runner, without asking the policy."""
    opened = []

    def loader(source: str, plan: LaunchPlan = ROWS_PLAN, of=None, **limits) -> LoadedCandidate:
        built = build(source, plan.kernels[0].name, cache=tmp_path / "cpp")
        assert isinstance(built, Built), built
        chosen = of or target
        made = LoadedCandidate(
            chosen,
            resolve(plan, chosen.inputs, chosen.outputs),
            timed,
            binary=runner_binary(),
            library=built.library,
            threads=2,
            limits=Limits(**{"call_seconds": 2.0, "memory": 256 << 20, **limits}),
            library_folder=library_folder(),
        )
        opened.append(made)
        return made

    yield loader
    for made in opened:
        made.__exit__(None, None, None)


def _load_and_check(loaded: LoadedCandidate, case: Case) -> None:
    loaded.load()
    loaded.check([case])


BROKEN = {
    "segfault": ("", "*(volatile int*)8 = 1;", Verdict.CRASHED, "SIGSEGV"),
    "writes to its input": ("", "((float*)a)[0] = 1;", Verdict.CRASHED, "wrote to its inputs"),
    "exit": ("#include <cstdlib>", "exit(0);", Verdict.CRASHED, "status 0"),
    "abort": ("#include <cstdlib>", "abort();", Verdict.CRASHED, "SIGABRT"),
    "endless loop": ("", "for (volatile int k = 1; k;);", Verdict.TIMED_OUT, "no answer"),
    "sleeps": ("#include <unistd.h>", "sleep(60);", Verdict.TIMED_OUT, "no answer"),
    "memory hog": (
        "#include <cstdlib>",
        "for (;;) { char* p = (char*)malloc(1 << 26); memset(p, 1, 1 << 26); }",
        Verdict.CRASHED,
        "MiB of memory",
    ),
    "memory hog by new": (
        "#include <cstddef>",
        "for (;;) { char* p = new char[1 << 26]; memset(p, 1, 1 << 26); o[0] = p[c]; }",
        Verdict.CRASHED,
        "MiB of memory",
    ),
    "a message on standard error": (
        "#include <unistd.h>",
        'if (write(2, "ended\\n", 6) < 0) o[0] = 1;',
        Verdict.CRASHED,
        "by its C++ library",
    ),
    "endless recursion": (
        '#pragma GCC optimize("O0")\nstatic int deep(int n) { volatile char b[4096]; b[0] = n; '
        "return deep(n + 1) + b[0]; }",
        "o[0] = deep(1);",
        Verdict.CRASHED,
        "SIG",
    ),
    "fork bomb": ("#include <unistd.h>", "for (;;) fork();", Verdict.SUSPICIOUS, "system call"),
    "starts a program": (
        "#include <unistd.h>",
        'execl("/bin/sh", "sh", (char*)0);',
        Verdict.SUSPICIOUS,
        "execve",
    ),
    "opens a socket": (
        "#include <sys/socket.h>",
        "socket(AF_INET, SOCK_STREAM, 0);",
        Verdict.SUSPICIOUS,
        "socket",
    ),
    "signals its parent": (
        "#include <signal.h>\n#include <unistd.h>",
        "kill(getppid(), SIGSTOP);",
        Verdict.SUSPICIOUS,
        "system call",
    ),
    "traces its parent": (
        "#include <sys/ptrace.h>\n#include <unistd.h>",
        "ptrace(PTRACE_ATTACH, 1, 0, 0);",
        Verdict.SUSPICIOUS,
        "ptrace",
    ),
    "forges a reply": (
        "#include <unistd.h>",
        "char f[320] = {0x4b, 0x46, 0x52, 0x31}; for (int k = 3; k < 256; ++k) write(k, f, 320);",
        Verdict.SUSPICIOUS,
        "write",
    ),
    "rounds otherwise from now on": (
        "#include <cfenv>",
        "fesetround(FE_TOWARDZERO);",
        Verdict.SUSPICIOUS,
        "how this thread rounds",
    ),
    "constructor writes": (
        "#include <unistd.h>\n__attribute__((constructor)) static void early() "
        '{ for (int k = 3; k < 256; ++k) write(k, "rubbish", 7); }',
        "",
        Verdict.SUSPICIOUS,
        "while its library was loaded",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_candidate_costs_only_itself(name, load, case):
    """Each way of breaking ends in a verdict with words, and the process is gone."""
    before, body, verdict, words = BROKEN[name]
    loaded = load(rows_kernel(body + PLAIN, before))
    with pytest.raises(RunnerFailed) as caught:
        _load_and_check(loaded, case)
    assert caught.value.verdict is verdict, caught.value.reason
    assert words in caught.value.reason
    pid = loaded.runner.child.pid
    loaded.__exit__(None, None, None)
    assert not Path(f"/proc/{pid}").exists()


def test_what_a_candidate_cannot_read(load, case):
    """Files of the user are out of reach: the kernel's answer is an error, seen in the output."""
    source = rows_kernel(
        'static_cast<void>(c); o[0] = open("/etc/passwd", O_RDONLY) < 0 ? 1.0f : 2.0f;',
        "#include <fcntl.h>",
    )
    loaded = load(source)
    loaded.load()
    loaded.check([case])
    assert loaded.outputs()[0][0, 0] == 1.0


def test_without_a_sandbox_rubbish_in_the_pipe_is_still_seen(load, case):
    """Where seccomp is missing, the fixed protocol alone finds a forged answer."""
    body = "char f[320] = {1}; for (int k = 3; k < 256; ++k) write(k, f, 320);"
    loaded = load(rows_kernel(body + PLAIN, "#include <unistd.h>"), sandboxed=False)
    with pytest.raises(RunnerFailed) as caught:
        _load_and_check(loaded, case)
    assert caught.value.verdict is Verdict.SUSPICIOUS
    assert "pipe" in caught.value.reason


def test_without_a_sandbox_a_closed_pipe_is_seen(load, case):
    """A candidate that closes the pipe and goes on is suspicious, not merely slow."""
    body = "for (int k = 0; k < 256; ++k) close(k); for (volatile int k = 1; k;);"
    loaded = load(rows_kernel(body + PLAIN, "#include <unistd.h>"), sandboxed=False)
    with pytest.raises(RunnerFailed) as caught:
        _load_and_check(loaded, case)
    assert caught.value.verdict is Verdict.SUSPICIOUS
    assert "closed" in caught.value.reason


@pytest.mark.parametrize("offset", ["-1", "rows * c", "rows * c + 200"])
def test_writing_beside_the_output_is_seen(offset, load, case):
    """Guard zones on both sides of every buffer."""
    loaded = load(rows_kernel(PLAIN + f"y[{offset}] = 1.0f;"))
    loaded.load()
    assert "guard zone" in loaded.check([case]).wrong


def test_trusting_what_the_output_memory_holds_is_seen(load, case):
    """Memory with an earlier result in it, partly overwritten, must be written in full."""
    body = """
    float q = 0.0f;
    for (int64_t i = 0; i < c; ++i) q += a[i] * a[i];
    float k = 1.0f / std::sqrt(q / c + 1e-6f);
    if (TRUSTS && o[0] == a[0] * k && o[c - 1] == a[c - 1] * k) continue;
    for (int64_t i = 0; i < c; ++i) o[i] = a[i] * k;"""
    found = []
    for trusts in ("false", "true"):
        loaded = load(rows_kernel(body.replace("TRUSTS", trusts)))
        loaded.load()
        found.append(loaded.check([case]))
    assert found[0].wrong is None
    assert found[0].repeatable
    assert "unwritten" in found[1].wrong


def test_all_kinds_of_arguments_arrive(load, tmp_path):
    """More integers and floats than there are registers, in any mixture, keep their values."""
    double = target_of(lambda x: x * 2.0, torch.randn(4, 8))
    args = ["in0", "out0", "scratch0"]
    args += [f"i64:{2**40 + i}" for i in range(8)] + [f"f32:{i}.5" for i in range(10)]
    args += [f"f64:{i}.25" for i in range(4)] + ["i32:-7", "i32:nthreads"]
    names = [f"int64_t i{i}" for i in range(8)] + [f"float f{i}" for i in range(10)]
    names += [f"double d{i}" for i in range(4)]
    checks = [f"i{i} == (1LL << 40) + {i}" for i in range(8)]
    checks += [f"f{i} == {i}.5f" for i in range(10)] + [f"d{i} == {i}.25" for i in range(4)]
    source = f"""
    #include <cstdint>
    extern "C" void kernel(const float* x, float* y, float* s, {", ".join(names)}, int32_t m,
                           int32_t nthreads) {{
      bool good = {" && ".join(checks)} && m == -7 && nthreads == 2 && s[0] == 0.0f;
      for (int i = 0; i < 32; ++i) y[i] = good ? 2.0f * x[i] : 0.0f;
    }}"""
    plan = LaunchPlan(
        (Kernel("kernel", tuple(args)),), scratch={"scratch0": Scratch("float32", ("16",), "zero")}
    )
    loaded = load(source, plan, double)
    loaded.load()
    made = make_case(double.graph, "captured 0", double.captured.sets()[0])
    checked = loaded.check([made])
    assert checked.wrong is None
    assert checked.repeatable


def test_timed_calls_compute_on_their_own_slot(load, timed):
    """A fetched output belongs to the inputs of exactly that call."""
    loaded = load(rows_kernel(PLAIN))
    loaded.load()
    for keep in ([0, 2, 4, 5], [1], [2, 3]):
        loaded.runner.batch(1, 6, keep=keep)
        for which, call in enumerate(keep):
            (out,) = loaded.fetch(which)
            (given,) = timed.snapshot(1 + call)
            assert torch.equal(out, given)
    with pytest.raises(RunnerFailed, match="no such call"):
        loaded.fetch(4)


def test_without_slots_nothing_is_timed(load, case):
    """For checked calls alone no memory is made ready, and a timed one is refused, not a crash."""
    loaded = load(rows_kernel(PLAIN))
    loaded.load()
    loaded._bind(loaded.runner, 1, 0)
    loaded.runner.run()
    with pytest.raises(RunnerFailed, match="no slots"):
        loaded.runner.batch(0, 1)


def test_every_value_of_a_slot_is_new_in_time(timed):
    """Not a stretch of it, and not another part of the same pool either."""
    import random

    source = random.SystemRandom()
    (before,) = timed.snapshot(0)
    for _ in range(40):
        timed.renew(0, 1, source)
    (after,) = timed.snapshot(0)
    assert len(set(before.reshape(-1).tolist()) & set(after.reshape(-1).tolist())) < 8


def test_slots_change_between_batches(timed):
    """What a candidate could remember of a slot is out of date at the next batch."""
    import random

    before = timed.region.array.copy()
    timed.renew(timed.slots - 1, 2, random.Random(1))
    changed = np.flatnonzero(before != timed.region.array) // timed.layout.stride
    assert set(changed.tolist()) == {0, timed.slots - 1}


def test_the_machine_is_described():
    """Doctor and the docs get facts and a statement in words."""
    found = sandbox.detect()
    assert {"rlimits", "no_new_privs", "seccomp", "namespaces", "landlock"} <= set(found)
    assert "process of its own" in found["statement"]


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ({"seccomp": False, "namespaces": True}, ["network is empty", "seccomp is missing"]),
        ({"seccomp": False, "namespaces": False}, ["use the network"]),
        ({"landlock": 0}, ["Landlock is missing"]),
        ({"uid": 0}, ["runs as root"]),
        ({"disassembler": False}, ["objdump is missing"]),
        ({}, []),
    ],
)
def test_what_is_missing_is_said(missing, words):
    """Each layer that does not hold is named with what it means; none is named where all do."""
    all_hold = {
        "rlimits": True, "no_new_privs": True, "seccomp": True, "namespaces": False, "landlock": 6,
        "uid": 1000, "disassembler": True,
    }  # fmt: skip
    said = sandbox._statement({**all_hold, **missing})
    assert all(word in said for word in words), said
    assert ("Not guaranteed here" in said) is bool(words)


ENDLESS = """
import sys, threading
from pathlib import Path
from kforge_nb.judge.binary import runner_binary
from kforge_nb.judge.protocol import Binding, Kind
from kforge_nb.judge.regions import Region
from kforge_nb.judge.runner_handle import Limits, Runner

made = []
def start():  # the thread that started it ends at once: that must not end the runner
    regions = tuple(Region(8192, "t") for _ in range(3))
    limits = Limits(call_seconds=60.0)
    made.append((regions, Runner(runner_binary(), Path(sys.argv[1]), regions, 1, limits)))

thread = threading.Thread(target=start)
thread.start()
thread.join()
runner = made[0][1]
runner.load("kernel")
runner.bind(4096, 1, [Binding(Kind.INTEGER, value=1)])
print(runner.child.pid, flush=True)
runner.run()
"""


def test_a_killed_notebook_leaves_no_runner(tmp_path):
    """Kill -9 of the process that judges ends its runners, even one in an endless loop."""
    source = 'extern "C" void kernel(int n) { for (volatile int k = n; k;); }'
    built = build(source, "kernel", cache=tmp_path / "cpp")
    assert isinstance(built, Built)
    parent = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(built.library)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    pid = int(parent.stdout.readline())
    assert _lives(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while _lives(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _lives(pid)


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"
