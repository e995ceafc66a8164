"""What a torch extension's source and library may not contain.

Host code can do anything, so this is no wall: the process around it is. It keeps honest candidates
honest (a call of torch's own operator is a wrapper and earns no credit) and refuses what no kernel
needs: processes, sockets, files, clocks, the interpreter, operators of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from kforge_nb.compilers.cpp import CompileFailed, preprocess
from kforge_nb.judge.elf import Library, read_library
from kforge_nb.judge.extension.opened import files_opened
from kforge_nb.judge.lexing import Lexed, lex
from kforge_nb.judge.policy import FORBIDDEN_CALLS, Finding, gravest_first, without_includes

__all__ = ["inspect_extension", "scan_extension"]

_OWN_BINDING = re.compile(
    r"\b(TORCH_LIBRARY\w*|PYBIND11_MODULE|PYBIND11_EMBEDDED_MODULE|RegisterOperators|PyInit_\w+)\b"
)
_HEADERS = re.compile(r"#\s*include\s*[<\"](Python\.h|pybind11/[^>\"]*|dlfcn\.h|sys/ptrace\.h)")
_ATTRIBUTE = re.compile(r"\b_*(constructor|destructor|ifunc)_*\s*(?:\(|\))")

_BEHIND = " (seen after the preprocessor)"
_STREAMS = re.compile(
    r"\b(getStreamFromPool|cudaStreamCreate\w*|setCurrentCUDAStream|CUDAStreamGuard|"
    r"CUDAMultiStreamGuard|cuStreamCreate\w*|cudaStreamPerThread)\b"
)
_THREADS = re.compile(r"\b(std\s*::\s*(?:thread|jthread|async)|pthread_create|at::launch)\b")
_SETTINGS = re.compile(
    r"\b(globalContext|setDeterministic\w*|set_num_threads|manual_seed|cudaDeviceSetLimit|"
    r"cudaCtxResetPersistingL2Cache|accessPolicyWindow|cudaDeviceReset|cudaProfiler\w+)\b"
)
_INTERPRETER = re.compile(r"\b(Py(?:Run|Eval|Import|Object|GILState)_\w+|pybind11|py)\s*(?:::|\()")
_STATE = re.compile(
    r"\b((?:static|thread_local)\s+(?!inline\b|const\b|constexpr\b)(?:std|at|torch|c10)\s*::\s*"
    r"\w{1,200}[^;(){]{0,300}[;={(])"
)

_OPERATOR = re.compile(r"_ZN2at4_ops(\d+)(\w+)")
_MEMORY_WORDS = """
empty empty_like empty_strided new_empty new_empty_strided zeros zeros_like new_zeros zero_ full
full_like new_full fill_ resize_ view view_as reshape as_strided slice select narrow squeeze
unsqueeze permute transpose t expand flatten contiguous detach alias size stride numel
"""
_MEMORY_OPERATORS = frozenset(_MEMORY_WORDS.split())
_LIBRARY = re.compile(
    r"cublas|cudnn|cusparse|cufft|cusolver|cblas_|mkl_|dnnl_|[sdcz]gemm_|libxsmm|_ZN4dnnl|"
    r"_ZN2at6native|_ZN2at4cuda4blas|_ZN2at9autocast|_ZNK?3c1010Dispatcher|_ZN5torch3jit(?!11parse)"
)
_LIBRARY_FILES = re.compile(r"lib(cublas|cudnn|cusparse|cufft|cusolver|mkl|dnnl|openblas)")
_CPP_CALLS = {
    "reads the clock": re.compile(r"_ZNSt6chrono\w*clock3nowEv"),
    "starts threads": re.compile(r"_ZNSt6thread|pthread_create"),
    "opens files": re.compile(r"_ZNSt\d+basic_(o|i|)fstream|_ZNSt1[34]basic_(o|i)fstream"),
    "draws random numbers": re.compile(r"_ZNSt13random_device"),
    "speaks to the interpreter": re.compile(r"_?Py[A-Z_]\w+"),
    "binds itself, which kforge does": re.compile(r"_ZNR?5torch7Library"),
}
_HARMLESS_CALLS = frozenset(
    {"atexit", "abort", "terminate", "printf", "fprintf", "puts", "putchar"}
)


def scan_extension(source: str) -> list[Finding]:
    """Breaches in the text of a source, without its comments."""
    text = lex(source)
    plain = text.plain
    findings = [Finding("breach", what, line) for what, line in text.odd]
    for pattern, words in (
        (_OWN_BINDING, "binds itself, which kforge does"),
        (_HEADERS, "includes what a kernel does not need"),
        (_ATTRIBUTE, "uses an attribute that runs or replaces code at load"),
        (_STREAMS, "works on a stream of its own; launch on torch's current stream"),
        (_THREADS, "starts threads"),
        (_SETTINGS, "changes what holds for others"),
        (_INTERPRETER, "speaks to the interpreter"),
    ):
        for match in pattern.finditer(plain):
            line = plain.count("\n", 0, match.start()) + 1
            findings.append(Finding("breach", f"{words} ({match[1][:60]})", line))
    for match in _STATE.finditer(plain):
        line = plain.count("\n", 0, match.start()) + 1
        words = " ".join(match[1].split())[:60]
        findings.append(Finding("suspicion", f"keeps state between calls ({words})", line))
    findings += files_opened(text)
    known = {f.what for f in findings}
    hidden = (f for f in files_opened(_behind_macros(plain)) if f.what not in known)
    return gravest_first([*findings, *(Finding(f.kind, f.what + _BEHIND) for f in hidden)])


def _behind_macros(plain: str) -> Lexed:
    """What its own macros make of it, without the headers: those would take half a minute."""
    expanded = preprocess(without_includes(plain))
    return lex("" if isinstance(expanded, CompileFailed) else expanded)


def inspect_extension(code: Path, library: Path) -> list[Finding]:
    """Breaches and library calls by the symbols of a built extension, gravest first.

    Args:
        code: the object file of the candidate alone; the library holds kforge's binding too, and
            with some compilers the C++ library.
        library: what is loaded.

    Raises:
        ContractBreach: one of the files is none that can be read.
    """
    own = read_library(code)
    own.needed = read_library(library).needed
    return gravest_first([*_imports(own), *_operators(own)])


def _imports(library: Library) -> Iterable[Finding]:
    for name in sorted(library.imports):
        if name in FORBIDDEN_CALLS and name not in _HARMLESS_CALLS:
            yield Finding("breach", f"calls {name}: {FORBIDDEN_CALLS[name]}")
        for words, pattern in _CPP_CALLS.items():
            if pattern.match(name):
                yield Finding("breach", f"{words} (imports {name[:60]})")
        if _LIBRARY.search(name):
            yield Finding("library", f"calls {name[:60]} of a library")
    for name in library.needed:
        if _LIBRARY_FILES.match(name):
            yield Finding("library", f"needs the library {name}")


def _operators(library: Library) -> Iterable[Finding]:
    for name in sorted(library.imports):
        match = _OPERATOR.match(name)
        if match is None:
            continue
        operator = match[2][: int(match[1])]
        overloads = (operator == m or operator.startswith(f"{m}_") for m in _MEMORY_OPERATORS)
        if not any(overloads):
            yield Finding("library", f"has torch compute: it calls torch's own {operator}")
