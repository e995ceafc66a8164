"""Static policy: what is refused, what is a library call, and what honest code may do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_kernels import EXP, GELU, HEAD, LAYER_NORM, RMS_NORM, SILU, SOFTMAX, rows_kernel

from kforge_nb.compilers.cpp import Built, build
from kforge_nb.errors import ContractBreach
from kforge_nb.judge.elf import read_library
from kforge_nb.judge.policy import inspect_library, scan_source

PLAIN = "for (int64_t i = 0; i < c; ++i) o[i] = a[i];"


def _with(before: str = "", body: str = "") -> str:
    return rows_kernel(body + PLAIN, before)


BREACHES = {
    "starts a shell": _with("#include <cstdlib>", 'std::system("ls");'),
    "pasted name": _with("#define J(a, b) a##b\n", 'J(sys, tem)("ls");'),
    "spliced name": _with("", 'sys\\\ntem("ls");'),
    "ends the process": _with("#include <cstdlib>", "std::exit(0);"),
    "assembler": _with("", 'asm volatile("syscall");'),
    "pasted assembler": _with("#define J(a, b) a##b\n", 'J(as, m)("nop");'),
    "static counter": _with("static int64_t calls = 0;", "calls++;"),
    "static buffer": _with("", "static float kept[64]; kept[c % 64] = a[0];"),
    "thread-local": _with("thread_local float kept = 0;", "kept = a[0];"),
    "constructor": _with("__attribute__((constructor)) static void early() {}"),
    "loads code": _with("#include <dlfcn.h>", 'dlopen("libm.so.6", 1);'),
    "reads a file": _with("#include <cstdio>", 'fopen("/etc/passwd", "r");'),
    "other header": _with("#include <unistd.h>"),
    "quoted header": _with('#include "../secret.h"'),
    "computed header": _with("#define H <cmath>\n#include H"),
    "threads": _with("#include <thread>", "std::thread([]{}).join();"),
    "rounds otherwise": _with("#include <immintrin.h>", "_mm_setcsr(_mm_getcsr() | 0x6000);"),
    "drops subnormals by another name": _with(
        "#include <immintrin.h>\n#define J(a, b) a##b\n", "auto set = J(_mm_set, csr); set(0x8040);"
    ),
    "reads the clock": _with("", "if (omp_get_wtime() > 0) continue;").replace(
        HEAD, HEAD + "#include <omp.h>\n"
    ),
}


@pytest.mark.parametrize("name", BREACHES)
def test_breaches_are_seen_before_anything_is_compiled(name):
    """Each way of leaving the contract is found in the text, however it is spelled."""
    findings = scan_source(BREACHES[name])
    assert findings
    assert findings[0].kind == "breach"


HONEST = {
    "silu": SILU,
    "softmax": SOFTMAX,
    "rms norm": RMS_NORM,
    "layer norm": LAYER_NORM,
    "gelu": GELU,
    "polynomial": rows_kernel(PLAIN, EXP),
    "table": rows_kernel(PLAIN, "static const float table[4] = {1, 2, 3, 4};"),
    "constexpr table": rows_kernel(PLAIN, "static constexpr float table[4] = {1, 2, 3, 4};"),
    "own helper called write": rows_kernel(
        "for (int64_t i = 0; i < c; ++i) write(o, i, a[i]);",
        "static inline void write(float* to, int64_t i, float v) { to[i] = v; }",
    ),
    "own helper called time": rows_kernel(
        "for (int64_t i = 0; i < c; ++i) o[i] = time(a[i]);",
        "static float time(float v) { return v * 2.0f; }",
    ),
    "comment and string": rows_kernel("/* fork() and system() */" + PLAIN)
    + '\nextern const char* const about; const char* const about = "exit(1)";\n',
    "vector": rows_kernel("std::vector<float> t(a, a + c);" + PLAIN, "#include <vector>\n"),
    "atomics": rows_kernel("float t = 0;\n#pragma omp atomic\n    t += a[0];\n" + PLAIN),
    "macros": rows_kernel("LOOP o[i] = a[i];", "#define LOOP for (int64_t i = 0; i < c; ++i)"),
    "template": rows_kernel(
        "for (int64_t i = 0; i < c; ++i) o[i] = twice<float>(a[i]);",
        "template <class T> static inline T twice(T v) { return v + v; }",
    ),
    "assertion": rows_kernel("static_assert(sizeof(float) == 4);" + PLAIN),
    "headers": rows_kernel(
        PLAIN, "#include <algorithm>\n#include <numeric>\n#include <immintrin.h>\n"
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_styles_pass(name, tmp_path):
    """Neither the text nor the library of honest code is held against it."""
    source = HONEST[name]
    assert scan_source(source) == []
    built = build(source, "kernel", cache=tmp_path)
    assert isinstance(built, Built), built
    assert inspect_library(built.library, "kernel") == []


LIBRARY_BREACHES = {
    "imports getpid": ('extern "C" int getpid(); ', "o[0] = getpid();"),
    "a global counter": ("int calls = 0;", "o[0] = ++calls;"),
    "a global with a value": ("int calls = 1;", "o[0] = ++calls;"),
    "a pointer that can change": (
        "namespace { const float* last; }",
        "o[0] = last == a; last = a;",
    ),
    "state in .bss": ("static float kept[64];", "kept[r % 64] = a[0]; o[1] = kept[(r + 1) % 64];"),
    "runs at load": (
        "struct S { S(); float v[9]; }; S::S() { for (float& x : v) x = sinf(x); } S early;",
        "o[0] = early.v[1];",
    ),
    "chosen at load": (
        'extern "C" { static float f1(float v) { return v; } '
        "static float (*pick())(float) { return f1; } "
        'float chosen(float) __attribute__((ifunc("pick"))); }',
        "o[0] = chosen(a[0]);",
    ),
}


@pytest.mark.parametrize("name", LIBRARY_BREACHES)
def test_the_library_has_the_last_word(name, tmp_path):
    """What the text could hide, the symbols and sections of the built library show."""
    before, body = LIBRARY_BREACHES[name]
    built = build(_with(before, body), "kernel", cache=tmp_path)
    assert isinstance(built, Built), built
    findings = inspect_library(built.library, "kernel")
    assert findings
    assert findings[0].kind == "breach"


STATIC = "g++ -static-libstdc++ -static-libgcc"
GROWING = "std::vector<float> t; t.push_back(a[0]); o[0] = t[0];"


@pytest.mark.parametrize("name", ["vector", "headers", "silu"])
def test_honest_styles_pass_where_the_cpp_library_is_linked_in(name, tmp_path, monkeypatch):
    """What a statically linked C++ library imports and keeps is not held against the candidate."""
    monkeypatch.setenv("CXX", STATIC)
    source = HONEST[name].replace("std::vector<float> t(a, a + c);", GROWING)
    built = build(source, "kernel", cache=tmp_path)
    assert isinstance(built, Built), built
    assert inspect_library(built.library, "kernel") == []
    if name == "vector":  # the library as a whole would not pass: it is the object file that does
        (built.library.with_name("candidate.o")).unlink()
        assert inspect_library(built.library, "kernel") != []


@pytest.mark.parametrize("name", LIBRARY_BREACHES)
def test_breaches_are_seen_where_the_cpp_library_is_linked_in(name, tmp_path, monkeypatch):
    """Looking at the candidate's own code alone finds what looking at the library finds."""
    monkeypatch.setenv("CXX", STATIC)
    before, body = LIBRARY_BREACHES[name]
    source = _with(before + "\n#include <vector>\n", GROWING + body)
    built = build(source, "kernel", cache=tmp_path)
    assert isinstance(built, Built), built
    findings = inspect_library(built.library, "kernel")
    assert findings
    assert findings[0].kind == "breach"


def test_library_calls_are_told_apart():
    """A call of a vendor library is no breach: it earns no credit."""
    source = _with('extern "C" void cblas_saxpy(int, float);', "cblas_saxpy(1, a[0]);")
    assert {f.kind for f in scan_source(source)} == {"library"}


def test_lines_are_right():
    """The reason names the line in the author's own text, comments and splices included."""
    source = '/* one\n two */ int a; \\\n int b;\nasm("nop");\n'
    assert [f.line for f in scan_source(source) if "assembler" in f.what] == [4]


@settings(max_examples=50)
@given(st.binary(max_size=300))
def test_rubbish_is_no_library(tmp_path_factory, data):
    """The reader of libraries answers any bytes with a breach, never with another error."""
    path = tmp_path_factory.mktemp("elf") / "candidate.so"
    path.write_bytes(b"\x7fELF\x02\x01" + data)
    with pytest.raises(ContractBreach):
        read_library(path)


def test_a_damaged_library_is_a_breach(tmp_path):
    """A real library cut short or overwritten in the middle is a breach or still readable."""
    built = build(_with(), "kernel", cache=tmp_path)
    data = built.library.read_bytes()
    damaged = tmp_path / "damaged.so"
    for cut in range(64, len(data), len(data) // 40):
        damaged.write_bytes(data[:cut])
        with pytest.raises(ContractBreach):
            read_library(damaged)
