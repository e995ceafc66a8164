"""Compiling candidates: the cache, the limits, the logs, and what the compiler may see."""

import ctypes
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from kforge_nb.compilers import cpp, toolchain
from kforge_nb.errors import ContractBreach, MissingTool

DOUBLE = """#include <cstdint>
extern "C" void twice(const float* in0, float* out0, int64_t n, int32_t nthreads) {
#pragma omp parallel for num_threads(nthreads)
  for (int64_t i = 0; i < n; ++i) out0[i] = 2 * in0[i];
}
"""
SLOW = """
template <int A, int B> struct Ack { static const int v = Ack<A - 1, Ack<A, B - 1>::v>::v; };
template <int B> struct Ack<0, B> { static const int v = B + 1; };
template <int A> struct Ack<A, 0> { static const int v = Ack<A - 1, 1>::v; };
constexpr unsigned spin(unsigned n) { unsigned s = 1; while (n--) s = s * 1664525u + n; return s; }
template <unsigned N> unsigned many() {
  constexpr unsigned v = spin(30000 + N);
  return v + many<N - 1>();
}
template <> unsigned many<0>() { return 0; }
extern "C" void twice() { volatile unsigned x = many<700>(); (void)x; }
"""


def test_builds_a_library_that_computes(tmp_path: Path) -> None:
    """What is built exports the entry and computes, with OpenMP."""
    built = cpp.build(DOUBLE, "twice", cache=tmp_path)
    assert isinstance(built, cpp.Built), built
    given, found = (ctypes.c_float * 3)(1, 2, 3), (ctypes.c_float * 3)()

    ctypes.CDLL(str(built.library)).twice(given, found, ctypes.c_int64(3), ctypes.c_int32(2))

    assert list(found) == [2, 4, 6]
    assert not built.cached
    assert built.seconds > 0


def test_second_build_comes_from_the_cache(tmp_path: Path) -> None:
    """The same source is not compiled twice; another source or entry is."""
    first = cpp.build(DOUBLE, "twice", cache=tmp_path)
    again = cpp.build(DOUBLE, "twice", cache=tmp_path)
    other = cpp.build(DOUBLE + "// other", "twice", cache=tmp_path)

    assert isinstance(again, cpp.Built)
    assert again.cached
    assert again.library == first.library
    assert not other.cached


def test_damaged_cache_entry_is_built_again(tmp_path: Path) -> None:
    """A library that is not what was built is never handed out."""
    first = cpp.build(DOUBLE, "twice", cache=tmp_path)
    first.library.write_bytes(b"rubbish")
    again = cpp.build(DOUBLE, "twice", cache=tmp_path)

    assert not again.cached
    assert again.library.read_bytes()[:4] == b"\x7fELF"


def test_racing_builds_share_one_result(tmp_path: Path) -> None:
    """Builds of the same source at the same time all succeed and leave nothing behind."""
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: cpp.build(DOUBLE, "twice", cache=tmp_path), range(4)))

    assert all(isinstance(built, cpp.Built) for built in found)
    assert len({built.library for built in found}) == 1
    assert [path.name for path in tmp_path.iterdir()] == [found[0].library.parent.name]


def test_errors_are_distilled(tmp_path: Path) -> None:
    """The distilled log has line, message and quoted source, and no folder of this machine."""
    source = DOUBLE.replace("2 * in0[i]", "2 * inn[i]")
    failed = cpp.build(source, "twice", cache=tmp_path)

    assert isinstance(failed, cpp.CompileFailed)
    assert failed.distilled.startswith("line 4: error: 'inn' was not declared")
    assert "out0[i] = 2 * inn[i]" in failed.distilled
    assert str(tmp_path) not in failed.distilled
    assert not list(tmp_path.iterdir())


def test_template_noise_is_left_out(tmp_path: Path) -> None:
    """A mistake inside a library template is reported at the candidate's own line."""
    source = """#include <algorithm>
#include <vector>
struct S {};
extern "C" void f() {
  std::vector<S> v(3);
  std::sort(v.begin(), v.end());
}"""
    failed = cpp.build(source, "f", cache=tmp_path)

    assert isinstance(failed, cpp.CompileFailed)
    assert "no match for 'operator<'" in failed.distilled
    assert len(failed.distilled) < len(failed.log) / 4
    assert "required from" not in failed.distilled


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (DOUBLE.replace("twice", "thrice"), "twice"),
        (DOUBLE.replace('extern "C"', "static"), "twice"),
        ('extern "C" void gone(); extern "C" void twice() { gone(); }', "gone"),
    ],
)
def test_missing_symbols_fail_at_build_time(tmp_path: Path, source: str, words: str) -> None:
    """A library without its entry, or with an unknown function, never reaches a loader."""
    failed = cpp.build(source, "twice", cache=tmp_path)

    assert isinstance(failed, cpp.CompileFailed)
    assert words in failed.distilled


def test_time_limit_kills_the_whole_group(tmp_path: Path) -> None:
    """An endless compile ends at its limit, and no compiler process stays behind."""
    start = time.monotonic()
    failed = cpp.build(SLOW, "twice", cache=tmp_path, time_limit=0.3)

    assert isinstance(failed, cpp.CompileFailed)
    assert failed.timed_out
    assert "stopped after 0.3 s" in failed.distilled
    assert time.monotonic() - start < 5
    assert not list(tmp_path.iterdir())
    while _running("cc1plus", str(tmp_path)):  # a killed process takes a moment to be gone
        assert time.monotonic() - start < 10, "a compiler process was left behind"


def _running(program: str, folder: str) -> list[str]:
    """Processes of ``program`` that work in ``folder``."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            name = (path / "comm").read_text().strip()
            if name == program and str((path / "cwd").readlink()).startswith(folder):
                found.append(path.name)
        except OSError:
            continue  # it ended while we looked
    return found


def test_memory_limit(tmp_path: Path) -> None:
    """A compile that wants more memory than it may have fails as a value."""
    failed = cpp.build(SLOW, "twice", cache=tmp_path, memory_limit=40 << 20)

    assert isinstance(failed, cpp.CompileFailed)
    assert not failed.timed_out
    assert failed.distilled


def test_user_environment_does_not_reach_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables that change what a compiler reads have no effect, so the cache key stays true."""
    include = tmp_path / "include"
    include.mkdir()
    (include / "secret.h").write_text("#define SECRET 1\n")
    monkeypatch.setenv("CPATH", str(include))
    source = '#include "secret.h"\n' + DOUBLE
    failed = cpp.build(source, "twice", cache=tmp_path / "cache")

    assert isinstance(failed, cpp.CompileFailed)
    assert "secret.h" in failed.distilled


def test_no_flush_to_zero(tmp_path: Path) -> None:
    """Loading a library leaves the processor's control word alone (no fast-math start-up code)."""
    built = cpp.build(DOUBLE, "twice", cache=tmp_path)
    script = f"import ctypes; ctypes.CDLL({str(built.library)!r}); print(5e-324 * 1.0 > 0)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "True"
    assert not any("fast-math" in flag for flag in cpp.FLAGS)


def test_preprocess_shows_what_macros_hide() -> None:
    """The policy's view has macros expanded and comments and headers gone."""
    source = (
        "#include <cstdint>\n#define JOIN(a, b) a##b\n"
        "/* fork */ int f() { return JOIN(sys, tem)(0); }"
    )
    found = cpp.preprocess(source)

    assert "system(0)" in found
    assert "fork" not in found
    assert "int64_t" not in found


def test_missing_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a compiler the error is one line with the command that installs one."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(MissingTool) as caught:
        cpp.build(DOUBLE, "twice", cache=tmp_path)

    assert "\n" not in str(caught.value)
    assert cpp.install_command() in str(caught.value)
    assert "not found on PATH" in str(caught.value)


def test_a_lost_path_does_not_hide_the_systems_package_manager(monkeypatch, tmp_path) -> None:
    """Without PATH the command is still the system's own, where it has one in its usual place."""
    tool = tmp_path / "apt-get"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setattr(toolchain, "SYSTEM", (str(tmp_path),))
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert cpp.install_command() == "sudo apt-get install -y g++"


def test_a_full_disk_is_told_as_such(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A compiler that fails where nothing can be written says nothing about the source."""
    assert isinstance(cpp.build("int half(", "half", cache=tmp_path), cpp.CompileFailed)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(MissingTool, match=f"the disk of {tmp_path} is full; free some space"):
        cpp.build("int half(", "half", cache=tmp_path)


def test_cxx_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """``CXX`` wins over the names that are tried otherwise, and may carry arguments."""
    monkeypatch.setenv("CXX", "g++ -DX=1")
    found = cpp.find_compiler()

    assert found.command[0].endswith("g++")
    assert found.command[1] == "-DX=1"
    assert found.kind == "gcc"
    assert "-DX=1" in found.identity


def test_a_compiler_that_does_not_answer_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A broken CXX is named in the error or passed over for a working one."""
    broken = tmp_path / "broken-cxx"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))

    assert "broken" not in cpp.find_compiler().command[0]
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTool, match="broken-cxx"):
        cpp.find_compiler()


@pytest.mark.parametrize(
    ("source", "entry"), [(DOUBLE, "a b"), (DOUBLE, "_x;"), ("\0", "f"), ("x" * 300_000, "f")]
)
def test_contract(tmp_path: Path, source: str, entry: str) -> None:
    """Entries that are no identifiers and sources that are too long are breaches."""
    with pytest.raises(ContractBreach):
        cpp.build(source, entry, cache=tmp_path)


def test_cpu_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code for one CPU is never taken from a cache on another."""
    compiler = cpp.find_compiler()
    here = cpp.cache_key(DOUBLE, "twice", compiler)
    monkeypatch.setattr(cpp, "cpu_identity", lambda: "another")

    assert here != cpp.cache_key(DOUBLE, "twice", compiler)
    assert len(toolchain.cpu_identity()) == 16
    assert os.environ.get("PATH")
