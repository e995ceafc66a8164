"""Building torch extensions: nothing of a killed build is left, nothing of it hinders a later one.

Compilers are small scripts here: what is tested is the process around them. That real ones build an
extension that computes is shown by tests/judge_extension.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from kforge_nb.compilers import cuda_extension, cuda_toolkit, sweep
from kforge_nb.compilers.cuda_extension import CompileFailed, build_extension
from kforge_nb.compilers.cuda_toolkit import Toolkit
from kforge_nb.errors import BadInput, ContractBreach, MissingTool

SWEEP = Path(sweep.__file__)
ROOT = Path(__file__).parents[2]
SLEEPERS = """\
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for kind in range(3):
    if os.fork() == 0:
        if kind: os.setsid()                       # another session: no group reaches it
        if kind == 2 and os.fork(): os._exit(0)    # an orphan
        open(sys.argv[1] + f"/{os.getpid()}", "w").close()
        time.sleep(600)
time.sleep(600)
"""


FAKE_CXX = """#!/bin/sh
case "$*" in
  *-dumpmachine*) echo x86_64-linux-gnu; exit;;
  *-dumpfullversion*|*-dumpversion*) echo 12.2.0; exit;;
  *--version*|*-v*) echo 'g++ (GCC) 12.2.0'; exit;;
esac
while [ $# -gt 1 ]; do [ "$1" = -o ] && : > "$2"; [ "$1" = -MF ] && : > "$2"; shift; done
"""


@pytest.fixture(autouse=True)
def fake_cxx(tmp_path: Path, monkeypatch) -> None:
    """A C++ compiler that takes no time; the binding is not what these tests are about."""
    monkeypatch.setenv("CXX", str(_write(tmp_path / "cxx" / "g++", FAKE_CXX)))


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def _fake_nvcc(folder: Path, body: str) -> Toolkit:
    """An nvcc that answers ``--version`` and does ``body`` (of sh) when it compiles."""
    text = f"""#!/bin/sh
    case "$*" in *--version*) echo 'Cuda compilation tools, release 13.0, V13.0.88'; exit 0;; esac
    {body}
    """
    nvcc = _write(folder / "cuda" / "bin" / "nvcc", textwrap.dedent(text))
    return Toolkit(nvcc, nvcc.parents[1], "13.0")


def _pids(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir()]


def _gone(pids: list[int], seconds: float = 20.0) -> bool:
    """Whether all end within some seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(_runs(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _until(folder: Path, count: int, seconds: float = 60.0) -> list[int]:
    """The sleepers, once that many are there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and len(_pids(folder)) < count:
        time.sleep(0.05)
    return _pids(folder)


def test_nothing_below_a_sweep_survives_its_limit(tmp_path: Path) -> None:
    """Children that ignore SIGTERM, lead sessions of their own, or are orphans end with it."""
    sleepers = tmp_path / "pids"
    sleepers.mkdir()
    script = _write(tmp_path / "sleepers.py", SLEEPERS)
    command = [sys.executable, "-I", "-S", str(SWEEP), "1.5"]
    done = subprocess.run([*command, sys.executable, str(script), str(sleepers)], timeout=60)

    assert done.returncode == sweep.EXPIRED
    assert len(_pids(sleepers)) == 3
    assert not any(_runs(pid) for pid in _pids(sleepers))


def test_a_sweep_passes_the_status_on() -> None:
    """The program's status, and the signal that ended it, reach the caller."""
    command = [sys.executable, "-I", "-S", str(SWEEP), "30", "/bin/sh", "-c"]

    assert subprocess.run([*command, "exit 7"], timeout=60).returncode == 7
    killed = subprocess.run([*command, "kill -9 $$"], timeout=60).returncode
    assert killed == 128 + signal.SIGKILL


@pytest.fixture
def slow(tmp_path: Path) -> tuple[Toolkit, Path]:
    """An nvcc that starts sleepers and never ends, and the folder where they leave their names."""
    sleepers = tmp_path / "pids"
    sleepers.mkdir()
    script = _write(tmp_path / "sleepers.py", SLEEPERS)
    return _fake_nvcc(tmp_path, f"exec {sys.executable} {script} {sleepers}"), sleepers


def test_a_build_that_takes_too_long_is_stopped_whole(slow, tmp_path: Path) -> None:
    """At the limit neither nvcc nor anything it started is left, nor a file of the build."""
    toolkit, sleepers = slow
    found = build_extension(
        "x", "cuda:0", cache=tmp_path / "cache", arch="sm_90", time_limit=15, toolkit=toolkit
    )

    assert isinstance(found, CompileFailed)
    assert found.timed_out
    assert found.distilled == "the compiler was stopped after 15 s"
    assert len(_pids(sleepers)) == 3, found.log
    assert not any(_runs(pid) for pid in _pids(sleepers))
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_build_can_be_stopped(slow, tmp_path: Path) -> None:
    """Where somebody asks for the end, the build ends at once, whole, and says that it was that."""
    toolkit, sleepers = slow
    begun = time.monotonic()
    found = build_extension(
        "x",
        "cuda:0",
        cache=tmp_path / "cache",
        arch="sm_90",
        toolkit=toolkit,
        stop=lambda: len(_pids(sleepers)) == 3 or time.monotonic() - begun > 60,
    )

    assert isinstance(found, CompileFailed)
    assert (found.stopped, found.timed_out) == (True, False)
    assert len(_pids(sleepers)) == 3
    assert not any(_runs(pid) for pid in _pids(sleepers))


def test_a_killed_build_never_hinders_a_later_one(slow, tmp_path: Path) -> None:
    """After kill -9 in the middle its children end, and the same build starts at once."""
    toolkit, sleepers = slow
    cache = tmp_path / "cache"
    code = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from kforge_nb.compilers.cuda_extension import build_extension
from kforge_nb.compilers.cuda_toolkit import Toolkit
toolkit = Toolkit(Path({str(toolkit.nvcc)!r}), Path({str(toolkit.home)!r}), "13.0")
build_extension("x", "cuda:0", cache=Path({str(cache)!r}), arch="sm_90", toolkit=toolkit)
"""
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as process:
        started = _until(sleepers, 3)
        left = [path for path in cache.iterdir() if path.name.startswith(".build-")]
        os.kill(process.pid, signal.SIGKILL)
    assert len(started) == 3
    assert len(left) == 1
    assert _gone(started)

    quick = _fake_nvcc(tmp_path, "echo 'candidate.cu(1): error: no such thing'; exit 1")
    begun = time.monotonic()
    found = build_extension("x", "cuda:0", cache=cache, arch="sm_90", toolkit=quick)

    assert isinstance(found, CompileFailed)
    assert not found.timed_out
    assert "no such thing" in found.distilled
    assert time.monotonic() - begun < 60
    assert list(cache.iterdir()) == []  # what the killed one left was cleared away


def test_errors_of_nvcc_and_of_its_assembler_are_distilled(tmp_path: Path) -> None:
    """A failed build answers with the line of the source, or with what the assembler said."""
    source = "// first\nint broken = nothing;\n"
    wrong = 'echo "/tmp/x/candidate.cu(2): error: identifier \\"nothing\\" is undefined"; exit 1'
    found = build_extension(
        source, "cuda:0", cache=tmp_path, arch="sm_90", toolkit=_fake_nvcc(tmp_path / "a", wrong)
    )
    large = "echo 'ptxas error   : Entry function k uses too much shared data'; exit 255"
    other = build_extension(
        source, "cuda:0", cache=tmp_path, arch="sm_90", toolkit=_fake_nvcc(tmp_path / "b", large)
    )

    assert found.distilled.startswith('line 2: error: identifier "nothing" is undefined')
    assert "int broken = nothing;" in found.distilled
    assert other.distilled == "ptxas error   : Entry function k uses too much shared data"


def test_one_architecture_and_no_environment_of_the_user(tmp_path: Path, monkeypatch) -> None:
    """Flags are of one architecture, and nothing of the user's environment reaches nvcc."""
    monkeypatch.setenv("SECRET_KEY", "sk-123")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.0;8.0")
    toolkit = _fake_nvcc(tmp_path, 'echo "args: $*"; env; exit 1')
    found = build_extension("x", "cuda:0", cache=tmp_path, arch="sm_120", toolkit=toolkit)

    assert "arch=compute_120,code=sm_120" in found.log
    assert found.log.count("-gencode") == found.log.count("arch=compute_120,code=sm_120")
    assert "SECRET_KEY" not in found.log


def test_kernels_are_called_as_in_the_source() -> None:
    """A plain function's mangled name becomes its own; others stay."""
    assert cuda_extension._short("_Z4siluPKfPfl") == "silu"
    assert cuda_extension._short("_ZN3rowI5floatE1kEv") == "_ZN3rowI5floatE1kEv"


def test_the_cache_key_holds_all_that_matters() -> None:
    """Another source, torch, nvcc or architecture is another build."""
    identity = ("2.11", "13.0", "g++ 12", "sm_90", "cpu", "nvcc 13.0")
    keys = {cuda_extension.cache_key("source", identity)}
    keys.add(cuda_extension.cache_key("other", identity))
    for place in range(len(identity)):
        changed = [*identity]
        changed[place] += "x"
        keys.add(cuda_extension.cache_key("source", tuple(changed)))

    assert len(keys) == 2 + len(identity)


def test_a_torch_without_cuda_is_one_line(monkeypatch) -> None:
    """Where torch has no CUDA there is no point in nvcc; the message says what to install."""
    monkeypatch.setattr("torch.version.cuda", None)
    with pytest.raises(MissingTool, match=r"built without CUDA.*Install a CUDA build of torch"):
        cuda_toolkit.find_toolkit()


def test_an_nvcc_of_another_cuda_is_named(tmp_path: Path, monkeypatch) -> None:
    """An nvcc that does not fit torch is not used, and the message says what was found."""
    toolkit = _fake_nvcc(tmp_path, "exit 1")
    monkeypatch.setattr("torch.version.cuda", "99.1")
    monkeypatch.setenv("CUDA_HOME", str(toolkit.home))
    with pytest.raises(MissingTool, match=r"needs nvcc 99\.x.*nvcc is 13\.0.*Install CUDA"):
        cuda_toolkit.find_toolkit()


def test_what_cannot_be_built_is_refused_before(tmp_path: Path) -> None:
    """A wrong architecture and an endless source never reach a compiler."""
    toolkit = _fake_nvcc(tmp_path, "exit 1")
    with pytest.raises(BadInput, match="no GPU architecture"):
        build_extension("x", "cuda:0", cache=tmp_path, arch="9.0", toolkit=toolkit)
    with pytest.raises(ContractBreach, match="NUL"):
        build_extension("x\0", "cuda:0", cache=tmp_path, arch="sm_90", toolkit=toolkit)
