"""What isolates a candidate on this machine: detected by trying, and said in words."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from kforge_nb.judge.binary import probe, runner_binary
from kforge_nb.judge.instructions import disassembler

__all__ = ["detect"]


@lru_cache(maxsize=1)
def detect() -> dict[str, Any]:
    """The layers that hold here.

    Returns:
        ``rlimits``, ``no_new_privs``, ``seccomp``, ``namespaces`` (bool; those are made only
        where seccomp is missing), ``landlock`` (ABI version, 0: none), ``disassembler`` (compiled
        code is looked at for instructions that no kernel needs), ``uid``, and ``statement``: what
        is and is not guaranteed, one paragraph.

    Raises:
        MissingTool: the runner cannot be built.
    """
    facts: dict[str, Any] = dict(probe(runner_binary()))
    facts["disassembler"] = disassembler() is not None
    facts["statement"] = _statement(facts)
    return facts


def _statement(facts: dict[str, Any]) -> str:
    kept = ["memory, CPU time and file size are limited", "its process group is killed at the end"]
    open_ = []
    if facts["seccomp"]:
        kept.append("it cannot start processes or programs, open sockets, trace or signal others")
    elif facts.get("namespaces"):
        kept.append("its network is empty (a namespace of its own)")
        open_.append("seccomp is missing: a candidate could start processes and signal yours")
    else:
        open_.append("seccomp is missing: a candidate could start processes and use the network")
    if facts["landlock"]:
        kept.append("it cannot write any file and reads only system libraries")
    else:
        open_.append("Landlock is missing: a candidate could read files of this user while loading")
    words = "A candidate runs in a process of its own: " + "; ".join(kept) + "."
    if facts["uid"] == 0:
        open_.append("this runs as root, and so do candidates: use an ordinary account")
    if not facts["disassembler"]:
        open_.append(
            "objdump is missing: system calls by assembler are met only when they are made"
        )
    if open_:
        words += " Not guaranteed here: " + "; ".join(open_) + "."
    return words + " Attacks on the kernel or the CPU themselves are not guarded against."
