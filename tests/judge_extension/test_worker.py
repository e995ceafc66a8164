"""Torch extensions on the CPU, built once: what their worker may do, and what the judge says."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from extension_sources import MANY_CPU, target_of

from kforge_nb.compilers.cuda_extension import ExtensionBuilt, build_extension
from kforge_nb.judge.cases import build_cases, secret_generator
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.judge.extension.place import ExtensionPlace
from kforge_nb.judge.extension.policy import inspect_extension
from kforge_nb.judge.extension.session import ExtensionCandidate
from kforge_nb.judge.judge import Judge
from kforge_nb.judge.runner_handle import Limits, RunnerFailed
from kforge_nb.judge.slots import TimedInputs
from kforge_nb.proposers.manual import manual_candidate
from kforge_nb.settings import Settings, cache_dir

HONEST, COPIES, INPUT, LESS, HALF, THROWS, FAULT, FORKS, SOCKET, WRITES, SPINS, HOG = range(12)
VANDAL, TYPE, LAYOUT, EXITS, LATER, KEEPS, SIGNALS, IDLE, LOW, ROUGH, BESIDE, LAST = range(12, 24)


@pytest.fixture(scope="session")
def built() -> ExtensionBuilt:
    """One extension that does what its second input says; honest where that is 0."""
    found = build_extension(MANY_CPU, "cpu", cache=cache_dir() / "extensions")
    assert isinstance(found, ExtensionBuilt), found
    return found


def _target(mode: int):
    x, what = torch.randn(64, 96), torch.full((1,), mode, dtype=torch.int64)
    return target_of(lambda x, what: torch.nn.functional.silu(x) + 0 * what, x, what)


@pytest.fixture
def load(built):
    """A worker whose extension behaves as ``mode`` says, and the case it is asked about."""
    opened = []

    def start(mode: int, **limits):
        target = _target(mode)
        cases = list(build_cases(target, secret_generator()))[:1]
        timed = TimedInputs(target.inputs, cases[0].inputs, secret_generator())
        loaded = ExtensionCandidate(
            target,
            timed,
            library=built.library,
            threads=1,
            limits=Limits(**{"call_seconds": 5.0, "memory": 512 << 20, **limits}),
        )
        opened.append((loaded, timed))
        loaded.__enter__()
        return loaded, cases, timed

    yield start
    for loaded, timed in opened:
        loaded.__exit__(None, None, None)
        timed.close()


def test_an_honest_extension_is_right_and_repeatable(load):
    """It computes in its worker, under every layer that this machine has, what eager computes."""
    loaded, cases, timed = load(HONEST)
    layers = loaded.layers()
    checked = loaded.check(cases)
    wall, own = loaded.runner.batch(0, 50)
    outputs = loaded.fetch(0)
    given = timed.snapshot(49)

    assert layers["no_new_privs"]
    assert checked.wrong is None
    assert checked.repeatable
    assert 0 < own < wall
    torch.testing.assert_close(outputs[0], torch.nn.functional.silu(given[0]))


WRONG = {
    "returns its input": (INPUT, "shares its memory with an input"),
    "returns too few": (LESS, "returned 0 tensors where the target has 1"),
    "leaves half unwritten": (HALF, "NaN"),
    "a copy of its input": (COPIES, ""),
    "another type": (TYPE, "is torch.float16"),
    "another layout": (LAYOUT, "with strides"),
    "works in a thread after its return": (LATER, "NaN"),
    "computes in half precision": (LOW, "budget"),
    "takes a rough sigmoid": (ROUGH, "budget"),
    "reads what lies beside its input": (BESIDE, "NaN"),
    "leaves out its last element": (LAST, "budget"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_outputs_are_seen(name, load):
    """Outputs that are missing, shared, unwritten or not what was asked for are not let pass."""
    mode, words = WRONG[name]
    loaded, cases, _ = load(mode)
    loaded.layers()
    reason, verdict = None, Verdict.WRONG
    try:
        reason = loaded.check(cases).wrong
    except RunnerFailed as failed:
        reason, verdict = failed.reason, failed.verdict

    assert reason is not None
    assert words in reason
    assert verdict is Verdict.WRONG


BROKEN = {
    "throws": (THROWS, Verdict.CRASHED, "forward raised RuntimeError: it gives up"),
    "faults": (FAULT, Verdict.CRASHED, "SIGSEGV"),
    "forks": (FORKS, Verdict.SUSPICIOUS, "forbidden system call"),
    "opens a socket": (SOCKET, Verdict.SUSPICIOUS, "socket"),
    "writes to its inputs": (VANDAL, Verdict.CRASHED, "it wrote to its inputs"),
    "prints a result and exits with 0": (EXITS, Verdict.CRASHED, "ended itself with status 0"),
    "signals its parent": (SIGNALS, Verdict.SUSPICIOUS, "forbidden system call, kill"),
    "hangs": (SPINS, Verdict.TIMED_OUT, "no answer within"),
    "takes all memory": (HOG, Verdict.CRASHED, "it ran out of memory; it had"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_breach_ends_the_worker(name, load):
    """What a kernel has no business to do costs its own process, and is put into words."""
    mode, verdict, words = BROKEN[name]
    loaded, cases, _ = load(mode, call_seconds=4.0 if mode == SPINS else 20.0)
    held = loaded.layers()
    if verdict is Verdict.SUSPICIOUS and not held["seccomp"]:
        pytest.skip("this machine has no seccomp")
    with pytest.raises(RunnerFailed) as failed:
        loaded.check(cases)

    assert failed.value.verdict is verdict, failed.value.reason
    assert words in failed.value.reason


def test_no_file_can_be_written(load, tmp_path):
    """Neither a file of the user nor a new one: the call fails, and the worker answers so."""
    loaded, cases, _ = load(WRITES)
    if not loaded.layers()["landlock"]:
        pytest.skip("this machine has no Landlock")
    with pytest.raises(RunnerFailed, match="could not open") as failed:
        loaded.check(cases)

    assert failed.value.verdict is Verdict.CRASHED
    assert not Path("/tmp/kforge-was-here").exists()


def test_nothing_is_left_of_a_worker(load):
    """The process is gone when its candidate is closed."""
    loaded, _, _ = load(SPINS)
    loaded.layers()
    pid = loaded.runner.child.pid
    loaded.__exit__(None, None, None)

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_answers_carry_secret_numbers(load, monkeypatch):
    """A timed batch is asked for and confirmed under numbers that are not those of before."""
    loaded, _, _ = load(HONEST)
    loaded.layers()
    seen = []
    ask = loaded.runner._ask

    def listen(*args, **more):
        found = ask(*args, **more)
        seen.append(loaded.runner._seq)
        return found

    monkeypatch.setattr(loaded.runner, "_ask", listen)
    loaded.runner.batch(0, 1)
    loaded.runner.batch(0, 1)

    assert len(set(seen)) == 4
    assert max(seen) - min(seen) > 1 << 32


def test_symbols_tell_what_host_code_calls(built):
    """The library forks, opens sockets and files: its symbols say so, pasted names or not."""
    findings = [str(f) for f in inspect_extension(built.code, built.library)]

    assert any("calls fork" in words for words in findings)
    assert any("calls socket" in words for words in findings)
    assert any("starts threads" in words for words in findings)
    assert any("calls torch's own clone" in words for words in findings)
    assert not any("empty_like" in words or "Library" in words for words in findings)


def test_host_code_is_refused_unless_allowed(tmp_path):
    """Without the opt-in nothing is compiled, and the reason names the option."""
    target = _target(HONEST)
    with Judge(Settings(threads=1), tmp_path) as judge:
        bench = judge.open(target)
        found = bench.evaluate(manual_candidate(MANY_CPU, None, target, "cuda_extension"))

    assert found.verdict is Verdict.REFUSED
    assert "--allow-host-code" in found.reason
    assert found.resources["host_code"] is True


def test_the_bench_marks_what_it_judges(judge, built, monkeypatch):
    """An allowed extension goes through all stages, and every word about it says what it is."""
    from kforge_nb.judge.extension import place

    monkeypatch.setattr(place, "inspect_extension", lambda *_: [])
    target = _target(HONEST)
    bench = judge.open(target)
    found = bench.evaluate(manual_candidate(MANY_CPU, None, target, "cuda_extension"))
    bench.close()

    assert found.correct, found.reason
    assert found.against("eager") is not None
    assert "host code" in found.reason
    assert found.resources["host_code"] is True
    assert found.resources["sandbox"]["no_new_privs"]


IDLERS = {
    "keeps its first results": (KEEPS, "budget"),
    "is idle at other addresses than the first": (IDLE, "timed"),
}


@pytest.mark.parametrize("name", IDLERS)
def test_what_is_not_computed_anew_is_seen(name, judge, built, monkeypatch):
    """Right while it is checked first, wrong on other values or once it is timed: not let pass."""
    from kforge_nb.judge.extension import place

    mode, words = IDLERS[name]
    monkeypatch.setattr(place, "inspect_extension", lambda *_: [])
    target = _target(mode)
    bench = judge.open(target)
    found = bench.evaluate(manual_candidate(MANY_CPU, None, target, "cuda_extension"))
    bench.close()

    assert found.verdict in {Verdict.WRONG, Verdict.SUSPICIOUS}, found.reason
    assert words in found.reason


WEAK = {"zeros by construction": torch.zeros_like, "a constant": torch.ones_like}


@pytest.mark.parametrize("name", WEAK)
def test_a_task_that_gives_the_answer_away_is_refused(name, judge):
    """Nothing is built for a task that nothing, or a constant, would solve."""
    target = target_of(WEAK[name], torch.randn(64, 96))
    bench = judge.open(target)
    found = bench.evaluate(manual_candidate(MANY_CPU, None, target, "cuda_extension"))
    bench.close()

    assert found.verdict is Verdict.WEAK_TASK
    assert found.resources["host_code"] is True


def test_the_sanitizer_is_not_run_over_extensions():
    """Its runner takes device code only; trying would switch it off for all that come after."""
    of_device = SimpleNamespace(sanitize=lambda *_: pytest.fail("it was run"))
    assert ExtensionPlace(of_device, "cuda:0", 1).sanitize("target", "plan", "built") == {}
