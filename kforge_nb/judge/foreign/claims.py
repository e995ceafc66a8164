"""What a file claims of itself, and in what its own measurement differs from the judge's.

Read from the text: comments, strings and a few settings. A claim decides nothing; it is set beside
what was measured, with the words that tell why the two may differ.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kforge_nb.judge.evaluation import Comparison

__all__ = ["Claim", "compared", "read_claims", "settings_of"]

_RATIO = re.compile(
    r"(?<![\w.])(\d{1,4}(?:\.\d+)?)\s*(?:x|×|times)(?![\w.])", re.IGNORECASE
)  # fmt: skip
_SPEED = re.compile(r"speed|fast|over|against|than|vs\b", re.IGNORECASE)
_COMPILE = re.compile(r"compile|inductor", re.IGNORECASE)
_EAGER = re.compile(r"eager|pytorch|torch\b(?!\.compile)|baseline|reference", re.IGNORECASE)
_LOW = re.compile(r"(?:torch\.)?(float16|bfloat16|half|float8\w*)\b")
_MOST = 6
_LOOSE = 1e-3


@dataclass(frozen=True, slots=True)
class Claim:
    """So many times faster than a baseline (``eager``, ``compile`` or "" where it is not said)."""

    ratio: float
    against: str = ""
    line: int | None = None

    @property
    def words(self) -> str:
        """The claim in words."""
        over = {"eager": " eager's speed", "compile": " torch.compile's speed"}
        where = f" (line {self.line})" if self.line is not None else ""
        return f"{self.ratio:g} times{over.get(self.against, ' an unnamed baseline')}{where}"


def read_claims(text: str) -> list[Claim]:
    """Claims of a speed-up in a file's comments and strings, at most a handful."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        for match in _RATIO.finditer(line):
            if not _SPEED.search(line) or float(match[1]) <= 0:
                continue
            against = "compile" if _COMPILE.search(line) else "eager" if _EAGER.search(line) else ""
            found.append(Claim(float(match[1]), against, number))
    return found[:_MOST]


def settings_of(text: str, reference_dtypes: Sequence[str]) -> list[str]:
    """Settings of a Python file by which its own figures differ from the judge's, in words."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    return list(dict.fromkeys([*_precision(tree, reference_dtypes), *_own_benchmark(tree)]))


def _precision(tree: ast.Module, reference_dtypes: Sequence[str]) -> Iterable[str]:
    low = {"float16", "bfloat16"}
    if not low & set(reference_dtypes):
        names = (
            _LOW.search(ast.unparse(n)) for n in ast.walk(tree) if isinstance(n, ast.Attribute)
        )
        dtypes = sorted({m[1] for m in names if m})
        if dtypes:
            yield f"it names {', '.join(dtypes)}, and the reference computes in float32"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            text = ast.unparse(node)
            if "allow_tf32" in text and "True" in text:
                yield f"line {node.lineno} allows TF32, which rounds float32 to 10 bits"
        if isinstance(node, ast.Call) and "set_float32_matmul_precision" in ast.unparse(node.func):
            yield f"line {node.lineno} lowers the precision of matrix products (TF32 or less)"


def _own_benchmark(tree: ast.Module) -> Iterable[str]:
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    names = {ast.unparse(c.func) for c in calls}
    clocks = [
        n for n in names if n.endswith(("perf_counter", "time.time", "cuda.Event", "monotonic"))
    ]
    flushes = any("flush" in n or "do_bench" in n for n in names)
    if clocks and not flushes:
        yield "its own benchmark times the same inputs again and again: a warm cache"
    for call in calls:
        if not ast.unparse(call.func).endswith(("allclose", "assert_close")):
            continue
        for keyword in call.keywords:
            value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            if keyword.arg not in ("atol", "rtol") or not isinstance(value, int | float):
                continue
            if value > _LOOSE:
                yield f"line {call.lineno} checks with {keyword.arg}={value:g}, which is loose"


def compared(claims: Sequence[Claim], timings: Sequence[Comparison]) -> list[str]:
    """Each claim beside what was measured here, in words."""
    measured = {t.against: t for t in timings}
    return [_beside(claim, measured) for claim in claims]


def _beside(claim: Claim, measured: dict[str, Comparison]) -> str:
    names = {"eager": "eager", "compile": "torch.compile"}
    parts = [
        f"{found.ratio:.2f} times {names[name]}'s ({found.low:.2f} to {found.high:.2f})"
        for name, found in measured.items()
        if name in names
    ]
    if not parts:
        return f"claims {claim.words}; nothing was timed here"
    found = measured.get(claim.against or "eager")
    agrees = found is not None and found.low <= claim.ratio <= found.high
    words = f"claims {claim.words}; measured here: {' and '.join(parts)}"
    if claim.against == "compile" and "eager" in measured:
        words += "; the claim names torch.compile alone"
    if claim.against == "":
        words += "; the claim does not say against what"
    return words + ("" if agrees else "; the claim is not confirmed")
