"""What CUDA sources and cubins may not contain, and that honest kernels contain none of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kforge_nb.candidates.recipes.family import default_params
from kforge_nb.compilers.nvrtc import CudaBuilt, build_cuda, find_nvrtc
from kforge_nb.errors import ContractBreach, MissingTool
from kforge_nb.judge.cuda.cubin import inspect_cubin
from kforge_nb.judge.cuda.policy import scan_cuda
from tests.cuda.targets import case, find, on_cuda

ARCHS = ("sm_80", "sm_90", "sm_120")
KERNEL = 'extern "C" __global__ void k(float* x, int n) {{ {} }}'


@pytest.fixture(scope="session")
def cubins(tmp_path_factory) -> Path:
    try:
        find_nvrtc()
    except MissingTool as missing:
        pytest.skip(str(missing))
    return tmp_path_factory.mktemp("cubins")


def _kernel(body: str, head: str = "") -> str:
    return head + "\n" + KERNEL.format(body)


REFUSED = {
    "printf": _kernel('printf("%d", n);'),
    "malloc": _kernel("x[0] = *(float*)malloc(4);"),
    "new": _kernel("int* p = new int; x[0] = *p;"),
    "trap": _kernel("if (n > 3) __trap();"),
    "runtime": _kernel("cudaDeviceSynchronize();"),
    "device-side launch": _kernel("other<<<1, 1>>>(x);", "__global__ void other(float*);"),
    "grid sync": _kernel("cooperative_groups::this_grid().sync();"),
    "host code": _kernel("x[0] = 1;", "__host__ int f() { return 1; }"),
    "counter": _kernel("x[0] = ++calls;", "__device__ int calls;"),
    "initialised global": _kernel("t[0] = x[0];", "__device__ float t[2] = {1, 2};"),
    "static": _kernel("static int n0 = 0; x[0] = n0++;"),
    "managed": _kernel("x[0] = m;", "__managed__ int m;"),
    "foreign header": _kernel("x[0] = 1;", "#include <cstdio>"),
    "own file": _kernel("x[0] = 1;", '#include "/etc/passwd"'),
    "sleeping PTX": _kernel('asm volatile("nanosleep.u32 100;");'),
    "launching PTX": _kernel('asm volatile("griddepcontrol.launch_dependents;");'),
    "trap in PTX": _kernel('asm volatile("{ trap; }");'),
    "trap after an operand": _kernel('asm volatile("mov.u32 %0, {1}; {trap;}" : "=r"(n));'),
    "assembler from a macro": _kernel("asm volatile(CODE);", '#define CODE "mov.u32 %0, 1;"'),
    "memory in PTX": _kernel("x[0] = 1;", 'asm(".global .u32 hidden;");'),
}  # fmt: skip
SUSPICIOUS = {
    "clock64": _kernel("x[0] = clock64();"),
    "clock in PTX": _kernel(
        'unsigned t; asm volatile("mov.u32 %0, %%clock;" : "=r"(t)); x[0] = t;'
    ),
    "global timer": _kernel(
        'unsigned long long t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); x[0] = t;'
    ),
    "pasted": _kernel("x[0] = JOIN(clo, ck64)();", "#define JOIN(a, b) a##b"),
    "kept in the cache": _kernel(
        'asm volatile("ld.global.L2::evict_last.f32 %0, [%1];" : "=f"(x[0]) : "l"(x + 1));'
    ),
    "kept in the cache by a number": _kernel(
        'asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(x[0]) : "l"(x + 1), '
        '"l"(0x14f0000000000000ull));'
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_breaches_are_found_in_the_source(name):
    """Each is a breach, with words."""
    findings = scan_cuda(REFUSED[name])
    assert findings, name
    assert findings[0].kind == "breach", findings


@pytest.mark.parametrize("name", SUSPICIOUS)
def test_suspicions_are_found_in_the_source(name):
    """Each is a suspicion and no more."""
    findings = scan_cuda(SUSPICIOUS[name])
    assert findings, name
    assert {f.kind for f in findings} == {"suspicion"}, findings


def test_library_headers_make_a_wrapper():
    """Device libraries are told apart from what is merely forbidden."""
    assert scan_cuda(_kernel("x[0] = 1;", "#include <cub/cub.cuh>"))[0].kind == "library"


HONEST = {
    "shared memory": _kernel(
        "__shared__ float s[64]; extern __shared__ float dyn[]; s[threadIdx.x] = x[n]; "
        "__syncthreads(); x[0] = s[1] + dyn[0];"
    ),
    "tables": _kernel(
        "x[0] = t[n & 1] + u[n & 1];", "__constant__ float t[2] = {1, 2};\n"
        "static constexpr int W = 4; constexpr float V = 2.0f;\n"
        "__device__ __forceinline__ float f(float v) { return v * V; }\n"
        "__constant__ const float u[2] = {W, V};"
    ),
    "half precision": _kernel(
        "x[0] = __half2float(__float2half(x[1]));", "#include <cuda_fp16.h>"
    ),
    "inline PTX": _kernel(
        'unsigned r; asm volatile("{ .reg .pred %%p1; setp.ne.u32 %%p1, %1, 0; '
        '@%%p1 mov.u32 %0, %%laneid; cp.async.wait_all; }" : "=r"(r) : "r"(n)); x[0] = r;'
    ),
    "operands of several registers": _kernel(
        "unsigned a, b, c, d; float f[4] = {};\n"
        'asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"'
        ' : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(x));\n'
        'asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "'
        '"{%4, %5},\\n {%6}, {%0, %1, %2, %3};" : "+f"(f[0]), "+f"(f[1]), "+f"(f[2]), "+f"(f[3])'
        ' : "r"(a), "r"(b), "r"(c));\n'
        'asm volatile("st.global.v2.f32 [%0], {%1, %2};" :: "l"(x), "f"(f[0]), "f"(f[1]));'
    ),
    "read once": _kernel(
        'asm volatile("{ .reg .b64 %%p; createpolicy.fractional.L2::evict_first.b64 %%p, 1.0; '
        'ld.global.L2::cache_hint.f32 %0, [%1], %%p; }" : "=f"(x[0]) : "l"(x + 1));'
    ),
    "a comment and a word": _kernel("x[0] = 1; /* printf(clock64()) */", "struct clock_free {};"),
    "a class": _kernel(
        "P a{x[1]}, b{2.0f}; b = a; x[0] = b.v;",
        "struct P {\n  float v;\n  __device__ P(float v_) : v(v_) {}\n  P(const P&) = delete;\n"
        "  __device__ P& operator=(const P& o) { v = o.v; return *this; }\n"
        "  static constexpr int N = 3;\n  __device__ operator float() const { return v * N; }\n};",
    ),
    "templates": _kernel(
        "x[0] = S<4>::of(x[1]) + f<2>(x[2]);",
        "template <int N> struct S { static __device__ float of(float v) { return v * N; } };\n"
        "template <int N> static __device__ float f(float v) { return v + N; }",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_honest_sources_have_no_finding(name, cubins):
    """Rules that hit honest kernels are worth nothing; the compiled code has none either."""
    assert scan_cuda(HONEST[name]) == []
    built = build_cuda(HONEST[name], ("k",), cache=cubins, arch="sm_90")
    assert isinstance(built, CudaBuilt), built.distilled
    assert inspect_cubin(built.cubin) == []


HEAD = "__device__ float t[2] = {1};"
COMPILED = {
    "counter": ("breach", "calls", _kernel("x[0] = ++calls;", "__device__ int calls;")),
    "static": ("breach", "n0", _kernel("static int n0 = 0; x[0] = n0++;")),
    "table": ("breach", " t;", _kernel("t[n] = x[0]; x[1] = t[1];", HEAD)),
    "print": ("breach", "vprintf", _kernel('printf("%d", n);')),
    "malloc": ("breach", "malloc", _kernel("x[0] = *(float*)malloc(4);")),
    "clock": ("suspicion", "clock", _kernel("x[0] = clock64();")),
    "timer": ("suspicion", "clock", SUSPICIOUS["global timer"]),
    "trap": ("suspicion", "trap", _kernel("if (n > 3) __trap();")),
}  # fmt: skip


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", COMPILED)
def test_the_compiled_code_has_the_last_word(name, arch, cubins):
    """Whatever the source looked like, the cubin shows it on every architecture."""
    kind, words, source = COMPILED[name]
    built = build_cuda(source, ("k",), cache=cubins, arch=arch)
    assert isinstance(built, CudaBuilt), built.distilled
    findings = inspect_cubin(built.cubin)
    assert any(f.kind == kind and words in str(f) for f in findings), findings


@pytest.mark.parametrize(
    "name", ["softmax", "group-norm-silu", "rms-norm", "norm-rotary", "pad", "max-pool"]
)
def test_recipes_have_no_finding(name, cubins):
    """The built-in kernels keep the rules, in source and compiled."""
    target, _ = case(name, torch.bfloat16)
    family, match = find(on_cuda(target))
    candidate = family.emit(match, default_params(family, match))
    names = tuple(kernel.name for kernel in candidate.plan.kernels)
    built = build_cuda(candidate.source, names, cache=cubins, arch="sm_90")
    assert isinstance(built, CudaBuilt), built.distilled
    assert [*scan_cuda(candidate.source), *inspect_cubin(built.cubin)] == []


@pytest.mark.parametrize("damage", [b"", b"text", b"\x7fELF\x02\x01" + bytes(80)])
def test_damaged_files_are_refused(damage, tmp_path):
    """Never an exception of another kind."""
    path = tmp_path / "k.cubin"
    path.write_bytes(damage)
    with pytest.raises(ContractBreach):
        inspect_cubin(path)
