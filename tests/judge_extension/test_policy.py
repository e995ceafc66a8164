"""What the text of a torch extension may not contain."""

from __future__ import annotations

import pytest
from extension_sources import MANY_CPU, SILU_CPU, SILU_CUDA

from kforge_nb.judge.extension.policy import scan_extension

BREACHES = {
    "binds itself": ("TORCH_LIBRARY(mine, m) {}", "binds itself"),
    "replaces an operator": ("TORCH_LIBRARY_IMPL(aten, CPU, m) {}", "binds itself"),
    "speaks to Python": ("#include <Python.h>", "Python.h"),
    "reads a user's file": ('#include "/etc/passwd"', "is no <header>"),
    "leaves the folder": ("#include <../../secret.h>", "is no <header>"),
    "an absolute header": ("#include </etc/passwd>", "is no <header>"),
    "a computed header": ("#define H <cmath>\n#include H", "is no <header>"),
    "takes a file in": ('asm(".incbin \\"/etc/passwd\\"");', "read a file"),
    "runs at load": ("__attribute__((constructor)) void early() {}", "at load"),
}


@pytest.mark.parametrize("name", BREACHES)
def test_breaches_are_seen_before_anything_is_compiled(name):
    """What kforge does itself, and what would show files of the user, is refused with its line."""
    text, words = BREACHES[name]
    findings = scan_extension("// one\n" + text + "\n" + SILU_CPU)

    assert [f.kind for f in findings] == ["breach"]
    assert words in findings[0].what
    assert findings[0].line == 2 + text.count("\n")


@pytest.mark.parametrize("source", [SILU_CPU, SILU_CUDA, MANY_CPU], ids=["cpu", "cuda", "many"])
def test_honest_text_passes(source):
    """Torch's headers, C's and a comment about TORCH_LIBRARY are nobody's fault."""
    assert scan_extension("/* no TORCH_LIBRARY(x, m) here */\n" + source) == []
