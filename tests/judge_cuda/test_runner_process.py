"""The CUDA runner as a process: drivers that fail, what it gives up, when it ends."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kforge_nb.errors import MissingTool
from kforge_nb.judge.cuda import binary
from kforge_nb.judge.cuda.binary import cuda_facts, cuda_runner_binary, runner_environment
from kforge_nb.judge.cuda.handle import CudaLimits, CudaRunner
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.judge.regions import Region
from kforge_nb.judge.runner_handle import RunnerFailed
from tests.judge_cuda.fakes import CODE, one, start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="runners need Linux")


def test_without_a_driver_it_is_said(target, timed, cubin):
    """No driver is a missing tool, not a candidate's failure."""
    with pytest.raises(MissingTool, match="no CUDA driver here"):
        start(target, timed, one("twice"), cubin, "libnosuchcuda.so.1")
    unconfined = CudaLimits(sandboxed=False)
    regions = tuple(Region(1 << 16, "t") for _ in range(3))
    runner = CudaRunner(cuda_runner_binary(), cubin, regions, unconfined, driver="libnone.so.1")
    try:
        with pytest.raises(MissingTool, match="no CUDA driver here"):
            runner.load(["twice"])
    finally:
        runner.close()
        for region in regions:
            region.close()


def test_a_driver_that_never_starts_is_not_waited_for(run, fake, target, timed, tmp_path):
    """Code larger than a pipe, for a process that does not read: the time limit still counts."""
    stuck = tmp_path / "libstuck.so"
    shutil.copy(fake, stuck)
    large = tmp_path / "large.cubin"
    large.write_text(CODE + " " * (1 << 20))
    plan = one("twice")
    limits = {"sandboxed": False, "start_seconds": 0.2, "call_seconds": 0.2}
    with (
        start(target, timed, plan, large, str(stuck), **limits) as loaded,
        pytest.raises(RunnerFailed, match=r"no answer within 0\.4 s") as caught,
    ):
        loaded.load()
    assert caught.value.verdict is Verdict.TIMED_OUT


def test_the_sandbox_is_tried_once_and_reported(fake, cubin, run):
    """The strictest level under which the driver works is found by trying, and then used."""
    assert "files" not in cuda_facts(0, fake)["confined"]  # only where a kernel ran under it
    facts = cuda_facts(0, fake, cubin)
    assert facts["arch"] == "sm_90"
    assert facts["name"] == 'A "fake" device'
    loaded = run(one("twice"))
    assert loaded.load() is True
    status = Path(f"/proc/{loaded.runner.child.pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status
    assert loaded.runner.layers == facts["layers"]
    assert {"privileges", "processes", "network"} <= set(facts["confined"])


def test_a_driver_that_needs_a_layer_costs_only_that_one(
    fake, target, timed, cubin, case, tmp_path
):
    """Where the driver fails under all of them, each layer is tried, and judging goes on."""
    picky = tmp_path / "libpicky.so"
    shutil.copy(fake, picky)
    confined = cuda_facts(0, str(picky), cubin)["confined"]
    assert "privileges" not in confined
    assert "unseen" in confined
    with start(target, timed, one("twice"), cubin, str(picky)) as loaded:
        loaded.load()
        assert loaded.check([case]).wrong is None


def test_what_was_found_by_trying_is_remembered(fake, monkeypatch, tmp_path):
    """The next process asks the cache; another driver, or one that failed, is tried."""

    def tried(*_):
        raise MissingTool("tried again")

    monkeypatch.setenv("KFORGE_HOME", str(tmp_path))
    binary._facts.cache_clear()
    try:
        first = cuda_facts(0, fake)
        with pytest.raises(MissingTool, match="no CUDA driver"):
            cuda_facts(0, "libnone.so.1")
        monkeypatch.setattr(binary, "_probe", tried)
        binary._facts.cache_clear()
        assert cuda_facts(0, fake) == first
        (kept,) = tmp_path.rglob("facts-*.json")
        for damage in ("{}", "[1]", "7", '{"layers": null}'):
            kept.write_text(damage)
            binary._facts.cache_clear()
            with pytest.raises(MissingTool, match="tried again"):
                cuda_facts(0, fake)
        with pytest.raises(MissingTool, match="tried again"):
            cuda_facts(0, "libnone.so.1")
    finally:
        binary._facts.cache_clear()


ENDLESS = """
import sys
from pathlib import Path
from kforge_nb.judge.cuda.binary import cuda_runner_binary
from kforge_nb.judge.cuda.handle import CudaLimits, CudaRunner
from kforge_nb.judge.cuda.protocol import CudaBinding, Launch, LaunchArg, LaunchKind
from kforge_nb.judge.regions import Region

regions = tuple(Region(1 << 16, "t") for _ in range(3))
limits = CudaLimits(call_seconds=60.0)
runner = CudaRunner(
    cuda_runner_binary(), Path(sys.argv[1]), regions, limits, driver=sys.argv[2]
)
runner.load(["hang"])
nothing = tuple(LaunchArg(LaunchKind.SCALAR, 0) for _ in range(3))
launch = Launch(0, (1, 1, 1), (1, 1, 1), 0, nothing)
runner.bind(CudaBinding(4096, 1, 8192, 4096, 8192, 4, (), (), (launch,)))
print(runner.child.pid, flush=True)
runner.run()
"""


def test_a_killed_notebook_leaves_no_runner(cubin, fake):
    """Kill -9 of the process that judges ends its runners, even one whose kernel never ends."""
    parent = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(cubin), fake],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    pid = int(parent.stdout.readline())
    ended = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        assert not poll.poll(0)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        assert poll.poll(10_000)
    finally:
        parent.stdout.close()
        os.close(ended)


@pytest.mark.parametrize(
    ("visible", "device", "seen"),
    [(None, 1, "1"), ("4,GPU-7", 1, "GPU-7"), ("", 0, ""), ("2", 1, "")],
)
def test_a_runner_sees_one_device(visible, device, seen, monkeypatch):
    """The one that torch calls by this number; what the user has hidden stays hidden."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("SECRET_TOKEN", "x")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    environment = runner_environment(device)
    assert environment["CUDA_VISIBLE_DEVICES"] == seen
    assert "SECRET_TOKEN" not in environment
