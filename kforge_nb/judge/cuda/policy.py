"""What the source of a CUDA candidate may not contain.

The contract: kernels compute outputs from inputs and scratch. No host code, nothing that lives
longer than a call, no clocks, no printing, nothing launched from the device, and of inline PTX only
instructions that move or compute. A *breach* is refused, a *suspicion* is never installed. Names
are looked for in the source without comments and strings and again after the preprocessor; what
macros may still hide is found in the compiled code (:mod:`kforge_nb.judge.cuda.cubin`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from kforge_nb.compilers.cpp import CompileFailed, preprocess
from kforge_nb.errors import MissingTool
from kforge_nb.judge.lexing import lex
from kforge_nb.judge.policy import (
    Finding,
    gravest_first,
    unknown_directives,
    without_includes,
)

__all__ = ["ALLOWED_HEADERS", "ALLOWED_INSTRUCTIONS", "scan_cuda"]

_HEADERS = """
cuda_fp16.h cuda_bf16.h cuda_fp8.h cuda_fp6.h cuda_fp4.h mma.h cooperative_groups.h cuda_pipeline.h
cuda_pipeline_primitives.h vector_types.h vector_functions.h math_constants.h
cstdint cstddef climits cfloat cmath type_traits limits utility
stdint.h stddef.h limits.h float.h math.h
"""
ALLOWED_HEADERS = frozenset(_HEADERS.split())
_HEADER_FOLDERS = ("cooperative_groups/", "cuda/std/", "cuda/barrier", "cuda/pipeline")
_LIBRARY_HEADERS = re.compile(
    r"^(cub/|thrust/|cutlass/|cute/|cublas|cudnn|cusparse|cufft|curand|cusolver|torch|ATen|c10)"
)

_INSTRUCTIONS = """
abs add addc and atom bar barrier bfe bfi bfind bmsk bra brev brkpt_ bfi call_ cnot copysign cos cp
createpolicy cvt cvta div dp2a dp4a elect ex2 exit_ fence fma fns isspacep ld ldmatrix ldu lg2 lop3
mad mad24 madc mapa match max mbarrier membar min mma mov movmatrix mul mul24 multimem_ neg not or
popc prefetch prefetchu prmt rcp red redux rem ret rsqrt sad selp set setp shf shfl shl shr sin slct
sqrt st stmatrix sub subc szext tanh testp vote wgmma wmma xor activemask applypriority discard_
"""
ALLOWED_INSTRUCTIONS = frozenset(w for w in _INSTRUCTIONS.split() if not w.endswith("_"))
"""Inline PTX by the first word of an instruction: moves, computes or synchronises in a block."""

_DIRECTIVES = frozenset({".reg", ".pred"})
_REGISTERS = re.compile(
    r"%(tid|ntid|ctaid|nctaid|laneid|warpid|nwarpid|smid|nsmid|lanemask_\w+|clusterid|nclusterid|"
    r"cluster_ctaid|cluster_nctaid|cluster_ctarank|cluster_nctarank|dynamic_smem_size|"
    r"total_smem_size)\b"
)
_SPECIAL = re.compile(r"%+([a-z_]\w*)")
_MOST = 1000
_LONGEST_PTX = 1 << 14
_KEPT_IN_CACHE = re.compile(r"evict_last|persisting|evict_unchanged")

_ASM = re.compile(r"\b(?:asm|__asm__|__asm)\b\s*(?:volatile|__volatile__|inline|goto)?\s*\(")
_STRING = re.compile(r'"((?:\\.|[^"\\])*)"')
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(<[^>\n]*>|"[^"\n]*"|[^\n]*)', re.MULTILINE)
_PRAGMA = re.compile(r"#[ \t]*pragma[ \t]+(\w+)|_Pragma\s*\(\s*\"\s*(\w+)", re.MULTILINE)
_PRAGMAS = frozenset({"unroll", "once", "nounroll", "nv_diag_suppress", "nv_diag_default"})

_Pattern = tuple[str, str, str]
_PATTERNS: tuple[_Pattern, ...] = (
    ("breach", r"\b(?:v?f?s?n?printf|puts)\s*\(", "prints"),
    ("breach", r"\b(?:malloc|free|alloca|__nv_aligned_device_malloc)\s*\(|\bnew\b|"
     r"\bdelete\b(?!\s*;)", "allocates memory; ask for scratch in the plan"),
    ("breach", r"\b(?:__trap|__brkpt|abort|exit|__assertfail|assert)\s*\(", "stops the device"),
    ("breach", r"<<<|\bcuda(?:Launch|Graph|Stream|Event|Device|Malloc|Free|Memcpy|Memset|Get|Set|"
     r"Func|Host|Occupancy|GridDependency|Trigger)\w*\s*\(|\bcu(?:Launch|Mem|Ctx|Module)\w+\s*\(",
     "calls the CUDA runtime or launches from the device"),
    ("breach", r"\b(?:this_grid|grid_group|this_multi_grid|multi_grid_group|grid_constant_sync)\b",
     "synchronises the whole grid, which needs a cooperative launch"),
    ("breach", r"\b__host__\b|\bmain\s*\(", "contains host code"),
    ("breach", r"\b__managed__\b", "keeps managed memory between calls"),
    ("breach", r"\b__cudart\w*|\b__cuda_syscall\w*|\b__nv_ptx_builtin\w*",
     "uses a name that belongs to CUDA"),
    ("breach", r"\bsection\s*\(\s*\"|\b__attribute__\s*\(\s*\(\s*_*(?:alias|weak|ifunc)",
     "places or replaces code"),
    ("suspicion", r"\b(?:clock|clock64|__clock\w*|__globaltimer\w*|globaltimer\w*)\s*\(",
     "reads a clock"),
    ("suspicion", r"\b(?:__nv_associate_access_property\w*|access_property|annotated_ptr|"
     r"associate_access_property)\b", "asks to keep data in the cache beyond the call"),
)  # fmt: skip
_COMPILED = tuple((kind, re.compile(pattern), words) for kind, pattern, words in _PATTERNS)
_STATIC = re.compile(
    r"\bstatic\s+(?!inline\b|const\b|constexpr\b|_?_?assert|__device__|__forceinline__|__shared__|"
    r"__global__|__constant__)(?![^;{(]{0,200}\b(?:const|constexpr)\b)[\w:<>,\s*&]{0,200}?"
    r"\b(\w{1,200})\s{0,20}(\[[^;{=]{0,200})?(=|;|\{)"
)
_DEVICE_VARIABLE = re.compile(
    r"\b__device__\b(?!\s{0,20}__constant__)"
    r"((?:\s{1,20}(?!operator\b)[\w:<>,*&]{1,200}|\s{0,20}__align__\(\d+\)){0,16}?)\s{1,20}"
    r"(?!operator\b)(\w{1,200})\s{0,20}(?:\[[^;{=(]{0,200})?(=|;|\{)"
)


def scan_cuda(source: str) -> list[Finding]:
    """Breaches, library headers and suspicions in a CUDA source, gravest first."""
    text = lex(source)
    plain = text.plain
    findings = [Finding("breach", what, line) for what, line in text.odd]
    findings += [*_headers(plain), *_pragmas(plain), *_inline_ptx(plain)]
    findings += _names(without_includes(text.bare))
    known = {f.what for f in findings}
    for found in _behind_macros(plain):
        if found.what not in known:
            findings.append(Finding(found.kind, found.what + " (seen after the preprocessor)"))
    return gravest_first(findings)


def _behind_macros(plain: str) -> Iterator[Finding]:
    """The same names once macros are expanded; what a host preprocessor cannot read has none."""
    bare = without_includes(plain)
    defined = "#define __CUDACC__ 1\n#define __CUDACC_RTC__ 1\n#define __CUDA_ARCH__ 900\n"
    try:
        expanded = preprocess(defined + bare)
    except MissingTool:
        return  # the compiled code is looked at all the same
    if isinstance(expanded, CompileFailed):
        return
    behind = lex(expanded)
    yield from _pragmas(behind.plain)
    yield from _names(behind.bare)
    yield from _inline_ptx(behind.plain)


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _headers(text: str) -> Iterator[Finding]:
    for match in _INCLUDE.finditer(text):
        shown = match[1].strip()
        name = shown.strip('<>"')
        if name in ALLOWED_HEADERS or (name.startswith(_HEADER_FOLDERS) and ".." not in name):
            continue
        line = _line(text, match.start(1))
        if _LIBRARY_HEADERS.match(name):
            yield Finding("library", f"includes {name[:80]}, a library's header", line)
        else:
            yield Finding("breach", f"includes {shown[:80]}, which is not allowed", line)
    yield from unknown_directives(text, ALLOWED_HEADERS)


def _pragmas(text: str) -> Iterator[Finding]:
    for match in _PRAGMA.finditer(text):
        name = match[1] or match[2]
        if name not in _PRAGMAS:
            yield Finding("suspicion", f"uses #pragma {name}", _line(text, match.start()))


def _names(text: str) -> Iterator[Finding]:
    for kind, pattern, words in _COMPILED:
        for match in islice(pattern.finditer(text), _MOST):
            name = re.sub(r"\s+", "", match[0])[:60]
            finding: Finding = Finding(kind, f"{words} ({name})", _line(text, match.start()))  # type: ignore[arg-type]
            yield finding
    for match in islice(_STATIC.finditer(text), _MOST):
        if "(" not in match[0]:
            what = f"keeps state between calls in static {match[1]}"
            yield Finding("breach", what, _line(text, match.start()))
    for match in _DEVICE_VARIABLE.finditer(text):
        if re.search(r"\b(?:constexpr|__constant__|__shared__|struct|class)\b", match[1]):
            continue
        what = f"keeps state between calls in __device__ {match[2]}; tables go into __constant__"
        yield Finding("breach", what, _line(text, match.start()))


def _inline_ptx(text: str) -> Iterator[Finding]:
    for match in _ASM.finditer(text):
        line = _line(text, match.start())
        code, quoted = _template(text, match.end())
        if not quoted:
            yield Finding("breach", "contains assembler that is no plain string", line)
            continue
        if len(code) > _LONGEST_PTX:
            yield Finding("breach", f"has {len(code)} characters of PTX in one statement", line)
            continue
        for word in _first_words(code):
            if word not in ALLOWED_INSTRUCTIONS:
                yield Finding("breach", f"contains the PTX instruction {word[:40]}", line)
        bare = _REGISTERS.sub("", code)
        for special in dict.fromkeys(_SPECIAL.findall(bare)):
            if re.search(r"clock|timer|pm\d", special):
                yield Finding("suspicion", f"reads a clock (%{special})", line)
            elif not _declared(special, code):
                yield Finding("breach", f"reads the special register %{special}", line)
        if _KEPT_IN_CACHE.search(code):
            yield Finding("suspicion", "asks to keep data in the cache beyond the call", line)
        elif "cache_hint" in code and "createpolicy" not in code:
            words = "may ask to keep data in the cache beyond the call: its cache_hint is a number"
            yield Finding("suspicion", f"{words} and no createpolicy of the same statement", line)


def _declared(name: str, code: str) -> bool:
    """Whether PTX code declares a register of that name (``%p1`` may come from ``%p<4>``)."""
    stem = name.rstrip("0123456789")
    return (
        re.search(rf"\.reg[^;]{{0,500}}%(?:{re.escape(name)}\b|{re.escape(stem)}<)", code)
        is not None
    )


def _template(text: str, at: int) -> tuple[str, bool]:
    """The string literals at the start of an asm statement, put together."""
    parts = []
    rest = re.compile(r"\s*" + _STRING.pattern)
    match = rest.match(text, at)
    while match is not None:
        parts.append(match[1])
        at = match.end()
        match = rest.match(text, at)
    code = "".join(parts).replace("\\n", "\n").replace("\\t", " ").replace('\\"', '"')
    return code, bool(parts) and re.match(r"\s*[:)]", text[at:]) is not None and "\\" not in code


_VECTOR = re.compile(r"([\w,])\s*\{[^{};]*\}")
"""Several registers as one operand; a block follows no operand, and has a semicolon in it."""


def _first_words(code: str) -> Iterator[str]:
    """The mnemonic of every instruction, without predicate, label and modifiers."""
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", " ", code)
    for statement in re.split(r"[;\n{}]", _VECTOR.sub(r"\1", plain)):
        text = re.sub(r"^\s*(?:[\w$%]+:\s*)*(?:@!?\s*[%\w]+\s+)?", "", statement).strip()
        if not text or text.startswith(tuple(_DIRECTIVES)):
            continue
        word = re.match(r"[.\w]+", text)
        yield word[0].split(".", 1)[0] if word and not word[0].startswith(".") else text[:40]
