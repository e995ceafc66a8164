"""The static part of the judge: what a candidate's source and library may not contain.

The contract: a C++ candidate computes outputs from inputs. It holds no state between calls, runs
nothing at load, and uses the C maths, memory and OpenMP functions, little else. A *breach* of that
is refused. What is only odd is a *suspicion* with its line: evidence, and never installed. Calls of
vendor libraries are told apart as *library* findings. Names are looked for in the source without
comments and strings AND in the text after the preprocessor, so that macros cannot paste one
together; the symbols of the built library are the last word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from kforge_nb.compilers.cpp import OBJECT_NAME, CompileFailed, preprocess
from kforge_nb.judge.elf import Library, read_library
from kforge_nb.judge.instructions import foreign_instructions
from kforge_nb.judge.lexing import lex

__all__ = [
    "ALLOWED_HEADERS",
    "FORBIDDEN_CALLS",
    "Finding",
    "gravest_first",
    "inspect_library",
    "scan_source",
    "unknown_directives",
    "without_includes",
]

Kind = Literal["breach", "suspicion", "library"]

_HEADERS = """
algorithm array bit cassert cfloat climits cmath complex cstddef cstdint cstdlib cstring functional
immintrin.h initializer_list iterator limits memory new numeric omp.h stdint.h tuple type_traits
utility vector math.h string.h stdlib.h stddef.h float.h limits.h assert.h arm_neon.h arm_sve.h
arm_bf16.h arm_fp16.h x86intrin.h
"""
ALLOWED_HEADERS = frozenset(_HEADERS.split())


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found: how grave, what in words, and the line (1-based) if known."""

    kind: Kind
    what: str
    line: int | None = None

    def __str__(self) -> str:
        return self.what if self.line is None else f"line {self.line}: {self.what}"


_CALLS = {
    "starts processes or programs": "fork vfork execl execle execlp execv execve execvp "
    "posix_spawn system popen clone clone3 wait waitpid",
    "loads or looks up other code": "dlopen dlsym dlmopen dladdr dl_iterate_phdr",
    "makes system calls of its own": "syscall ptrace prctl mmap munmap mprotect mremap shmget "
    "memfd_create process_vm_readv process_vm_writev seccomp",
    "opens sockets or files": "socket connect bind listen accept send sendto recv open openat "
    "fopen freopen fdopen read write pread pwrite fread fwrite unlink rename ifstream ofstream",
    "prints": "printf fprintf puts putchar cout cerr",
    "ends or interrupts the process": "exit _exit quick_exit atexit on_exit abort raise kill "
    "signal sigaction setjmp longjmp terminate",
    "reads the environment, the clock or random numbers": "getenv setenv putenv environ time clock "
    "clock_gettime gettimeofday omp_get_wtime __rdtsc __rdtscp rand srand random drand48 "
    "random_device mt19937 getrandom getpid",
    "starts threads other than OpenMP's": "pthread_create jthread async thrd_create sleep usleep "
    "nanosleep",
    "changes OpenMP for others": "omp_set_num_threads omp_set_dynamic omp_set_nested "
    "omp_set_max_active_levels omp_set_schedule",
}
FORBIDDEN_CALLS = {name: why for why, names in _CALLS.items() for name in names.split()}
"""Functions that no kernel needs, each with what it does."""

_CALL = re.compile(r"(?<![\w.>])(" + "|".join(map(re.escape, FORBIDDEN_CALLS)) + r")\s*\(")
_OBJECT = re.compile(r"\b(std\s*::\s*(?:cout|cerr|thread|jthread|async|ifstream|ofstream|mt19937)|"
                     r"environ|random_device)\b")  # fmt: skip
_ASSEMBLER = re.compile(r"\b(asm|__asm|__asm__)\b")
_CONTROL = re.compile(
    r"\b(_mm_setcsr|_MM_SET_\w+|__builtin_ia32_(?:ldmxcsr|fxrstor\w*|xrstors?\w*)|_fxrstor\w*|"
    r"_xrstors?\w*|__builtin_aarch64_set_fpc?s?r\w*|__arm_wsr\w*|fesetround|fesetenv|feupdateenv|"
    r"feholdexcept|feenableexcept)\b"
)
_CALLER = re.compile(r"\b(__builtin_\w*(?:return_addr|frame_address)\w*|_Unwind_\w+|backtrace)\b")
_LINKER = re.compile(
    r"\b(_GLOBAL_OFFSET_TABLE_|_DYNAMIC|__dso_handle|__bss_start|_edata|__executable_start|"
    r"__ehdr_start|__TMC_END__|_PROCEDURE_LINKAGE_TABLE_)\b"
)
_COUNTER = re.compile(
    r"\b(__builtin_ia32_rd(?:tscp?|pmc|rand\w*|seed\w*)|__builtin_read(?:cycle|steady)counter|"
    r"_*rdtscp?|_*rdpmc|_rdrand\w*|_rdseed\w*)\b"
)
_THREAD_LOCAL = re.compile(r"\b(thread_local|__thread|threadprivate)\b")
_ATTRIBUTE = re.compile(
    r"\b_*(constructor|destructor|ifunc|section|weak|alias|cleanup|init_priority)_*\s*(?:\(|\))"
)
_STATIC = re.compile(
    r"\bstatic\s+(?!inline\b|const\b|constexpr\b|_?_?assert)(?!.{0,200}?\bconst(expr)?\b)"
    r"[\w:<>,\s*&]{0,200}?\b(\w{1,200})\s{0,20}(\[[^;{=]{0,200})?(=|;|\{)"
)
_LIBRARIES = re.compile(
    r"\b(cblas_\w+|[sdcz]gemm_?|mkl_\w+|vm[sd]\w+_|v[sd](?:Exp|Ln|Tanh|Add|Mul|Sqrt)|dnnl_\w+|"
    r"LIBXSMM_\w+|libxsmm_\w+|fftwf?_\w+)\s*\(|\b(at|torch|c10|aten|Eigen|dnnl|xnn)\s*::"
)
_LIBRARY_HEADERS = re.compile(r"^(torch|ATen|c10|mkl|cblas|dnnl|oneapi|Eigen|openblas|lapack)")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(<[^>\n]*>|"[^"\n]*"|[^\n]*)', re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*([^\s(\"<]*)", re.MULTILINE)
_DIRECTIVE_WORDS = """
include define undef if ifdef ifndef elif elifdef elifndef else endif error warning pragma
"""
_DIRECTIVES = frozenset({"", *_DIRECTIVE_WORDS.split()})
_PROBE = re.compile(r"\b__has_(?:include|include_next|embed)\b[ \t]*(?:\([ \t]*<([^>\n]*)>)?")
_PRAGMA = re.compile(
    r"#[ \t]*pragma[ \t]+(\w+)|_Pragma\s*\(\s*\"\s*(\w+)", re.MULTILINE
)  # fmt: skip
_PRAGMAS = frozenset({"omp", "GCC", "clang", "unroll", "once", "ivdep", "STDC"})
_GCC = re.compile(
    r"\s*(optimize|target|push_options|pop_options|ivdep|unroll|diagnostic|novector)\b"
)

_IMPORTS = re.compile(
    r"""(?x)
    mem(cpy|move|set|cmp|chr)|bcmp|__mem(cpy|move|set)_chk|strlen
    |malloc|calloc|realloc|free|aligned_alloc|posix_memalign|memalign
    |_Zn[wa][jm](St11align_val_t)?(RKSt9nothrow_t)?|_Zd[la]Pv([jm])?(St11align_val_t)?
    |GOMP_\w+|omp_(get_(num_threads|thread_num|max_threads|num_procs|level|team_num|num_teams)
      |in_parallel)|__kmpc_\w+
    |_ZGV[a-z]\w+
    |__(sqrt|exp|log|pow|cos|sin)\w*_finite
    |__stack_chk_fail|__cxa_(finalize|begin_catch|end_catch|rethrow|throw_bad_array_new_length
      |call_unexpected|pure_virtual)|__gxx_personality_v0|_Unwind_Resume
    |_ZSt\d+__throw_\w+|_ZSt9terminatev|_ITM_\w+|__gmon_start__|_Jv_RegisterClasses
    |_ZTVN10__cxxabiv1\w+|__assert_fail|_ZSt17__throw_bad_allocv|__cpu_model|__cpu_indicator_init
    |__extend\w+|__trunc\w+|__(u|)(div|mod|mul)\w+[23]|__fix\w+|__float\w+
    """
)
_MATHS_WORDS = """
acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp10 exp2 expm1
fabs fdim floor fma fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p
log2 logb lrint lround modf nan nearbyint nextafter pow remainder remquo rint round roundeven
scalbln scalbn sin sincos sinh sqrt tan tanh tgamma trunc
"""
_MATHS = frozenset(_MATHS_WORDS.split())
_VENDOR = re.compile(r"cblas_|mkl_|_ZN2at|_ZN3c10|_ZN5torch|dnnl_|[sdcz]gemm_|libxsmm|_ZN4dnnl")
_NEEDED = re.compile(
    r"(libstdc\+\+|libm|libgomp|libgcc_s|libc|libmvec|libomp|libiomp5|ld-linux[\w-]*|libpthread)"
    r"(-[0-9a-f]+)?\.so(\.\d+)*"
)
_HARMLESS = {".data": 64, ".bss": 64}  # what start-up code and exception tables put there
_OWN_OBJECTS = re.compile(r"completed\.\d+|__dso_handle|DW\.ref\.\w+|__TMC_END__|__frame_dummy\w*")
_ARRAYS = {".init_array": 8, ".fini_array": 8}
_RELOCATED = (".got", ".dynamic", ".data.rel.ro", ".tm_clone_table", ".eh_frame", ".jcr")


def scan_source(source: str) -> list[Finding]:
    """Breaches, suspicions and library calls in a C++ source, gravest first.

    Raises:
        MissingTool: there is no compiler to preprocess with.
    """
    text = lex(source)
    findings = [Finding("breach", what, line) for what, line in text.odd]
    findings += [*_headers(text.plain), *_directives(text.plain)]
    findings += _names(without_includes(text.bare))
    expanded = preprocess(source if _includes_allowed_only(text.plain) else _no_headers(text.plain))
    if not isinstance(expanded, CompileFailed):
        behind = lex(expanded)
        known = {f.what for f in findings}
        hidden = [*_pragmas(behind.plain), *_names(behind.bare)]
        findings += [
            Finding(f.kind, f.what + " (seen after the preprocessor)")
            for f in hidden
            if f.what not in known
        ]
    elif expanded.timed_out:
        findings.append(Finding("breach", "keeps the preprocessor busy without end"))
    return gravest_first(findings)


def inspect_library(path: Path, entry: str) -> list[Finding]:
    """Breaches, suspicions and library calls in a built candidate, gravest first.

    Some compilers put the C++ library itself into what they link, and its imports and state are
    none of the candidate's. The candidate's own code is then looked at alone, by the same rules:
    the object file that the library was linked from, beside it.

    Raises:
        ContractBreach: the file is no shared library that can be read.
    """
    library = read_library(path)
    findings = [*_imports(library), *_state(library)]
    own = path.with_name(OBJECT_NAME)
    if findings and _holds_runtime(library) and own.exists():
        findings = [*_own_code(read_library(own)), *_needs(library)]
    code = own if own.exists() else path
    findings += [
        Finding("breach", f"{why} (the instruction {name})")
        for name, why in foreign_instructions(code).items()
    ]
    if entry not in library.defines:
        findings.append(Finding("breach", f"the library does not define {entry}"))
    return gravest_first(findings)


def _holds_runtime(library: Library) -> bool:
    """Whether the C++ library may be inside: it is not asked for by name."""
    return not any(name.startswith(("libstdc++", "libc++")) for name in library.needed)


def _own_code(own: Library) -> Iterable[Finding]:
    """What the compiler made of the candidate alone, before anything was linked to it."""
    own.imports -= _LINKED
    own.writable = {n: s for n, s in own.writable.items() if not n.startswith(_REFERENCES)}
    starts = [Finding("breach", f"runs code when it is loaded ({name})") for name in own.starters]
    own.starters = {}
    return [*_imports(own), *_state(own), *starts]


def gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    """Breaches, then library calls, then suspicions."""
    order = {"breach": 0, "library": 1, "suspicion": 2}
    return sorted(findings, key=lambda f: order[f.kind])


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def without_includes(text: str) -> str:
    """A text without its #include lines, which name no code of the candidate's own."""
    return _INCLUDE.sub("", text)


def _includes_allowed_only(plain: str) -> bool:
    """Whether the preprocessor may be given the headers: macros of theirs decide what is seen."""
    return not any(True for _ in _headers(plain)) and not any(
        f.kind == "breach" for f in unknown_directives(plain, ALLOWED_HEADERS)
    )


def _no_headers(plain: str) -> str:
    """The source without what it includes or asks for: it is refused, and only read further."""
    return _DIRECTIVE.sub(lambda m: m[0] if m[1] in _DIRECTIVES - {"include"} else "//", plain)


def _headers(text: str) -> Iterable[Finding]:
    for match in _INCLUDE.finditer(text):
        name = match[1].strip().strip('<>"')
        if name in ALLOWED_HEADERS and match[1].strip().startswith("<"):
            continue
        line = _line(text, match.start(1))
        if _LIBRARY_HEADERS.match(name):
            yield Finding("library", f"includes {name}, a library's header", line)
        else:
            yield Finding("breach", f"includes {match[1].strip()[:80]}, which is not allowed", line)


def unknown_directives(text: str, headers: frozenset[str]) -> Iterable[Finding]:
    """Directives that no kernel needs: line markers too, and questions for files.

    Args:
        text: without comments.
        headers: that may be asked for.
    """
    for match in _DIRECTIVE.finditer(text):
        if match[1] not in _DIRECTIVES:
            yield Finding("breach", f"uses #{match[1][:40]}", _line(text, match.start()))
    for match in _PROBE.finditer(text):
        if match[1] not in headers:
            words = "asks for a file that is no allowed header"
            yield Finding("breach", f"{words} ({match[0][:60]})", _line(text, match.start()))


def _directives(text: str) -> Iterable[Finding]:
    yield from unknown_directives(text, ALLOWED_HEADERS)
    yield from _pragmas(text)
    if re.search(r"\?\?[=/'()!<>-]", text):
        yield Finding("suspicion", "uses trigraphs")


def _pragmas(text: str) -> Iterable[Finding]:
    for match in _PRAGMA.finditer(text):
        name = match[1] or match[2]
        line = _line(text, match.start())
        if name not in _PRAGMAS:
            yield Finding("suspicion", f"uses #pragma {name}", line)
        elif name == "GCC" and not _GCC.match(text[match.end() : match.end() + 80]):
            yield Finding("suspicion", "uses a #pragma GCC that no kernel needs", line)


def _names(text: str) -> list[Finding]:
    findings = []
    own: dict[str, bool] = {}  # of the first hits alone: one is enough
    for match in _CALL.finditer(text):
        if match[1] not in own:
            own[match[1]] = _defined_here(match[1], text)
        if own[match[1]]:  # its own helper; the symbols of the library agree
            continue
        what = f"calls {match[1]}: {FORBIDDEN_CALLS[match[1]]}"
        findings.append(Finding("breach", what, _line(text, match.start())))
        if len(findings) >= _MOST:
            break
    for pattern, kind, words in _PATTERNS:
        for match in islice(pattern.finditer(text), _MOST):
            name = re.sub(r"\s+", "", next(g for g in (match[0], "") if g is not None))[:60]
            findings.append(Finding(kind, f"{words} ({name})", _line(text, match.start())))
    for match in _STATIC.finditer(text):
        if len(findings) >= 3 * _MOST:
            break
        if "(" not in match[0]:
            what = f"keeps state between calls in static {match[2]}"
            findings.append(Finding("breach", what, _line(text, match.start())))
    return findings


def _defined_here(name: str, text: str) -> bool:
    if name in _NEVER_OWN:
        return False
    taken = r"\s{0,20}\([^;{}()]{0,500}\)\s{0,20}(?:noexcept\s{0,20})?\{"
    body = rf"\b{re.escape(name)}{taken}"
    return any(
        _TYPE_BEFORE.search(text, max(0, found.start() - _TYPE_WIDTH), found.start())
        for found in re.finditer(body, text)
    )


_MOST = 100
_TYPE_WIDTH = 80
_TYPE_BEFORE = re.compile(r"[\w>&*][\s*&]{1,20}\Z")
_NEVER_OWN = frozenset({"syscall", "ptrace", "dlopen", "dlsym", "fork", "system", "exit", "_exit"})
_PATTERNS: tuple[tuple[re.Pattern[str], Kind, str], ...] = (
    (_ASSEMBLER, "breach", "contains assembler"),
    (_CONTROL, "breach", "changes how the whole thread computes"),
    (_THREAD_LOCAL, "breach", "keeps thread-local state"),
    (_ATTRIBUTE, "breach", "uses an attribute that runs, places or replaces code"),
    (_CALLER, "breach", "looks for its caller"),
    (_LINKER, "breach", "uses a name of the linker's"),
    (_COUNTER, "breach", "reads a clock or draws random numbers"),
    (_OBJECT, "breach", "uses files, threads, printing or random numbers"),
    (_LIBRARIES, "library", "calls a library"),
)


def _allowed_import(name: str) -> bool:
    if _IMPORTS.fullmatch(name):
        return True
    return any(base in _MATHS for base in (name, name.rstrip("fl"), name[:-1]))


_LINKED = frozenset({"_GLOBAL_OFFSET_TABLE_", "__dso_handle"})
_REFERENCES = ".data.rel.local.DW.ref."


def _needs(library: Library) -> Iterable[Finding]:
    for name in library.needed:
        if not _NEEDED.fullmatch(name):
            yield Finding("breach", f"needs the library {name}")


def _imports(library: Library) -> Iterable[Finding]:
    for name in sorted(library.imports):
        if not name or _allowed_import(name):
            continue
        if _VENDOR.search(name):
            yield Finding("library", f"calls {name} of a library")
        elif name.startswith("__cxa_guard") or name == "__tls_get_addr":
            yield Finding("breach", f"keeps state between calls (imports {name})")
        else:
            yield Finding("breach", f"imports {name}, which a kernel does not need")
    yield from _needs(library)


def _state(library: Library) -> Iterable[Finding]:
    for name, size in library.writable.items():
        if not name.startswith(_RELOCATED) and size > _HARMLESS.get(name, 0):
            yield Finding(
                "breach", f"keeps {size} bytes that calls can change ({name}); make them const"
            )
    for name in sorted(library.objects):
        if not _OWN_OBJECTS.fullmatch(name):
            yield Finding("breach", f"keeps state between calls in {name[:60]}; make it const")
    for name, size in library.thread_local.items():
        yield Finding("breach", f"keeps {size} bytes of thread-local state ({name})")
    for name, size in library.starters.items():
        if size > _ARRAYS.get(name, 0):
            yield Finding("breach", f"runs code when it is loaded or unloaded ({name})")
    for name in library.indirect:
        yield Finding("breach", f"chooses {name} by code that runs at load (ifunc)")
    for name in library.executable:
        yield Finding("breach", f"has code that can be rewritten ({name})")
