"""Instructions that no kernel needs, looked for in the compiled code by the binutils' disassembler.

A source scan finds assembler and builtins by their names; this finds what they become, however they
were written. Instructions are read from the start of each function on, so bytes inside of other
instructions count as little as they do for the processor; code that jumps into the middle of one is
left to the system-call filter. Where there is no ``objdump`` nothing is found here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

from kforge_nb.compilers.toolchain import clean_environment, find_compiler

__all__ = ["disassembler", "foreign_instructions"]

_SECONDS = 20.0
_KINDS = {
    "makes system calls of its own": "syscall sysenter int svc",
    "reads a clock": "rdtsc rdtscp rdpmc",
    "draws random numbers": "rdrand rdseed",
    "changes memory that the system keeps for the thread": "wrfsbase wrgsbase wrpkru",
    "changes how the whole thread computes": "fldenv frstor xrstor xrstors fxrstor",
}
_WHY = {word: why for why, words in _KINDS.items() for word in words.split()}
_LINE = re.compile(r"^\s*[0-9a-f]+:\s+(?:(?:lock|rep\w*|notrack|bnd|data16)\s+)*(\w+)(.*)$")
_CLOCK_REGISTER = re.compile(r"\bcnt(?:v|p)ct_el0|\bpmccntr_el0", re.IGNORECASE)


@lru_cache(maxsize=1)
def disassembler() -> str | None:
    """Path of ``objdump``: the one of the compiler, or the first on the path; None without one."""
    compiler = find_compiler()
    try:
        done = subprocess.run(
            [*compiler.command, "-print-prog-name=objdump"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
            env=clean_environment(compiler.path),
        )
        named = done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        named = ""
    return shutil.which(named or "objdump") or shutil.which("objdump")


def foreign_instructions(path: Path) -> dict[str, str]:
    """Instructions in a library or object file that no kernel needs, each with what it does."""
    tool = disassembler()
    if tool is None:
        return {}
    try:
        done = subprocess.run(
            [tool, "-d", "-w", "--no-show-raw-insn", str(path)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=True,
            env={"LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        if match[1] in _WHY:
            found[match[1]] = _WHY[match[1]]
        elif match[1] == "mrs" and _CLOCK_REGISTER.search(match[2]):
            found["mrs"] = "reads a clock"
    return found
